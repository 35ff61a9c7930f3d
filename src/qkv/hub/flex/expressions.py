"""Expressions for what a score or mask function computes from a score and four indices, to evaluate on tiles.

Every expression is a scalar for one pair of a query and a key. Evaluated on tensors of positions that broadcast, it
gives a tile.
"""

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, final

import torch
from torch import Tensor

SYMBOLS = ("batch", "head", "query", "key", "score")
"""What an expression can depend on; the order is not that of a function's arguments."""

Argument = Any
"""An argument of an operation: an expression, a number, a dtype, or None."""


@final
class Captured:
    """A tensor that a function closes over, compared by identity."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Captured) and other.tensor is self.tensor

    def __hash__(self) -> int:
        return id(self.tensor)


@final
class Expression:
    """An operation and its arguments; equal if all of it is equal.

    Attributes:
        name: one of `SYMBOLS`; `number` or `captured`; one of the operations of this module; or `call`, whose first
            argument is the PyTorch operator.
        arguments: of the operation.
        dtype: of the result.
        symbols: the symbols that it depends on.
    """

    __slots__ = ("_hash", "arguments", "dtype", "name", "symbols")

    def __init__(self, name: str, arguments: tuple[Argument, ...], dtype: torch.dtype) -> None:
        self.name, self.arguments, self.dtype = name, arguments, dtype
        symbol = frozenset((name,)) if name in SYMBOLS else frozenset[str]()
        self.symbols: frozenset[str] = symbol.union(*(x.symbols for x in parts(self)))
        self._hash = hash((name, arguments, dtype))

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Expression) or self._hash != other._hash:
            return False
        mine, theirs = (self.name, self.dtype, self.arguments), (other.name, other.dtype, other.arguments)
        return mine == theirs

    def __hash__(self) -> int:
        return self._hash

    @property
    def integral(self) -> bool:
        """Whether it is an integer."""
        return self.dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def parts(expression: Expression) -> Iterable[Expression]:
    """Return the expressions among the arguments."""
    return (x for x in expression.arguments if isinstance(x, Expression))


def symbol(name: str, dtype: torch.dtype = torch.int64) -> Expression:
    """Return a symbol.

    Example:
        >>> symbol("query").symbols
        frozenset({'query'})
    """
    return Expression(name, (), dtype)


def number(value: float | bool) -> Expression:
    """Return a constant."""
    kinds = {bool: torch.bool, int: torch.int64}
    return Expression("number", (value,), kinds.get(type(value), torch.float32))


def captured(tensor: Tensor) -> Expression:
    """Return a tensor that is read; a scalar unless it is only indexed."""
    return Expression("captured", (Captured(tensor),), tensor.dtype)


def operation(name: str, *arguments: Argument, dtype: torch.dtype | None = None) -> Expression:
    """Return an operation; its dtype is by default that of integers, which bounds of masks are made of.

    Example:
        >>> evaluate(operation("add", symbol("query"), number(1)), {"query": torch.arange(3)})
        tensor([1, 2, 3])
    """
    return Expression(name, arguments, torch.int64 if dtype is None else dtype)


def cast(expression: Expression, dtype: torch.dtype) -> Expression:
    """Return an expression in another dtype.

    Example:
        >>> cast(number(1), torch.bool).arguments
        (True,)
    """
    if expression.dtype == dtype:
        return expression
    if expression.name == "number":
        value = expression.arguments[0]
        return Expression("number", (torch.tensor(value, device="cpu").to(dtype).item(),), dtype)
    return Expression("cast", (expression, dtype), dtype)


def constant(expression: Expression) -> float | bool | None:
    """Return the value of a constant that needs no gradient, else None.

    Example:
        >>> constant(captured(torch.tensor(2.5))), constant(captured(torch.ones(3)))
        (2.5, None)
    """
    if expression.name == "number":
        value: float | bool = expression.arguments[0]
        return value
    if expression.name == "captured":
        tensor = expression.arguments[0].tensor
        if tensor.ndim == 0 and not tensor.requires_grad and not tensor.is_complex():
            content: float | bool = tensor.item()
            return content
    if expression.name == "neg" and (inner := constant(expression.arguments[0])) is not None:
        return -inner
    if expression.name == "cast" and expression.dtype.is_floating_point:
        return constant(expression.arguments[0])
    return None


def tensors_of(expressions: Iterable[Expression | None]) -> tuple[Tensor, ...]:
    """Return the tensors that are read, each once."""
    tensors: dict[int, Tensor] = {}
    pending = [x for x in expressions if x is not None]
    visited: set[int] = set()
    while pending:
        expression = pending.pop()
        if id(expression) in visited:
            continue
        visited.add(id(expression))
        if expression.name == "captured":
            tensor = expression.arguments[0].tensor
            tensors[id(tensor)] = tensor
        pending += parts(expression)
    return tuple(tensors.values())


def replaced(expression: Expression, old: str, new: Expression) -> Expression:
    """Return the expression with a symbol replaced.

    Example:
        >>> same = replaced(operation("neg", symbol("query")), "query", symbol("key"))
        >>> same == operation("neg", symbol("key"))
        True
    """
    if expression.name == old:
        return new
    if old not in expression.symbols:
        return expression
    arguments = tuple(replaced(x, old, new) if isinstance(x, Expression) else x for x in expression.arguments)
    return Expression(expression.name, arguments, expression.dtype)


def _least(x: Any, y: Any) -> Any:
    if isinstance(y, Tensor) and isinstance(x, Tensor):
        return torch.minimum(x, y)
    return y.clamp(max=x) if isinstance(y, Tensor) else x.clamp(max=y) if isinstance(x, Tensor) else min(x, y)


def _greatest(x: Any, y: Any) -> Any:
    if isinstance(y, Tensor) and isinstance(x, Tensor):
        return torch.maximum(x, y)
    return y.clamp(min=x) if isinstance(y, Tensor) else x.clamp(min=y) if isinstance(x, Tensor) else max(x, y)


def _where(condition: Any, one: Any, other: Any) -> Tensor:
    return torch.where(
        condition if isinstance(condition, Tensor) else torch.tensor(condition, device="cpu"), one, other
    )


def _read(table: Tensor, *indices: Any) -> Tensor:
    return table[tuple(indices)]


def _outside(table: Tensor, *indices: Any) -> Tensor:
    """Return whether indices leave a table; negative ones count from its end."""
    limits = zip((torch.as_tensor(x, device=table.device) for x in indices), table.shape, strict=True)
    conditions = [(x < -size) | (x >= size) for x, size in limits]
    outside = conditions[0]
    for other in conditions[1:]:
        outside = outside | other
    return outside


def _read_within(table: Tensor, *indices: Any) -> Tensor:
    """Read a table, and 0 beyond its end."""
    outside = _outside(table, *indices)
    zero = table.new_zeros(())
    if table.numel() == 0:
        return zero.expand(outside.shape)
    # Beyond the end it does not matter which entry is read; the gradient of none is touched.
    within = [torch.where(outside, 0, torch.as_tensor(x, device=table.device)) for x in indices]
    return torch.where(outside, zero, table[tuple(within)])


def _called(operator_: Callable[..., Any], *arguments: Any) -> Any:
    *positional, named = arguments
    return operator_(*positional, **dict(named))


_EVALUATED: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "floordiv": operator.floordiv,
    "rem": operator.mod,
    "neg": operator.neg,
    "abs": operator.abs,
    "tanh": torch.tanh,
    "min": _least,
    "max": _greatest,
    "ge": operator.ge,
    "gt": operator.gt,
    "le": operator.le,
    "lt": operator.lt,
    "eq": operator.eq,
    "ne": operator.ne,
    "and": operator.and_,
    "or": operator.or_,
    "not": operator.invert,
    "where": _where,
    "index": _read,
    "guarded": _read_within,
    "outside": _outside,
    "cast": lambda x, dtype: x.to(dtype),
    "tensor": torch.as_tensor,
    "call": _called,
}


def evaluate(expression: Expression, indices: Mapping[str, Tensor]) -> Tensor:
    """Compute an expression for many pairs at once.

    Args:
        expression: what to compute.
        indices: a tensor for each symbol that it depends on; they broadcast with each other.

    Returns:
        A tensor whose shape is what the tensors of its own symbols broadcast to.
    """
    done: dict[int, Any] = {}

    def value(argument: Argument) -> Any:
        if not isinstance(argument, Expression):
            return argument
        if id(argument) not in done:
            done[id(argument)] = _computed(argument, value, indices)
        return done[id(argument)]

    result = value(expression)
    return result if isinstance(result, Tensor) else torch.tensor(result, dtype=expression.dtype, device="cpu")


def _computed(expression: Expression, value: Callable[[Argument], Any], indices: Mapping[str, Tensor]) -> Any:
    if expression.name in SYMBOLS:
        return indices[expression.name]
    if expression.name == "number":
        return expression.arguments[0]
    if expression.name == "captured":
        tensor: Tensor = expression.arguments[0].tensor
        # A scalar tensor is a scalar like any other here: among tiles it would not widen their type.
        return tensor if tensor.ndim else tensor.reshape(1)
    values = [value(x) for x in expression.arguments]
    if not any(isinstance(x, Tensor) for x in values):
        # PyTorch's rules hold for numbers too, such as those of ones_like: 1/0 is infinite, and where chooses.
        first = next((index for index, x in enumerate(values) if isinstance(x, (bool, int, float))), None)
        if first is not None:
            values[first] = _scalar(values[first])
    return _EVALUATED[expression.name](*values)


def _scalar(x: float) -> Tensor:
    """Return a number as a tensor that does not promote the dtype of other tensors."""
    return torch.tensor(x, dtype=torch.float64 if isinstance(x, float) else None, device="cpu")
