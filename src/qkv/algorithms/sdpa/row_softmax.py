"""Softmax of a row and its gradient, written with explicit vector registers: Numba's loops over few keys fill none.

The scores of a row are padded to whole registers; keys before `first` and from `last` on are masked.
"""

# mypy: ignore-errors
# Numba's signatures are the types here.

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from qkv.compiled import registers
from qkv.compiled.kernels import helper
from qkv.compiled.register_math import (
    _INT,
    _INTS,
    REGISTER,
    data,
    every,
    exp,
    fma,
)
from qkv.compiled.registers import ROUND
from qkv.linalg.small_matmul import LANES, N0, N1

ZERO, ONE = np.float32(0), np.float32(1)


def _seen(builder, k, first, last):
    """Return which lanes of the register that starts at k are in the key range from first to last."""
    narrow = [builder.trunc(x, _INT) for x in (k, first, last)]
    k, first, last = (registers.spread(builder, x, _INTS) for x in narrow)
    place = builder.sub(builder.add(k, ir.Constant(_INTS, list(range(ROUND)))), first)
    return builder.icmp_unsigned("<", place, builder.sub(last, first))


@intrinsic
def _largest(_, s, at, low, high, first, last, scale):
    """s ← scale·s where visible, else −∞; return the largest of these that is not NaN."""

    def make(context, builder, signature, given):
        s, (low, high, first, last, scale) = data(context, builder, signature, given, 0), given[2:]
        scale = registers.spread(builder, scale, REGISTER)

        def turn(k, carried):
            # Scale before taking the maximum: the scale may be negative.
            place = builder.gep(s, [k])
            x = builder.fmul(registers.load(builder, place, REGISTER), scale)
            x = builder.select(_seen(builder, k, first, last), x, every(-np.inf))
            registers.store(builder, x, place)
            return [builder.select(builder.fcmp_ordered(">", x, carried[0]), x, carried[0])]

        (top,) = registers.loop(builder, low, high, ROUND, [every(-np.inf)], turn)
        return registers.together(builder, top, lambda x, y: builder.select(builder.fcmp_ordered(">", x, y), x, y))

    return types.float32(s, at, low, high, first, last, scale), make


@intrinsic
def _exponentials(_, s, at, low, high, base):
    """s ← e^(s − base); return their sum."""

    def make(context, builder, signature, given):
        s, (low, high, base) = data(context, builder, signature, given, 0), given[2:]
        base = registers.spread(builder, base, REGISTER)

        def turn(k, carried):
            place = builder.gep(s, [k])
            e = exp(builder, builder.fsub(registers.load(builder, place, REGISTER), base))
            registers.store(builder, e, place)
            return [builder.fadd(carried[0], e)]

        (total,) = registers.loop(builder, low, high, ROUND, [every(0.0)], turn)
        return registers.together(builder, total, builder.fadd)

    return types.float32(s, at, low, high, base), make


@intrinsic
def _multiply(_, s, at, low, high, by):
    """s ← by·s."""

    def make(context, builder, signature, given):
        s, (low, high, by) = data(context, builder, signature, given, 0), given[2:]
        by = registers.spread(builder, by, REGISTER)

        def turn(k, _):
            place = builder.gep(s, [k])
            registers.store(builder, builder.fmul(registers.load(builder, place, REGISTER), by), place)
            return []

        registers.loop(builder, low, high, ROUND, [], turn)
        return context.get_dummy_value()

    return types.void(s, at, low, high, by), make


@intrinsic
def _level(_, w, at, d, to, low, high, first, last):
    """Return Σ wd over the visible keys; d ← 0 elsewhere."""

    def make(context, builder, signature, given):
        w, d = (data(context, builder, signature, given, place) for place in (0, 2))
        low, high, first, last = given[4:]

        def turn(k, carried):
            place = builder.gep(d, [k])
            x = builder.select(_seen(builder, k, first, last), registers.load(builder, place, REGISTER), every(0.0))
            registers.store(builder, x, place)
            return [fma(builder, registers.load(builder, builder.gep(w, [k]), REGISTER), x, carried[0])]

        (total,) = registers.loop(builder, low, high, ROUND, [every(0.0)], turn)
        return registers.together(builder, total, builder.fadd)

    return types.float32(w, at, d, to, low, high, first, last), make


@intrinsic
def _slopes(_, w, at, d, to, low, high, first, last, level, scale):
    """d ← scale·w(d − level) where visible, else 0, even if the level is not finite."""

    def make(context, builder, signature, given):
        w, d = (data(context, builder, signature, given, place) for place in (0, 2))
        low, high, first, last, level, scale = given[4:]
        level, scale = (registers.spread(builder, x, REGISTER) for x in (level, scale))

        def turn(k, _):
            place = builder.gep(d, [k])
            apart = builder.fsub(registers.load(builder, place, REGISTER), level)
            weight = registers.load(builder, builder.gep(w, [k]), REGISTER)
            slope = builder.fmul(builder.fmul(weight, apart), scale)
            registers.store(builder, builder.select(_seen(builder, k, first, last), slope, every(0.0)), place)
            return []

        registers.loop(builder, low, high, ROUND, [], turn)
        return context.get_dummy_value()

    return types.void(w, at, d, to, low, high, first, last, level, scale), make


@helper
def _clear(s, at, start, stop):
    for k in range(at + start, at + stop):
        s[k] = ZERO


@helper
def softmax(s, at, first, last, lanes, scale, sink):
    """s ← softmax(scale·s) over the visible keys and a sink, zeros elsewhere; return the maximum, which was subtracted,
    and the sum before division."""
    low, high = first // LANES * LANES, (last + LANES - N1) // LANES * LANES
    top = max(_largest(s, at, low, high, first, last, scale), sink)
    base = top if top > -np.inf else ZERO
    total = _exponentials(s, at, low, high, base)
    if sink != -np.inf:
        total += np.float32(np.exp(sink - base))
    _multiply(s, at, low, high, ONE / total if total != 0 else ZERO)
    _clear(s, at, N0, low)
    _clear(s, at, high, lanes)
    return top, total


@helper
def slope(w, d, at, first, last, lanes, scale):
    """d ← scale·w(d − Σwd), the gradient of a row's dot products; zeros for masked keys. Return Σwd."""
    low, high = first // LANES * LANES, (last + LANES - N1) // LANES * LANES
    level = _level(w, at, d, at, low, high, first, last)
    _slopes(w, at, d, at, low, high, first, last, level, scale)
    _clear(d, at, N0, low)
    _clear(d, at, high, lanes)
    return level
