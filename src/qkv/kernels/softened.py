"""Softmax of a row and its gradient, register by register: of few keys no loop of Numba would fill any.

A row's scores lie in whole registers; what lies before `first` and from `last` on is hidden.
"""

# mypy: ignore-errors
# Numba's signatures are the types here.

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from qkv.kernels import tile
from qkv.kernels.compiled import helper
from qkv.kernels.tables import LANES, N0, N1, ROUND

ZERO, ONE = np.float32(0), np.float32(1)
_FLOAT, _INT = ir.FloatType(), ir.IntType(32)
REGISTER, _INTS = ir.VectorType(_FLOAT, ROUND), ir.VectorType(_INT, ROUND)
_LEAST, _LOG2E, _SHIFT, _EXPONENT = -87.0, 1.4426950408889634, 1.5 * 2**23, 127 << 23
# 2^f = 1 + f (E1 + f (E2 + …)) within 2.2e-8 of itself for |f| ≤ ½, as in `qkv.kernels.tanh_itself`.
_POWERS = (0.69314718, 0.24022649, 0.05550357, 0.0096182376, 0.0013390735, 0.00015403512)


def every(number):
    """A register of a number that is known before; rounded as LLVM wants it written."""
    return ir.Constant(REGISTER, [float(np.float32(number))] * ROUND)


def _ints(number):
    return ir.Constant(_INTS, [number] * ROUND)


def fma(builder, a, b, c):
    """a·b + c."""
    return builder.fadd(builder.fmul(a, b, flags=("contract",)), c, flags=("contract",))


def exp(builder, x):
    """e^x for x ≤ 0, within 1.5 units of the last place and |x|/16 more; exactly 0 below e^−87; NaN stays NaN.

    e^x = 2^n·2^f with n + f = x·log₂e, and a polynomial for 2^f.
    """
    low = builder.fcmp_ordered("<", x, every(_LEAST))
    y = builder.fmul(builder.select(low, every(_LEAST), x), every(_LOG2E))
    # Its last bits are those of n: so large a number has no fraction.
    shifted = builder.fadd(y, every(_SHIFT))
    f = builder.fsub(y, builder.fsub(shifted, every(_SHIFT)))
    p = every(_POWERS[-1])
    for power in (*_POWERS[-2::-1], 1.0):
        p = fma(builder, p, f, every(power))
    n = builder.shl(builder.bitcast(shifted, _INTS), _ints(23))
    e = builder.fmul(p, builder.bitcast(builder.add(n, _ints(_EXPONENT)), REGISTER))
    return builder.select(low, every(0.0), e)


def _seen(builder, k, first, last):
    """Which numbers of the register from k on lie between first and last."""
    narrow = [builder.trunc(x, _INT) for x in (k, first, last)]
    k, first, last = (tile.spread(builder, x, _INTS) for x in narrow)
    place = builder.sub(builder.add(k, ir.Constant(_INTS, list(range(ROUND)))), first)
    return builder.icmp_unsigned("<", place, builder.sub(last, first))


def data(context, builder, signature, given, place):
    """A pointer to where an array's numbers begin for a row."""
    array = context.make_array(signature.args[place])(context, builder, given[place])
    return builder.gep(array.data, [given[place + 1]])


@intrinsic
def _largest(_, s, at, low, high, first, last, scale):
    """s ← scale·s where it is seen, else −∞; the largest of these that is not NaN."""

    def make(context, builder, signature, given):
        s, (low, high, first, last, scale) = data(context, builder, signature, given, 0), given[2:]
        scale = tile.spread(builder, scale, REGISTER)

        def turn(k, carried):
            # Scaled first: a scale may be negative.
            place = builder.gep(s, [k])
            x = builder.fmul(tile.load(builder, place, REGISTER), scale)
            x = builder.select(_seen(builder, k, first, last), x, every(-np.inf))
            tile.store(builder, x, place)
            return [builder.select(builder.fcmp_ordered(">", x, carried[0]), x, carried[0])]

        (top,) = tile.loop(builder, low, high, ROUND, [every(-np.inf)], turn)
        return tile.together(builder, top, lambda x, y: builder.select(builder.fcmp_ordered(">", x, y), x, y))

    return types.float32(s, at, low, high, first, last, scale), make


