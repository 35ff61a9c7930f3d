"""The legend of sizes, and checks that shapes match.

| letter | size of |
|---|---|
| B | batch: any number of leading dimensions |
| H, G | query heads, key/value heads (G divides H in grouped-query attention) |
| Q, K | number of queries, number of keys |
| D, E, V | width of a query, of a key, of a value |
| A | width of the hidden layer of an additive score |
| M | model width |
| T, S | target length, source length |

In mathematical code a tensor's name carries its shape: `s_BHQK` are scores of shape (B, H, Q, K). F is the common width
of a score's prepared operands.
"""

from torch import Tensor

from qkv.errors import ShapeError

Shape = tuple[int, ...]


def show(shape: Shape) -> str:
    """Format a shape for a message.

    Example:
        >>> show((2, 8, 16))
        '(2, 8, 16)'
    """
    return f"({', '.join(str(size) for size in shape)}{',' if len(shape) == 1 else ''})"


def broadcast(*shapes: Shape) -> Shape | None:
    """Return the shape to which all broadcast, or None if they do not match.

    Example:
        >>> broadcast((2, 1), (8,)), broadcast((2,), (3,))
        ((2, 8), None)
    """
    rank = max([0, *[len(shape) for shape in shapes]])
    sizes = [1] * rank
    for shape in shapes:
        for index, size in enumerate(shape, start=rank - len(shape)):
            if sizes[index] == 1:
                sizes[index] = size
            elif size not in (1, sizes[index]):
                return None
    return tuple(sizes)


def broadcasts_to(shape: Shape, full: Shape) -> bool:
    """Return whether `shape` can be expanded to `full`.

    Sizes are compared one by one: under tracing, tuples with a varying size and the same number are not equal.

    Example:
        >>> broadcasts_to((8,), (2, 8)), broadcasts_to((1, 8), (2, 8)), broadcasts_to((2, 8), (8,))
        (True, True, False)
    """
    ends = zip(reversed(shape), reversed(full), strict=False)
    return len(shape) <= len(full) and all(have in (1, want) for have, want in ends)


def align_left(item: Tensor, leading: Shape, argument: str, last: int = 0) -> Tensor:
    """Align per-item data with the leading dimensions, from the left.

    Args:
        item: one entry per item; its shape must be a prefix of `leading` (sizes of 1 broadcast).
        leading: the leading shape of the problem.
        argument: the name to use in an error.
        last: how many dimensions of size 1 follow.

    Returns:
        A view with the dimensions of `leading`, and `last` more of size 1.

    Raises:
        ShapeError: the shape is not a prefix.

    Example:
        >>> import torch
        >>> align_left(torch.tensor([3, 5]), (2, 8), "lengths").shape
        torch.Size([2, 1])
    """
    fits = item.shape == leading[: item.ndim] or (
        item.ndim <= len(leading) and all(have in (1, want) for have, want in zip(item.shape, leading, strict=False))
    )
    if not fits:
        raise ShapeError(
            argument,
            f"one entry per item: a shape that is a prefix of {show(leading)}",
            f"shape {show(tuple(item.shape))}",
            "Per-item data such as lengths has the shape (B,), or (B, H) if it differs per head.",
        )
    return item.reshape((*item.shape, *(1,) * (len(leading) - item.ndim + last)))


def align_right(parameter: Tensor, rank: int, leading: Shape, argument: str) -> Tensor:
    """Align a parameter's head dimensions with the leading dimensions, from the right.

    Args:
        parameter: shape (..., *own dimensions); the dimensions before its own are heads.
        rank: how many trailing dimensions belong to the parameter itself.
        leading: the leading shape of the problem.
        argument: the name to use in an error.

    Returns:
        The parameter, unchanged.

    Raises:
        ShapeError: its head dimensions do not broadcast to `leading`.
    """
    heads = tuple(parameter.shape[: parameter.ndim - rank])
    if parameter.ndim < rank or not broadcasts_to(heads, leading):
        raise ShapeError(
            argument,
            f"{rank} dimension(s) of its own, optionally preceded by heads that match the end of {show(leading)}",
            f"shape {show(tuple(parameter.shape))}",
            "A per-head parameter has the shape (H, ...).",
        )
    return parameter


def nearest_divisors(size: int, part: int) -> str:
    """Return a hint with the divisors of a size next to a number that does not divide it.

    Example:
        >>> nearest_divisors(30, 4), nearest_divisors(7, 4), nearest_divisors(8, 0)
        ('Try 3 or 5.', 'Try 1 or 7.', 'Try 1.')
    """
    divisors = [divisor for divisor in range(1, size + 1) if size % divisor == 0]
    below, above = [x for x in divisors if x < part][-1:], [x for x in divisors if x > part][:1]
    return f"Try {' or '.join(map(str, below + above))}."
