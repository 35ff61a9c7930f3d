"""Recognize the operation of a PyTorch function: `a + b`, `torch.add(a, b)` and `a.add(b)` are one."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from qkv.hub.flex.expressions import Argument, Expression, number, operation

Operation = tuple[str, tuple[Argument, ...]] | Expression | None
"""An operation and its arguments; an expression, to be cast; None for anything but an operation on scalars."""
Rule = Callable[..., Operation]


def of(func: Any, arguments: Sequence[Argument], named: Mapping[str, Argument]) -> Operation:
    """Return the operation of a PyTorch function on scalars.

    Args:
        func: the function or operator.
        arguments, named: its arguments, tensors and numbers as expressions.

    Returns:
        The operation and its arguments; an expression of the right value, but maybe of another type; None for a
        function that is not computed pair by pair.

    Example:
        >>> from qkv.hub.flex.expressions import symbol
        >>> i, j = symbol("query"), symbol("key")
        >>> of(torch.subtract, [i, j], {})[0], of(torch.cumsum, [i, 0], {})
        ('sub', None)
    """
    name = _name(func)
    if name == "where":
        return _where(func, *arguments, **named)
    result = _RULES[name](*arguments, **named) if name in _RULES else None
    return _call(func, name, arguments, named) if result is None else result


def _name(func: Any) -> str:
    """Return a function's name without the marks of Python's operators: `sub` for a - b, `rsub` for b - a."""
    if isinstance(func, torch._ops.OpOverload):
        func = func.overloadpacket
    name: str = getattr(func, "__name__", "")
    return name.removeprefix("__").removesuffix("__") if name.startswith("__") else name


def _call(func: Any, name: str, arguments: Sequence[Argument], named: Mapping[str, Argument]) -> Operation:
    """Return the call of any other function that works element by element."""
    fixed = {key: x.arguments[0] if isinstance(x, Expression) else x for key, x in named.items()}
    numbers = all(not isinstance(x, Expression) or x.name == "number" for x in named.values())
    if not numbers or fixed.get("inplace") or not _is_pointwise(func, name) or not all(map(_is_plain, arguments)):
        return None
    return "call", (func, *arguments, tuple(fixed.items()))


def _is_pointwise(func: Any, name: str) -> bool:
    if isinstance(func, torch._ops.OpOverload):
        return torch.Tag.pointwise in func.tags and not func._schema.is_mutable
    from_torch = (getattr(func, "__module__", None) or "torch").startswith("torch")
    packet = getattr(torch.ops.aten, name, None) if from_torch and not name.endswith("_") else None
    return packet is not None and torch.Tag.pointwise in getattr(packet, packet.overloads()[0]).tags


def _is_plain(argument: Argument) -> bool:
    return argument is None or isinstance(argument, (Expression, str, torch.dtype))


def _where(func: Any, *arguments: Argument, **named: Argument) -> Operation:
    """Take `torch.where(condition, input, other)`, which as a method is `input.where(condition, other)`."""
    order = ("input", "condition", "other") if func is Tensor.where else ("condition", "input", "other")
    by_name = {**dict(zip(order, arguments, strict=False)), **named}
    return "where", (by_name["condition"], by_name["input"], by_name["other"])


def _binary(name: str, swapped: bool = False) -> Rule:
    def rule(input: Argument, other: Argument) -> Operation:
        return name, (other, input) if swapped else (input, other)

    return rule


def _unary(name: str) -> Rule:
    def rule(input: Argument) -> Operation:
        return name, (input,)

    return rule


def _sum(name: str, swapped: bool = False) -> Rule:
    """Return the rule of a sum, whose second operand may have a factor."""

    def rule(input: Argument, other: Argument, alpha: Argument = None) -> Operation:
        if alpha is not None and alpha != number(1):
            # torch.rsub(a, b, alpha=2) is b − 2a.
            kind = torch.promote_types((input if swapped else other).dtype, alpha.dtype)
            scaled = operation("mul", input if swapped else other, alpha, dtype=kind)
            return name, (other, scaled) if swapped else (input, scaled)
        return name, (other, input) if swapped else (input, other)

    return rule


def _logical(name: str) -> Rule:
    """Return the rule of an operation on truth values; on integers it is something else."""

    def rule(*arguments: Argument) -> Operation:
        return (
            (name, arguments) if all(isinstance(x, Expression) and x.dtype == torch.bool for x in arguments) else None
        )

    return rule


def _quotient(input: Argument, other: Argument, rounding_mode: str | None = None) -> Operation:
    if rounding_mode == "trunc":
        return None
    return "div" if rounding_mode is None else "floordiv", (input, other)


def _reciprocal(input: Argument) -> Operation:
    return "div", (number(1.0), input)


def _square(input: Argument) -> Operation:
    return "mul", (input, input)


def _power(input: Argument, exponent: Argument) -> Operation:
    return ("mul", (input, input)) if exponent in (number(2), number(2.0)) else None


def _clamp(input: Argument, min: Argument = None, max: Argument = None) -> Operation:
    if min is None or max is None:
        return ("max", (input, min)) if max is None else ("min", (input, max))
    return "min", (operation("max", input, min, dtype=torch.promote_types(input.dtype, min.dtype)), max)


def _clamp_max(input: Argument, max: Argument) -> Operation:
    return "min", (input, max)


def _relu(input: Argument) -> Operation:
    return "max", (input, number(0))


def _filled(input: Argument, mask: Argument, value: Argument) -> Operation:
    return "where", (mask, value, input)


def _same(input: Expression, *kinds: Argument, **named: Argument) -> Operation:
    """Take a conversion: the dtype follows from the result."""
    return input


def _full_like(input: Argument, fill_value: Argument, **named: Argument) -> Operation:
    return fill_value  # type: ignore[no-any-return]


def _new_full(input: Argument, size: Argument, fill_value: Argument, **named: Argument) -> Operation:
    return fill_value  # type: ignore[no-any-return]


def _ones(input: Argument, *size: Argument, **named: Argument) -> Operation:
    return number(1)


def _zeros(input: Argument, *size: Argument, **named: Argument) -> Operation:
    return number(0)


_NAMES: dict[Rule, str] = {
    _sum("add"): "add radd",
    _sum("sub"): "sub subtract",
    _sum("sub", swapped=True): "rsub",
    _binary("mul"): "mul rmul multiply",
    _quotient: "div divide true_divide truediv",
    _binary("div", swapped=True): "rdiv rtruediv",
    _binary("floordiv"): "floordiv floor_divide",
    _binary("floordiv", swapped=True): "rfloordiv",
    _binary("rem"): "remainder mod",
    _binary("rem", swapped=True): "rmod",
    _reciprocal: "reciprocal",
    _square: "square",
    _power: "pow",
    _unary("neg"): "neg negative",
    _unary("abs"): "abs absolute",
    _unary("tanh"): "tanh",
    _binary("min"): "minimum",
    _binary("max"): "maximum",
    _clamp: "clamp clip clamp_min",
    _clamp_max: "clamp_max",
    _relu: "relu",
    _filled: "masked_fill",
    _binary("ge"): "ge greater_equal",
    _binary("gt"): "gt greater",
    _binary("le"): "le less_equal",
    _binary("lt"): "lt less",
    _binary("eq"): "eq",
    _binary("ne"): "ne not_equal",
    _logical("and"): "and rand logical_and bitwise_and",
    _logical("or"): "or ror logical_or bitwise_or",
    _logical("not"): "invert logical_not bitwise_not",
    _logical("ne"): "xor rxor logical_xor bitwise_xor",
    _same: "to type type_as float double half bfloat16 int long bool clone contiguous",
    _full_like: "full_like",
    _new_full: "new_full",
    _ones: "ones_like new_ones",
    _zeros: "zeros_like new_zeros",
}
_RULES: dict[str, Rule] = {name: rule for rule, names in _NAMES.items() for name in names.split()}
