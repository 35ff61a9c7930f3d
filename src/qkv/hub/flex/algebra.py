"""Expressions as polynomials: what two spellings of one function have in common.

A polynomial's atoms are whatever is not a sum, a difference or a product. Integers are exact; of numbers with a
fraction the polynomial is what the equation says, before rounding.
"""

from collections.abc import Iterator
from itertools import product
from math import ceil, floor

import torch

from qkv.hub.flex.expressions import Expression, constant, number, operation, parts

Monomial = tuple[Expression, ...]
Polynomial = dict[Monomial, float]
"""The coefficient of each product of atoms; that of () is the constant."""

_MOST = 32
"""The most monomials; what has more is an atom."""
COMPARISONS = ("ge", "gt", "le", "lt", "eq", "ne")
_EXACT = (torch.int32, torch.int64, torch.float32, torch.float64)
"""The types in which positions are exact."""


def polynomial(expression: Expression) -> Polynomial:
    """Return an expression as a polynomial.

    Example:
        >>> from qkv.hub.flex.expressions import symbol
        >>> i, j = symbol("query"), symbol("key")
        >>> twice = operation("add", i, operation("sub", i, j))
        >>> sorted(polynomial(twice).values())
        [-1, 2]
    """
    value = constant(expression)
    if value is not None:
        return {(): value + 0} if value else {}
    if expression.dtype not in _EXACT:
        return {(expression,): 1}
    expanded = _expanded(expression)
    return {(expression,): 1} if expanded is None or len(expanded) > _MOST else expanded


def _expanded(expression: Expression) -> Polynomial | None:
    name, arguments = expression.name, expression.arguments
    if name in ("add", "sub"):
        return added(polynomial(arguments[0]), polynomial(arguments[1]), 1 if name == "add" else -1)
    if name == "neg":
        return added({}, polynomial(arguments[0]), -1)
    if name == "mul":
        return multiplied(polynomial(arguments[0]), polynomial(arguments[1]))
    if name == "div" and (divisor := constant(arguments[1])):
        return {monomial: factor / divisor for monomial, factor in polynomial(arguments[0]).items()}
    if name == "cast" and _widens(arguments[0].dtype, expression.dtype):
        return polynomial(arguments[0])
    return None


def _widens(one: torch.dtype, other: torch.dtype) -> bool:
    return one in _EXACT and other in _EXACT and (other.is_floating_point or not one.is_floating_point)


def added(one: Polynomial, other: Polynomial, factor: float = 1) -> Polynomial:
    """Return the sum of a polynomial and a multiple of another."""
    total = dict(one)
    for monomial, x in other.items():
        total[monomial] = total.get(monomial, 0) + factor * x
    return {monomial: x for monomial, x in total.items() if x}


def multiplied(one: Polynomial, other: Polynomial) -> Polynomial:
    """Return the product of two polynomials."""
    total: Polynomial = {}
    for (left, x), (right, y) in product(one.items(), other.items()):
        monomial = tuple(sorted((*left, *right), key=hash))
        total[monomial] = total.get(monomial, 0) + x * y
    return {monomial: x for monomial, x in total.items() if x}


def depends(polynomial_: Polynomial, symbol: str) -> bool:
    """Return whether a symbol occurs in a polynomial."""
    return any(symbol in atom.symbols for monomial in polynomial_ for atom in monomial)


def integral(polynomial_: Polynomial) -> Polynomial | None:
    """Return the polynomial with integers as coefficients, whose value is an integer; None if it may be a fraction.

    The constant may be a fraction; it stays as it is.
    """
    for monomial, factor in polynomial_.items():
        if monomial and (factor != int(factor) or not all(atom.integral for atom in monomial)):
            return None
    return {monomial: int(factor) if monomial else factor for monomial, factor in polynomial_.items()}


