"""Encode masks as arguments of a registered operator, which are tensors, numbers and text.

A composition of masks is written in postfix order, operands before the operation that combines them: `causal(2) &
~dense(t)` is `"number causal:start tensor dense not and"`.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from qkv.engine.mechanism import full_rank
from qkv.masks.base import Both, Dense, Either, Inverse, Mask
from qkv.masks.patterns import Causal, Documents, Lengths, Span, Window, clamped

_OPERATIONS: dict[type[Mask], str] = {Both: "and", Either: "or"}
_CONSTRUCTORS = {
    "dense": Dense,
    "lengths": Lengths,
    "span": Span,
    "documents": Documents,
    "window": Window,
    "and": Both,
    "or": Either,
}
_OPERAND_COUNTS = {"dense": 1, "lengths": 2, "span": 2, "documents": 2, "window": 3, "and": 2, "or": 2}


def encode(mask: Mask, rank: int) -> tuple[str, list[Tensor], list[int]] | None:
    """Encode a mask as text, tensors and numbers; return None if it contains a user-defined mask.

    Args:
        mask: any composition.
        rank: of the leading shape, to which dense masks are reshaped.

    Example:
        >>> from qkv.masks.patterns import causal, lengths
        >>> encode(causal(2) | lengths(3), rank=1)
        ('number causal:start number none lengths or', [], [2, 3])
    """
    tensors: list[Tensor] = []
    numbers: list[int] = []
    words = _words(mask, rank, tensors, numbers)
    return None if words is None else (" ".join(words), tensors, numbers)


def _words(mask: Mask, rank: int, tensors: list[Tensor], numbers: list[int]) -> list[str] | None:
    if isinstance(mask, Inverse):
        inner = _words(mask.inner, rank, tensors, numbers)
        return None if inner is None else [*inner, "not"]
    if isinstance(mask, (Both, Either)):
        left, right = _words(mask.left, rank, tensors, numbers), _words(mask.right, rank, tensors, numbers)
        return None if left is None or right is None else [*left, *right, _OPERATIONS[type(mask)]]
    items: list[Tensor | int | None]
    if isinstance(mask, Dense):
        items, name = [full_rank(mask.tensor, rank + 2)], "dense"
    elif isinstance(mask, Causal):
        items, name = [mask.offset], f"causal:{mask.align}"
    elif isinstance(mask, Lengths):
        items, name = [mask.keys, mask.queries], "lengths"
    elif isinstance(mask, Span):
        items, name = [mask.first, mask.last], "span"
    elif isinstance(mask, Window):
        items, name = [mask.left, mask.right, mask.offset], "window"
    elif isinstance(mask, Documents):
        items, name = [mask.queries, mask.keys], "documents"
    else:
        return None
    return [*(_word(item, tensors, numbers) for item in items), name]


def _word(item: Tensor | int | None, tensors: list[Tensor], numbers: list[int]) -> str:
    if item is None:
        return "none"
    if isinstance(item, Tensor):
        tensors.append(item)
        return "tensor"
    # An operator's numbers are int64, whose limits are far beyond any position.
    numbers.append(clamped(item))
    return "number"


def decode(code: str, tensors: Sequence[Tensor], numbers: Sequence[int]) -> Mask:
    """Return the mask that `encode` wrote.

    Example:
        >>> decode("number causal:start number none lengths or", [], [2, 3])
        Either(left=Causal(offset=2, align='start'), right=Lengths(keys=3, queries=None))
    """
    stack: list[Any] = []
    tensor, number = iter(tensors), iter(numbers)
    for word in code.split(" "):
        if word in ("none", "tensor", "number"):
            stack.append(None if word == "none" else next(tensor if word == "tensor" else number))
        elif word == "not":
            stack.append(Inverse(stack.pop()))
        elif word.startswith("causal:"):
            stack.append(Causal(stack.pop(), word.removeprefix("causal:")))  # type: ignore[arg-type]
        else:
            operands = stack[-_OPERAND_COUNTS[word] :]
            del stack[-_OPERAND_COUNTS[word] :]
            stack.append(_CONSTRUCTORS[word](*operands))
    return stack.pop()  # type: ignore[no-any-return]