@intrinsic
def _exponentials(_, s, at, low, high, base):
    """s ← e^(s − base), and their sum."""

    def make(context, builder, signature, given):
        s, (low, high, base) = data(context, builder, signature, given, 0), given[2:]
        base = tile.spread(builder, base, REGISTER)

        def turn(k, carried):
            place = builder.gep(s, [k])
            e = exp(builder, builder.fsub(tile.load(builder, place, REGISTER), base))
            tile.store(builder, e, place)
            return [builder.fadd(carried[0], e)]

        (total,) = tile.loop(builder, low, high, ROUND, [every(0.0)], turn)
        return tile.together(builder, total, builder.fadd)

    return types.float32(s, at, low, high, base), make


@intrinsic
def _multiply(_, s, at, low, high, by):
    """s ← by·s."""

    def make(context, builder, signature, given):
        s, (low, high, by) = data(context, builder, signature, given, 0), given[2:]
        by = tile.spread(builder, by, REGISTER)

        def turn(k, _):
            place = builder.gep(s, [k])
            tile.store(builder, builder.fmul(tile.load(builder, place, REGISTER), by), place)
            return []

        tile.loop(builder, low, high, ROUND, [], turn)
        return context.get_dummy_value()

    return types.void(s, at, low, high, by), make


@intrinsic
def _level(_, w, at, d, to, low, high, first, last):
    """Σ wd over what is seen; d ← 0 elsewhere."""

    def make(context, builder, signature, given):
        w, d = (data(context, builder, signature, given, place) for place in (0, 2))
        low, high, first, last = given[4:]

        def turn(k, carried):
            place = builder.gep(d, [k])
            x = builder.select(_seen(builder, k, first, last), tile.load(builder, place, REGISTER), every(0.0))
            tile.store(builder, x, place)
            return [fma(builder, tile.load(builder, builder.gep(w, [k]), REGISTER), x, carried[0])]

        (total,) = tile.loop(builder, low, high, ROUND, [every(0.0)], turn)
        return tile.together(builder, total, builder.fadd)

    return types.float32(w, at, d, to, low, high, first, last), make


@intrinsic
def _slopes(_, w, at, d, to, low, high, first, last, level, scale):
    """d ← scale·w(d − level) where it is seen, else 0, whatever the level is."""

    def make(context, builder, signature, given):
        w, d = (data(context, builder, signature, given, place) for place in (0, 2))
        low, high, first, last, level, scale = given[4:]
        level, scale = (tile.spread(builder, x, REGISTER) for x in (level, scale))

        def turn(k, _):
            place = builder.gep(d, [k])
            apart = builder.fsub(tile.load(builder, place, REGISTER), level)
            weight = tile.load(builder, builder.gep(w, [k]), REGISTER)
            slope = builder.fmul(builder.fmul(weight, apart), scale)
            tile.store(builder, builder.select(_seen(builder, k, first, last), slope, every(0.0)), place)
            return []

        tile.loop(builder, low, high, ROUND, [], turn)
        return context.get_dummy_value()

    return types.void(w, at, d, to, low, high, first, last, level, scale), make


@helper
def _clear(s, at, start, stop):
    for k in range(at + start, at + stop):
        s[k] = ZERO


@helper
def softmax(s, at, first, last, lanes, scale, sink):
    """s ← softmax(scale·s) of what a row sees beside a sink, zeros elsewhere; what was subtracted, and the sum before
    division."""
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
    """d ← scale·w(d − Σwd), the gradient of a row's products; zeros for what is hidden. Gives Σwd."""
    low, high = first // LANES * LANES, (last + LANES - N1) // LANES * LANES
    level = _level(w, at, d, at, low, high, first, last)
    _slopes(w, at, d, at, low, high, first, last, level, scale)
    _clear(d, at, N0, low)
    _clear(d, at, high, lanes)
    return level