def rebuilt(polynomial_: Polynomial) -> Expression:
    """Return a polynomial of integers, with its constant rounded down, as an expression.

    Example:
        >>> rebuilt({(): 2.5}).arguments
        (2,)
    """
    total = number(floor(polynomial_.get((), 0)))
    for monomial, factor in polynomial_.items():
        if monomial:
            term = _limited(monomial[0])
            for atom in monomial[1:]:
                term = operation("mul", term, _limited(atom))
            term = term if factor == 1 else operation("mul", term, number(int(factor)))
            total = term if total == number(0) else operation("add", term, total)
    return total


_FAR = 1 << 40
"""Beyond any position; products and sums with positions stay far from the limits of int64."""


def _limited(atom: Expression) -> Expression:
    """Return an integer that was read from a tensor, within limits that change no comparison with positions."""
    if atom.name in ("query", "key", "batch", "head"):
        return atom
    wide = operation("cast", atom, torch.int64)
    return operation("min", operation("max", wide, number(-_FAR)), number(_FAR))


def is_exact(expression: Expression) -> bool:
    """Return whether an expression is computed from integers by sums and products without rounding."""
    if expression.name in ("add", "sub", "mul", "neg"):
        return expression.dtype in _EXACT and all(map(is_exact, parts(expression)))
    if expression.name == "cast":
        inner: Expression = expression.arguments[0]
        return is_exact(inner) and _widens(inner.dtype, expression.dtype)
    value = constant(expression)
    return expression.integral if value is None else abs(value) < _FAR and value == int(value)


def is_relative(expression: Expression) -> bool:
    """Return whether an expression depends on query and key through their distance alone.

    Example:
        >>> from qkv.hub.flex.expressions import symbol
        >>> i, j = symbol("query"), symbol("key")
        >>> is_relative(operation("abs", operation("sub", i, j))), is_relative(operation("abs", i))
        (True, False)
    """
    if not expression.symbols & {"query", "key"}:
        return True
    terms_of = polynomial(expression)
    if terms_of == {(expression,): 1}:
        inner = list(parts(expression))
        if expression.name in COMPARISONS and all(map(is_exact, inner)):
            return is_relative(operation("sub", *inner))
        return bool(inner) and expression.name != "score" and all(map(is_relative, inner))
    # With query = key − distance, the key must cancel.
    distance = Expression("captured", ("distance",), torch.int64)
    total: Polynomial = {}
    for monomial, factor in terms_of.items():
        term: Polynomial = {(): factor}
        for atom in monomial:
            if atom.name == "query":
                term = multiplied(term, {_key_of(monomial): 1, (distance,): -1})
            elif atom.name == "key" or is_relative(atom):
                term = multiplied(term, {(atom,): 1})
            else:
                return False
        total = added(total, term)
    return not any(atom.name == "key" for monomial in total for atom in monomial)


def _key_of(monomial: Monomial) -> Monomial:
    query = next(atom for atom in monomial if atom.name == "query")
    return (Expression("key", (), query.dtype),)


def terms(expression: Expression, sign: int = 1) -> Iterator[tuple[int, Expression]]:
    """Iterate over the terms of a sum, each with its sign; a sum in half precision is one term, as it is rounded."""
    if expression.name == "neg":
        yield from terms(expression.arguments[0], -sign)
    elif expression.name in ("add", "sub") and expression.dtype in _EXACT:
        yield from terms(expression.arguments[0], sign)
        yield from terms(expression.arguments[1], sign if expression.name == "add" else -sign)
    else:
        yield sign, expression


def at_least(polynomial_: Polynomial, strict: bool) -> Polynomial:
    """Return the polynomial P' of integers for which P' ≥ 0 says the same as P ≥ 0, or P > 0 where strict."""
    shift = polynomial_.get((), 0)
    shift = ceil(shift) - 1 if strict else floor(shift)
    rest = {monomial: factor for monomial, factor in polynomial_.items() if monomial}
    return {**rest, (): shift} if shift else rest
