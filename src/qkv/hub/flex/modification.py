"""A traced score function in the form that fast algorithms take: scale, soft cap, biases, and a mask."""

from dataclasses import dataclass, replace
from math import inf
from typing import final

import torch

from qkv.hub.flex.algebra import terms
from qkv.hub.flex.conditions import negation
from qkv.hub.flex.expressions import Expression, cast, constant, number, operation


@final
@dataclass(frozen=True)
class Modification:
    """The score s becomes shape(scale·s) + Σ biases where the condition holds, and −∞ elsewhere.

    Attributes:
        scale: an expression of batch, head, query and key; one number in most cases.
        rate: None for shape(x) = x; else shape(x) = cap·tanh(rate·s), where `scale` is the cap.
        biases: terms with their signs.
        visible: the condition; None if it always holds.
    """

    scale: Expression
    rate: float | None = None
    biases: tuple[tuple[int, Expression], ...] = ()
    visible: Expression | None = None


_ONE = number(1.0)


def modification(expression: Expression) -> Modification | None:
    """Return what a score function does as a modification.

    Args:
        expression: of score, batch, head, query and key.

    Returns:
        The modification; None for any other function.

    Example:
        >>> from qkv.hub.flex.expressions import symbol
        >>> score, i, j = symbol("score", torch.float32), symbol("query"), symbol("key")
        >>> is_later = operation("lt", i, j, dtype=torch.bool)
        >>> modification(operation("where", is_later, number(-inf), score)).visible.name
        'ge'
        >>> modification(operation("mul", score, score)) is None
        True
    """
    if "score" not in expression.symbols:
        return None
    if expression.name == "score":
        return Modification(_ONE)
    rule = _RULES.get(expression.name)
    return None if rule is None else rule(expression)


def _added(expression: Expression) -> Modification | None:
    one, other = expression.arguments
    sign = -1 if expression.name == "sub" else 1
    if not _has_score(other):
        change = modification(one)
        return None if change is None else _biased(change, other, sign)
    if not _has_score(one):
        change = modification(other)
        change = change if sign > 0 or change is None else _times(change, number(-1.0))
        return None if change is None else _biased(change, one, 1)
    return _sum(modification(one), modification(other), sign)


def _sum(one: Modification | None, other: Modification | None, sign: int) -> Modification | None:
    """Return the sum of two scaled scores."""
    if one is None or other is None or (one.rate, other.rate) != (None, None) or (one.visible or other.visible):
        return None
    scale = operation("add" if sign > 0 else "sub", one.scale, other.scale, dtype=torch.float32)
    biases = tuple((sign * factor, x) for factor, x in other.biases)
    return Modification(_folded(scale), None, (*one.biases, *biases))


def _biased(change: Modification, bias: Expression, sign: int) -> Modification:
    """Add a bias; where a term is −∞ it is a mask."""
    remaining: list[tuple[int, Expression]] = []
    visible = change.visible
    for factor, term in terms(bias, sign):
        split = _as_condition(term) if factor > 0 else None
        if split is None:
            remaining.append((factor, term))
            continue
        condition, rest = split
        visible = condition if visible is None else operation("and", visible, condition, dtype=torch.bool)
        if constant(rest) != 0:
            remaining.append((1, rest))
    return replace(change, biases=(*change.biases, *remaining), visible=visible)


def _as_condition(term: Expression) -> tuple[Expression, Expression] | None:
    """Return the condition and the value of a bias that is −∞ elsewhere."""
    if term.name != "where":
        return None
    condition, one, other = term.arguments
    if constant(other) == -inf:
        return condition, one
    return (negation(condition), other) if constant(one) == -inf else None


def _has_score(expression: Expression) -> bool:
    return "score" in expression.symbols


def _multiplied(expression: Expression) -> Modification | None:
    one, other = expression.arguments
    if _has_score(one) == _has_score(other):
        return None
    change, factor = (modification(one), other) if _has_score(one) else (modification(other), one)
    return None if change is None else _times(change, factor)


