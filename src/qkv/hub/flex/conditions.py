"""Conditions on positions as masks: intervals of keys, documents, tables of keys; the rest is evaluated on tiles."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from qkv.hub.flex.algebra import Polynomial, added, at_least, depends, integral, is_exact, polynomial, rebuilt
from qkv.hub.flex.expressions import (
    Expression,
    constant,
    evaluate,
    number,
    operation,
    replaced,
    symbol,
    tensors_of,
)
from qkv.masks.base import Both, Bounds, Dense, Either, Grid, Mask
from qkv.masks.lower import factors
from qkv.masks.patterns import Causal, Documents

_QUERY, _KEY = symbol("query"), symbol("key")
_NEXT = operation("add", _QUERY, number(1))


def indices_on(grid: Grid, rows: Tensor, columns: Tensor) -> dict[str, Tensor]:
    """Return the symbols' values: batch and head numbers in front of given positions.

    Args:
        grid: the sizes; leading is (B, H).
        rows, columns: positions of queries and keys; the rank of their tile follows from both.
    """
    batch, heads = grid.leading
    rank = max(rows.ndim, columns.ndim)
    return {
        "batch": torch.arange(batch, device=grid.device).view(-1, 1, *(1,) * rank),
        "head": torch.arange(heads, device=grid.device).view(-1, *(1,) * rank),
        "query": rows,
        "key": columns,
    }


def per_row(expression: Expression, grid: Grid) -> Tensor:
    """Return the values of an expression without keys, (..., Q) or (..., 1)."""
    rows = torch.arange(grid.queries, device=grid.device)
    values = evaluate(expression, indices_on(grid, rows, rows))
    return values if values.ndim else values.reshape(1)


def per_key(expression: Expression, grid: Grid) -> Tensor:
    """Return the values of an expression without queries, (..., K) or (..., 1)."""
    columns = torch.arange(grid.keys, device=grid.device)
    values = evaluate(expression, indices_on(grid, columns, columns))
    return values if values.ndim else values.reshape(1)


@final
@dataclass(frozen=True, eq=False)
class Interval(Mask):
    """Query i sees the keys first(i) ≤ j < last(i).

    Attributes:
        first, last: expressions of batch, head and query; None for no limit.
        captured: the tensors that they read.
    """

    first: Expression | None
    last: Expression | None
    captured: tuple[Tensor, ...] = ()

    def visible(self, grid: Grid, rows_Q1: Tensor, columns_K: Tensor) -> Tensor:
        """Compare with both limits."""
        visible = torch.ones((), dtype=torch.bool, device=grid.device)
        for limit, compare in ((self.first, torch.ge), (self.last, torch.lt)):
            if limit is not None:
                visible = visible & compare(columns_K, evaluate(limit, indices_on(grid, rows_Q1, columns_K)))
        return visible

    def bounds(self, grid: Grid) -> Bounds:
        """Return both limits."""
        first, last = (
            None if limit is None else per_row(limit, grid).clamp(0, grid.keys).int()
            for limit in (self.first, self.last)
        )
        return Bounds(first, last)


@final
@dataclass(frozen=True, eq=False)
class Condition(Mask):
    """Any condition, evaluated on tiles.

    Attributes:
        holds: an expression of batch, head, query and key.
        captured: the tensors that it reads.
    """

    holds: Expression
    captured: tuple[Tensor, ...] = ()

    def visible(self, grid: Grid, rows_Q1: Tensor, columns_K: Tensor) -> Tensor:
        """Evaluate the condition."""
        return evaluate(self.holds, indices_on(grid, rows_Q1, columns_K)).to(torch.bool)


def mask_of(holds: Expression, grid: Grid) -> Mask | None:
    """Return a condition on positions as a mask whose limits are known where it has any.

    Args:
        holds: of type bool, an expression of batch, head, query and key.
        grid: the sizes; leading is (B, H).

    Returns:
        The mask; None if all is visible.

    Example:
        >>> grid = Grid((1, 1), 4, 4, torch.device("cpu"))
        >>> mask_of(operation("ge", _QUERY, _KEY, dtype=torch.bool), grid)
        Causal(offset=0, align='start')
    """
    masks = [_named(mask) for mask in _conjunction(holds, grid)]
    result = masks[0] if masks else None
    for mask in masks[1:]:
        result = result & mask if result is not None else mask
    return result


def _named(mask: Mask) -> Mask:
    """Return the causal mask under its own name, which algorithms know."""
    causal = isinstance(mask, Interval) and mask.first is None and mask.last == _NEXT
    return Causal() if causal else mask


def _conjunction(holds: Expression, grid: Grid) -> list[Mask]:
    """Return masks that all hold where the condition does; at most one is an interval."""
    masks: list[Mask] = []
    interval = Interval(None, None)
    for part in _parts(holds, "and"):
        condition = _mask(part, grid)
        for mask in [] if condition is None else factors(condition):
            if isinstance(mask, Interval):
                interval = _intersection(interval, mask)
            else:
                masks.append(mask)
    unbounded = interval.first is None and interval.last is None
    return masks if unbounded else [interval, *masks]


def conjuncts(holds: Expression) -> list[Expression]:
    """Return conditions that all hold where this one does.

    Example:
        >>> both = operation("and", operation("ge", _QUERY, _KEY, dtype=torch.bool), number(True), dtype=torch.bool)
        >>> [condition.name for condition in conjuncts(both)]
        ['ge', 'number']
    """
    return _parts(holds, "and")


def joined(conditions: list[Expression]) -> Expression:
    """Return the conjunction of conditions.

    Example:
        >>> joined([number(True), number(False)]).name
        'and'
    """
    condition = conditions[0]
    for factor in conditions[1:]:
        condition = operation("and", condition, factor, dtype=torch.bool)
    return condition


def _parts(holds: Expression, name: str) -> list[Expression]:
    """Return the operands of nested conjunctions or disjunctions."""
    if holds.name in (name, "mul" if name == "and" else name) and holds.dtype == torch.bool:
        return [x for inner in holds.arguments for x in _parts(inner, name)]
    return [holds]


def _mask(holds: Expression, grid: Grid) -> Mask | None:
    value = constant(holds)
    if value is not None:
        return None if value else Interval(None, number(0))
    if holds.name in ("and", "mul") and holds.dtype == torch.bool:
        return _joined(_conjunction(holds, grid), Both)
    if holds.name == "or":
        return _union([_mask(part, grid) for part in _parts(holds, "or")])
    if holds.name == "not":
        return _negated(holds.arguments[0], grid)
    if holds.name == "where" and holds.dtype == torch.bool:
        return _mask(_chosen(*holds.arguments), grid)
    return _simple(holds, grid)


def _chosen(condition: Expression, one: Expression, other: Expression) -> Expression:
    """Return where(condition, one, other) of truth values as a disjunction."""
    yes = operation("and", condition, one, dtype=torch.bool)
    no = operation("and", negation(condition), other, dtype=torch.bool)
    return operation("or", yes, no, dtype=torch.bool)


def _joined(masks: list[Mask], join: Callable[[Mask, Mask], Mask]) -> Mask | None:
    result: Mask | None = None
    for mask in masks:
        result = mask if result is None else join(result, mask)
    return result


def _negated(holds: Expression, grid: Grid) -> Mask | None:
    opposite = negation(holds)
    return _simple(opposite, grid) if opposite.name == "not" else _mask(opposite, grid)


_OPPOSITE = {"ge": "lt", "lt": "ge", "gt": "le", "le": "gt", "eq": "ne", "ne": "eq"}


def negation(holds: Expression) -> Expression:
    """Return the opposite of a condition, with `not` moved inward."""
    boolean = torch.bool
    if holds.name == "not":
        operand: Expression = holds.arguments[0]
        return operand
    if holds.name in ("and", "or"):
        one, other = map(negation, holds.arguments)
        return operation("or" if holds.name == "and" else "and", one, other, dtype=boolean)
    # NaN is neither below nor above a number.
    if holds.name in _OPPOSITE and all(is_exact(x) or constant(x) is not None for x in holds.arguments):
        return operation(_OPPOSITE[holds.name], *holds.arguments, dtype=boolean)
    return operation("not", holds, dtype=boolean)


def _simple(holds: Expression, grid: Grid) -> Mask | None:
    """Return a condition that is neither a conjunction nor a disjunction as a mask."""
    if holds.name in ("ge", "gt", "le", "lt", "eq") and (comparison := _comparison(holds, grid)) is not None:
        return comparison
    if "key" not in holds.symbols:
        last = operation("where", holds, number(grid.keys), number(0))
        return Interval(None, last, tensors_of([last]))
    if "query" not in holds.symbols:
        return Dense(per_key(holds, grid).to(torch.bool).unsqueeze(-2))
    return Condition(holds, tensors_of([holds]))


def _comparison(holds: Expression, grid: Grid) -> Mask | None:
    left, right = holds.arguments
    if holds.name == "eq":
        same = _documents(left, right, grid) or _documents(right, left, grid)
        if same is not None:
            return same
    if "key" not in holds.symbols or not all(is_exact(x) or constant(x) is not None for x in (left, right)):
        return None
    one, other = _rounded(left, right), _rounded(right, left)
    above, below = added(one, other, -1), added(other, one, -1)
    if holds.name == "eq":
        return _joined([x for x in (_sign(above, False, grid), _sign(below, False, grid)) if x is not None], _both)
    return _sign(above if holds.name in ("ge", "gt") else below, holds.name in ("gt", "lt"), grid)


def _rounded(one: Expression, other: Expression) -> Polynomial:
    """Return an operand of a comparison; PyTorch compares a number with integers in float32."""
    value = constant(one)
    if value is None or value == int(value) or torch.float64 in (one.dtype, other.dtype):
        return polynomial(one)
    return {(): torch.tensor(value, dtype=torch.float32, device="cpu").item()}


def _documents(left: Expression, right: Expression, grid: Grid) -> Mask | None:
    """Return f(i) = f(j) for integers as documents."""
    kinds = left.dtype == right.dtype and (left.integral or left.dtype == torch.bool)
    separate = "key" not in left.symbols and "query" not in right.symbols and "query" in left.symbols
    if not kinds or not separate or replaced(left, "query", _KEY) != right or left == _QUERY:
        return None
    queries = _items(per_row(left, grid), grid.queries)
    keys = None if grid.queries == grid.keys else _items(per_key(right, grid), grid.keys)
    return Documents(queries, keys)


def _items(ids: Tensor, count: int) -> Tensor:
    """Return one id for each position; per batch and head where they differ, since documents align from the left."""
    ids = ids.expand(*ids.shape[:-1], count)
    return ids[None] if ids.ndim == 2 else ids


def _sign(difference: Polynomial, strict: bool, grid: Grid) -> Mask | None:
    """Return P ≥ 0, or P > 0, as an interval of keys or a combination of some; None if it is neither."""
    integers = integral(difference)
    return None if integers is None else _non_negative(at_least(integers, strict), grid)


def _non_negative(integers: Polynomial, grid: Grid) -> Mask | None:
    of_key = [monomial for monomial in integers if any("key" in atom.symbols for atom in monomial)]
    if not of_key:
        return _integer_rows(integers, grid)
    if len(of_key) != 1 or len(of_key[0]) != 1:
        return None
    atom, factor = of_key[0][0], int(integers[of_key[0]])
    rest = {monomial: x for monomial, x in integers.items() if monomial != of_key[0]}
    if atom.name == "key":
        return _interval(factor, rest)
    if atom.name == "abs":
        inner = polynomial(atom.arguments[0])
        return _choice([inner, added({}, inner, -1)], factor, rest, grid, any_=factor > 0)
    if atom.name in ("min", "max") and all(map(is_exact, atom.arguments)):
        inner_ = [polynomial(x) for x in atom.arguments]
        return _choice(inner_, factor, rest, grid, any_=(factor > 0) == (atom.name == "max"))
    return _division(atom, factor, rest, grid)


def _integer_rows(integers: Polynomial, grid: Grid) -> Interval:
    """Return P ≥ 0 as an interval where no key occurs: all or nothing of a row."""
    if not any(integers):
        return Interval(None, None if integers.get((), 0) >= 0 else number(0))
    holds = operation("ge", rebuilt(integers), number(0), dtype=torch.bool)
    last = operation("where", holds, number(grid.keys), number(0))
    return Interval(None, last, tensors_of([last]))


def _choice(options: list[Polynomial], factor: int, rest: Polynomial, grid: Grid, any_: bool) -> Mask | None:
    masks: list[Mask] = []
    for option in options:
        mask = _sign(added(rest, option, factor), False, grid)
        if mask is None:
            return None
        masks.append(mask)
    return (_union(list(masks)) or Interval(None, None)) if any_ else _joined(masks, _both)


def _division(atom: Expression, factor: int, rest: Polynomial, grid: Grid) -> Mask | None:
    """Return ±⌊x/n⌋ + R ≥ 0: x ≥ −Rn, or x ≤ Rn + n − 1."""
    if atom.name != "floordiv" or abs(factor) != 1 or not is_exact(atom.arguments[0]):
        return None
    divisor = constant(atom.arguments[1])
    if not isinstance(divisor, int) or divisor <= 0 or depends(rest, "key"):
        return None
    limit = added({}, rest, divisor)
    limit = limit if factor > 0 else added(limit, {(): divisor - 1})
    return _sign(added(limit, polynomial(atom.arguments[0]), factor), False, grid)


def _interval(factor: int, rest: Polynomial) -> Interval:
    """Return the keys j for which factor·j + R ≥ 0."""
    limit = rebuilt(rest)
    if abs(factor) > 1:
        limit = operation("floordiv", limit, number(abs(factor)))
    if factor > 0:
        first = operation("neg", limit)
        return Interval(first, None, tensors_of([first]))
    last = rebuilt(added(rest, {(): 1})) if factor == -1 else operation("add", limit, number(1))
    return Interval(None, last, tensors_of([last]))


def _intersection(one: Interval, other: Interval) -> Interval:
    first, last = _meet("max", one.first, other.first), _meet("min", one.last, other.last)
    return Interval(first, last, tensors_of([first, last]))


def _meet(name: str, one: Expression | None, other: Expression | None) -> Expression | None:
    if one is None or other is None or one == other:
        return one if other is None else other
    return operation(name, one, other)


def _both(one: Mask, other: Mask) -> Mask:
    both = isinstance(one, Interval) and isinstance(other, Interval)
    return _intersection(one, other) if both else Both(one, other)  # type: ignore[arg-type]


def _union(masks: list[Mask | None]) -> Mask | None:
    """Return the union; one-sided intervals on the same side become one."""
    if any(mask is None or (isinstance(mask, Interval) and mask.first is None and mask.last is None) for mask in masks):
        return None
    masks_by: dict[str, Mask] = {}
    others: list[Mask] = []
    for mask in masks:
        assert mask is not None
        side = _side(mask)
        if side is None:
            others.append(mask)
        else:
            masks_by[side] = _wider(masks_by[side], mask, side) if side in masks_by else mask
    return _joined([*masks_by.values(), *others], Either)


def _side(mask: Mask) -> str | None:
    if not isinstance(mask, Interval):
        return None
    return "last" if mask.first is None else "first" if mask.last is None else None


def _wider(one: Mask, other: Mask, side: str) -> Mask:
    assert isinstance(one, Interval)
    assert isinstance(other, Interval)
    if side == "last":
        last = _meet("max", one.last, other.last)
        return Interval(None, last, tensors_of([last]))
    first = _meet("min", one.first, other.first)
    return Interval(first, None, tensors_of([first]))
