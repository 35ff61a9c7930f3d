"""Reads beyond the end of a table: they give 0 if only pairs that the mask hides read there.

PyTorch's kernels skip hidden pairs; a tile also evaluates them. Interval arithmetic on the indices shows which reads
can go out of bounds, so that all others stay unchanged.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import product
from math import inf, isnan
from typing import Any

import torch
from torch import Tensor

from qkv.errors import ArgumentError, QkvError
from qkv.hub.flex.conditions import indices_on
from qkv.hub.flex.expressions import Expression, constant, evaluate, parts
from qkv.masks.base import Grid, Mask
from qkv.masks.lower import lower
from qkv.shapes import show

PAIRS = 1 << 20
"""How many pairs are checked at a time."""

Interval = tuple[float, float]


class TableError(ArgumentError, IndexError):
    """A function reads beyond the end of a table that it closes over."""


def beyond(table: Tensor, index: object, where: str) -> TableError:
    """Return the error for a read beyond the end of a table.

    Args:
        table: what is read.
        index: the first index that leaves it.
        where: which pair reads it.
    """
    hint = "Make the table longer, clamp the index, or hide these pairs by the block_mask."
    expected = f"indices within the table of shape {show(tuple(table.shape))} and dtype {table.dtype}"
    return TableError(str(QkvError("score_mod or mask_mod", expected, f"{index} {where}".rstrip(), hint)))


def guarded(expression: Expression, grid: Grid) -> Expression:
    """Return the expression with reads that may leave their table replaced by reads that give 0 there.

    Args:
        expression: of score, batch, head, query and key.
        grid: the sizes; leading is (B, H).

    Example:
        >>> from qkv.hub.flex.expressions import captured, symbol
        >>> grid = Grid((1, 1), 4, 4, torch.device("cpu"))
        >>> read = Expression("index", (captured(torch.ones(3)), symbol("key")), torch.float32)
        >>> evaluate(guarded(read, grid), {"key": torch.arange(4)})
        tensor([1., 1., 1., 0.])
        >>> guarded(read, Grid((1, 1), 4, 3, torch.device("cpu"))) is read
        True
    """
    sizes = dict(zip(("batch", "head", "query", "key"), (*grid.leading, grid.queries, grid.keys), strict=True))
    done: dict[int, Expression] = {}
    ranges: dict[int, Interval] = {}

    def visit(expression: Expression) -> Expression:
        if id(expression) not in done:
            arguments = tuple(visit(x) if isinstance(x, Expression) else x for x in expression.arguments)
            same = all(x is y for x, y in zip(arguments, expression.arguments, strict=True))
            name = (
                "guarded" if expression.name == "index" and _may_leave(expression, sizes, ranges) else expression.name
            )
            done[id(expression)] = (
                expression if same and name == expression.name else Expression(name, arguments, expression.dtype)
            )
        return done[id(expression)]

    return visit(expression)


def _may_leave(read: Expression, sizes: dict[str, int], ranges: dict[int, Interval]) -> bool:
    table, *indices = read.arguments
    if table.name != "captured":
        return False
    limits = zip(indices, table.arguments[0].tensor.shape, strict=False)
    intervals = ((_interval(index, sizes, ranges), size) for index, size in limits)
    return any(low < -size or high >= size for (low, high), size in intervals)


def _interval(x: Any, sizes: dict[str, int], intervals: dict[int, Interval]) -> Interval:
    """Return the least and the largest value of an integer, or numbers beyond them."""
    if not isinstance(x, Expression):
        return (x, x) if isinstance(x, (int, float)) else (-inf, inf)
    if id(x) not in intervals:
        intervals[id(x)] = _interval_of(x, sizes, intervals)
    return intervals[id(x)]


def _interval_of(x: Expression, sizes: dict[str, int], intervals: dict[int, Interval]) -> Interval:
    if x.name in sizes:
        return 0, sizes[x.name] - 1
    value = constant(x)
    if value is not None:
        return value, value
    if x.dtype == torch.bool:
        return 0, 1
    if x.name in ("captured", "index", "guarded"):
        return _entries(x)
    rule = _INTERVALS.get(x.name)
    return (-inf, inf) if rule is None else rule(*(_interval(argument, sizes, intervals) for argument in x.arguments))


def _entries(x: Expression) -> Interval:
    """Return the least and the largest entry of the table that is read."""
    table = x if x.name == "captured" else x.arguments[0]
    tensor: Tensor = table.arguments[0].tensor
    if not x.integral or tensor.numel() == 0 or tensor.device.type == "meta":
        return -inf, inf
    low, high = tensor.aminmax()
    # A guarded read gives 0 too.
    return min(0, int(low)), max(0, int(high))


def _corners(operation: Callable[[float, float], float]) -> Callable[[Interval, Interval], Interval]:
    def of(one: Interval, other: Interval) -> Interval:
        values = [operation(a, b) for a, b in product(one, other)]
        return (-inf, inf) if any(map(isnan, values)) else (min(values), max(values))

    return of


def _quotient(one: Interval, other: Interval) -> Interval:
    if not other[0] > 0:
        return -inf, inf
    return _corners(lambda a, b: a // b)(one, other)


def _remainder(one: Interval, other: Interval) -> Interval:
    return (0, min(other[1] - 1, one[1])) if other[0] > 0 and one[0] >= 0 else (-abs(other[1]), abs(other[1]))


_INTERVALS: dict[str, Callable[..., Interval]] = {
    "add": lambda one, other: (one[0] + other[0], one[1] + other[1]),
    "sub": lambda one, other: (one[0] - other[1], one[1] - other[0]),
    "mul": _corners(lambda a, b: a * b),
    "floordiv": _quotient,
    "rem": _remainder,
    "neg": lambda one: (-one[1], -one[0]),
    "abs": lambda one: (max(0, one[0], -one[1]), max(abs(one[0]), abs(one[1]))),
    "min": lambda one, other: (min(one[0], other[0]), min(one[1], other[1])),
    "where": lambda _, one, other: (min(one[0], other[0]), max(one[1], other[1])),
    "cast": lambda one, _: one,
    "max": lambda one, other: (max(one[0], other[0]), max(one[1], other[1])),
}


def reads_of(expressions: Iterable[Expression]) -> list[Expression]:
    """Return the reads among expressions and their parts that may leave their table."""
    pending, visited, reads = list(expressions), set[int](), []
    while pending:
        expression = pending.pop()
        if id(expression) not in visited:
            visited.add(id(expression))
            reads += [expression] if expression.name == "guarded" else []
            pending += parts(expression)
    return reads


def check(expressions: Sequence[Expression], mask: Mask | None, grid: Grid, score: Expression | None = None) -> None:
    """Raise if a visible pair reads beyond the end of a table.

    Args:
        expressions: what is evaluated, from `guarded`.
        mask: which pairs are visible; None for all.
        grid: the sizes; leading is (B, H).
        score: what hides pairs too, by −∞.

    Raises:
        TableError: names the table and the first pair.
    """
    reads = reads_of(expressions)
    if not reads:
        return
    visibility, columns = lower(mask, grid), torch.arange(grid.keys, device=grid.device)
    step = max(1, PAIRS // max(1, grid.leading[0] * grid.leading[1] * grid.keys))
    for start in range(0, grid.queries, step):
        rows = slice(start, min(start + step, grid.queries))
        indices = indices_on(grid, torch.arange(rows.start, rows.stop, device=grid.device)[:, None], columns)
        visible = visibility.tile(rows, slice(None))
        with torch.no_grad():
            if score is not None:
                not_hidden = evaluate(score, {**indices, "score": torch.zeros((), device=grid.device)}) != -inf
                visible = not_hidden if visible is None else visible & not_hidden
            for read in reads:
                _check(read, visible, indices)


def _check(read: Expression, visible: Tensor | None, index_of: dict[str, Tensor]) -> None:
    outside = evaluate(Expression("outside", read.arguments, torch.bool), index_of)
    bad = outside if visible is None else outside & visible
    if not bool(bad.any()):
        return
    table, *indices = read.arguments
    numbers = list(index_of.values())
    # Positions are integers of at least 0, so that their sum has the shape of them all.
    shape = sum(numbers, bad.long()).shape
    first = bad.expand(shape).nonzero()[0].tolist()
    index = [int(torch.as_tensor(evaluate(x, index_of), device="cpu").expand(shape)[tuple(first)]) for x in indices]
    batch, head, query, key = (int(x.expand(shape)[tuple(first)]) for x in numbers)
    pair = f"of the visible pair batch {batch}, head {head}, query {query}, key {key}"
    raise beyond(table.arguments[0].tensor, show(tuple(index)), pair)