def _divided(expression: Expression) -> Modification | None:
    one, other = expression.arguments
    change = None if _has_score(other) else modification(one)
    if change is None:
        return None
    divisor = constant(other)
    factor = operation("div", _ONE, other, dtype=torch.float32) if divisor is None else number(_quotient(divisor))
    return _times(change, factor)


def _quotient(divisor: float) -> float:
    return 1.0 / divisor if divisor else inf


def _times(change: Modification, factor: Expression) -> Modification | None:
    """Multiply by a factor; −∞ must stay what it is."""
    value = constant(factor)
    if change.visible is not None and (value is None or not 0 < value < inf):
        return None
    scale = _folded(operation("mul", change.scale, factor, dtype=torch.float32))
    if value in (1, -1):
        return replace(change, scale=scale, biases=tuple((sign * int(value), x) for sign, x in change.biases))
    biases = tuple((sign, operation("mul", x, factor, dtype=_kind(x, factor))) for sign, x in change.biases)
    return replace(change, scale=scale, biases=biases)


def _kind(one: Expression, other: Expression) -> torch.dtype:
    return torch.promote_types(torch.promote_types(one.dtype, other.dtype), torch.float32)


def _folded(expression: Expression) -> Expression:
    """Compute an operation on numbers."""
    one, other = map(constant, expression.arguments)
    if one is None or other is None:
        return expression
    if expression.name == "mul":
        return number(float(one * other))
    return number(float(one + other if expression.name == "add" else one - other))


def _negated(expression: Expression) -> Modification | None:
    change = modification(expression.arguments[0])
    return None if change is None else _times(change, number(-1.0))


def _tanh(expression: Expression) -> Modification | None:
    change = modification(expression.arguments[0])
    if change is None or change.rate is not None or change.biases or change.visible is not None:
        return None
    rate = constant(change.scale)
    return None if rate is None else Modification(_ONE, float(rate))


def _where(expression: Expression) -> Modification | None:
    condition, one, other = expression.arguments
    if _has_score(condition):
        return None
    if constant(other) == -inf:
        return _restricted(modification(one), condition)
    if constant(one) == -inf:
        return _restricted(modification(other), negation(condition))
    return _chosen(condition, modification(one), modification(other))


def _restricted(change: Modification | None, condition: Expression) -> Modification | None:
    if change is None or change.visible is None:
        return None if change is None else replace(change, visible=condition)
    return replace(change, visible=operation("and", condition, change.visible, dtype=torch.bool))


def _chosen(condition: Expression, one: Modification | None, other: Modification | None) -> Modification | None:
    """Return one modification where the condition holds and another elsewhere, if only bias and mask differ."""
    if one is None or other is None or (one.scale, one.rate) != (other.scale, other.rate):
        return None
    biases = operation("where", condition, _total(one), _total(other), dtype=torch.float32)
    visible = None
    if one.visible is not None or other.visible is not None:
        yes, no = (number(True) if x.visible is None else x.visible for x in (one, other))
        visible = operation("where", condition, yes, no, dtype=torch.bool)
    if not (one.biases or other.biases):
        return replace(one, visible=visible)
    return replace(one, biases=((1, biases),), visible=visible)


def _total(change: Modification) -> Expression:
    """Return the sum of all biases."""
    total = number(0.0)
    for sign, term in change.biases:
        kind = _kind(total, term)
        total = operation("add" if sign > 0 else "sub", total, cast(term, kind), dtype=kind)
    return total


def _cast(expression: Expression) -> Modification | None:
    one, other = expression.arguments[0].dtype, expression.dtype
    lossless = other.is_floating_point and torch.promote_types(one, other) == other
    return modification(expression.arguments[0]) if lossless else None


_RULES = {
    "add": _added,
    "sub": _added,
    "mul": _multiplied,
    "div": _divided,
    "neg": _negated,
    "tanh": _tanh,
    "where": _where,
    "cast": _cast,
}
