"""Shapes and normalizers of a row and their gradients, with explicit vector registers.

Numba vectorizes no loops over few keys.

The scores of a row are padded to whole registers; keys before `first` and from `last` on are masked.
"""

# mypy: ignore-errors
# Numba's signatures are the types here.

import numpy as np

from qkv.algorithms.rowwise.gradients_kernel import _epanechnikov_slope
from qkv.algorithms.rowwise.weights_kernel import (
    BOXCAR,
    GAUSSIAN_SHAPE,
    LINEAR,
    NEGATIVE_HALF,
    _root_power,
)
from qkv.compiled import registers
from qkv.compiled.codegen import intrinsic, ir, types
from qkv.compiled.kernels import helper
from qkv.compiled.register_math import (
    _INT,
    _INTS,
    REGISTER,
    constant,
    exp,
    fma,
    row_pointer,
)
from qkv.compiled.registers import ROUND
from qkv.linalg.small_matmul import LANES, N0, N1

# Exact in float32; a Python float would promote float32 to float64.
ZERO, ONE, HALF = np.float32(0), np.float32(1), np.float32(0.5)


def _seen(builder, k, first, last):
    """Return which lanes of the register that starts at k are in the key range from first to last."""
    narrow = [builder.trunc(x, _INT) for x in (k, first, last)]
    k, first, last = (registers.broadcast(builder, x, _INTS) for x in narrow)
    place = builder.sub(builder.add(k, ir.Constant(_INTS, list(range(ROUND)))), first)
    return builder.icmp_unsigned("<", place, builder.sub(last, first))


@intrinsic
def _largest(_, s, at, low, high, first, last, scale):
    """s ← scale·s where visible, else −∞; return the largest of these that is not NaN."""

    def make(context, builder, signature, arguments):
        s, (low, high, first, last, scale) = row_pointer(context, builder, signature, arguments, 0), arguments[2:]
        scale = registers.broadcast(builder, scale, REGISTER)

        def step(k, carried):
            # Scale before taking the maximum: the scale may be negative.
            pointer = builder.gep(s, [k])
            x = builder.fmul(registers.load(builder, pointer, REGISTER), scale)
            x = builder.select(_seen(builder, k, first, last), x, constant(-np.inf))
            registers.store(builder, x, pointer)
            return [builder.select(builder.fcmp_ordered(">", x, carried[0]), x, carried[0])]

        (top,) = registers.loop(builder, low, high, ROUND, [constant(-np.inf)], step)
        return registers.reduce(builder, top, lambda x, y: builder.select(builder.fcmp_ordered(">", x, y), x, y))

    return types.float32(s, at, low, high, first, last, scale), make


@intrinsic
def _exponentials(_, s, at, low, high, base):
    """s ← e^(s − base); return their sum."""

    def make(context, builder, signature, arguments):
        s, (low, high, base) = row_pointer(context, builder, signature, arguments, 0), arguments[2:]
        base = registers.broadcast(builder, base, REGISTER)

        def step(k, carried):
            pointer = builder.gep(s, [k])
            e = exp(builder, builder.fsub(registers.load(builder, pointer, REGISTER), base))
            registers.store(builder, e, pointer)
            return [builder.fadd(carried[0], e)]

        (total,) = registers.loop(builder, low, high, ROUND, [constant(0.0)], step)
        return registers.reduce(builder, total, builder.fadd)

    return types.float32(s, at, low, high, base), make


@intrinsic
def _multiply(_, s, at, low, high, by):
    """s ← by·s."""

    def make(context, builder, signature, arguments):
        s, (low, high, by) = row_pointer(context, builder, signature, arguments, 0), arguments[2:]
        by = registers.broadcast(builder, by, REGISTER)

        def step(k, _):
            pointer = builder.gep(s, [k])
            registers.store(builder, builder.fmul(registers.load(builder, pointer, REGISTER), by), pointer)
            return []

        registers.loop(builder, low, high, ROUND, [], step)
        return context.get_dummy_value()

    return types.void(s, at, low, high, by), make


@intrinsic
def _weighted_sum(_, w, at, d, to, low, high, first, last):
    """Return Σ wd over the visible keys; d ← 0 elsewhere."""

    def make(context, builder, signature, arguments):
        w, d = (row_pointer(context, builder, signature, arguments, index) for index in (0, 2))
        low, high, first, last = arguments[4:]

        def step(k, carried):
            pointer = builder.gep(d, [k])
            x = builder.select(
                _seen(builder, k, first, last), registers.load(builder, pointer, REGISTER), constant(0.0)
            )
            registers.store(builder, x, pointer)
            return [fma(builder, registers.load(builder, builder.gep(w, [k]), REGISTER), x, carried[0])]

        (total,) = registers.loop(builder, low, high, ROUND, [constant(0.0)], step)
        return registers.reduce(builder, total, builder.fadd)

    return types.float32(w, at, d, to, low, high, first, last), make


@intrinsic
def _score_gradients(_, w, at, d, to, low, high, first, last, mean, scale):
    """d ← scale·w(d − mean) where visible, else 0, even if the mean is not finite."""

    def make(context, builder, signature, arguments):
        w, d = (row_pointer(context, builder, signature, arguments, index) for index in (0, 2))
        low, high, first, last, mean, scale = arguments[4:]
        mean, scale = (registers.broadcast(builder, x, REGISTER) for x in (mean, scale))

        def step(k, _):
            pointer = builder.gep(d, [k])
            difference = builder.fsub(registers.load(builder, pointer, REGISTER), mean)
            weight = registers.load(builder, builder.gep(w, [k]), REGISTER)
            softmax_backward = builder.fmul(builder.fmul(weight, difference), scale)
            registers.store(
                builder, builder.select(_seen(builder, k, first, last), softmax_backward, constant(0.0)), pointer
            )
            return []

        registers.loop(builder, low, high, ROUND, [], step)
        return context.get_dummy_value()

    return types.void(w, at, d, to, low, high, first, last, mean, scale), make


def _apply(step):
    """Return an intrinsic that replaces the numbers of a row, register by register; masked ones become `hidden`.

    Args:
        step: `(builder, x, y, a, b) -> x`, with registers of x and of another row y, and two numbers, broadcast.
    """

    @intrinsic
    def apply(_, x, at, y, other, low, high, first, last, hidden, a, b):
        def make(context, builder, signature, arguments):
            x, y = (row_pointer(context, builder, signature, arguments, index) for index in (0, 2))
            low, high, first, last, *numbers = arguments[4:]
            hidden, a, b = (registers.broadcast(builder, number, REGISTER) for number in numbers)

            def one(k, _):
                pointer = builder.gep(x, [k])
                pair = (registers.load(builder, each, REGISTER) for each in (pointer, builder.gep(y, [k])))
                result = step(builder, *pair, a, b)
                registers.store(builder, builder.select(_seen(builder, k, first, last), result, hidden), pointer)
                return []

            registers.loop(builder, low, high, ROUND, [], one)
            return context.get_dummy_value()

        return types.void(x, at, y, other, low, high, first, last, hidden, a, b), make

    return apply


def _scaled(builder, x, _, scale, __):
    return builder.fmul(x, scale)


def _half_negative(builder, x, y, scale, _):
    return builder.fmul(_scaled(builder, x, y, scale, _), constant(-0.5))


def _gaussian(builder, x, y, scale, _):
    return exp(builder, _half_negative(builder, x, y, scale, _))


def _boxcar(builder, x, y, scale, _):
    x = _scaled(builder, x, y, scale, _)
    step = builder.select(builder.fcmp_ordered("<=", x, constant(1.0)), constant(1.0), constant(0.0))
    return builder.select(builder.fcmp_unordered("uno", x, x), x, step)


def _parabola(builder, x, y, scale, _):
    bump = builder.fsub(constant(1.0), _scaled(builder, x, y, scale, _))
    return builder.select(builder.fcmp_ordered("<", bump, constant(0.0)), constant(0.0), bump)


def _sigmoid(builder, x, _, bias, __):
    x = builder.fadd(x, bias)
    positive = builder.fcmp_ordered(">", x, constant(0.0))
    e = exp(builder, builder.select(positive, builder.fsub(constant(-0.0), x), x))
    return builder.fdiv(builder.select(positive, constant(1.0), e), builder.fadd(constant(1.0), e))


def _divided_difference(builder, x, _, mean, inverse):
    return builder.fmul(builder.fsub(x, mean), inverse)


def _sigmoid_slope(builder, x, w, _, __):
    return builder.fmul(x, builder.fmul(w, builder.fsub(constant(1.0), w)))


def _gaussian_slope(builder, g, x, scale, factor):
    return builder.fmul(g, builder.fmul(_gaussian(builder, x, x, scale, factor), factor))


def _parabola_slope(builder, g, x, scale, factor):
    outside = builder.fcmp_ordered(">=", builder.fmul(x, scale), constant(1.0))
    return builder.select(outside, constant(0.0), builder.fmul(g, factor))


_scale_row, _half_negative_row, _gaussian_row = (_apply(step) for step in (_scaled, _half_negative, _gaussian))
_boxcar_row, _parabola_row, _sigmoid_row = (_apply(step) for step in (_boxcar, _parabola, _sigmoid))
_difference_row, _sigmoid_slope_row = (_apply(step) for step in (_divided_difference, _sigmoid_slope))
_gaussian_slope_row, _parabola_slope_row = (_apply(step) for step in (_gaussian_slope, _parabola_slope))


@intrinsic
def _total(_, s, at, low, high):
    """Return Σs."""

    def make(context, builder, signature, arguments):
        s = row_pointer(context, builder, signature, arguments, 0)

        def step(k, carried):
            return [builder.fadd(carried[0], registers.load(builder, builder.gep(s, [k]), REGISTER))]

        (total,) = registers.loop(builder, *arguments[2:], ROUND, [constant(0.0)], step)
        return registers.reduce(builder, total, builder.fadd)

    return types.float32(s, at, low, high), make


@helper
def shape_row(shape, power, s, at, first, last, scale, hidden):
    """s ← shape(scale·s) over the visible keys, `hidden` in the rest of their registers."""
    low, high = first // LANES * LANES, (last + LANES - N1) // LANES * LANES
    if shape == LINEAR:
        _scale_row(s, at, s, at, low, high, first, last, hidden, scale, ZERO)
    elif shape == NEGATIVE_HALF:
        _half_negative_row(s, at, s, at, low, high, first, last, hidden, scale, ZERO)
    elif shape == GAUSSIAN_SHAPE:
        _gaussian_row(s, at, s, at, low, high, first, last, hidden, scale, ZERO)
    elif shape == BOXCAR:
        _boxcar_row(s, at, s, at, low, high, first, last, hidden, scale, ZERO)
    elif power == 2.0:
        _parabola_row(s, at, s, at, low, high, first, last, hidden, scale, ZERO)
    else:
        _scale_row(s, at, s, at, low, high, first, last, hidden, scale, ZERO)
        for k in range(at + first, at + last):
            y = 1.0 - _root_power(np.float64(s[k]), power)
            s[k] = 0.0 if y < 0.0 else y


@helper
def shape_gradient(shape, power, d, at, x, first, last, scale, factor):
    """d ← factor·d·shape'(scale·x), where x has the products of the row; BOXCAR has no slope."""
    low, high = first // LANES * LANES, (last + LANES - N1) // LANES * LANES
    if shape == LINEAR:
        _scale_row(d, at, d, at, low, high, first, last, ZERO, factor, ZERO)
    elif shape == NEGATIVE_HALF:
        _scale_row(d, at, d, at, low, high, first, last, ZERO, np.float32(HALF * -factor), ZERO)
    elif shape == GAUSSIAN_SHAPE:
        _gaussian_slope_row(d, at, x, N0, low, high, first, last, ZERO, scale, np.float32(HALF * -factor))
    elif shape == BOXCAR:
        _clear(d, at, low, high)
    elif power == 2.0:
        _parabola_slope_row(d, at, x, N0, low, high, first, last, ZERO, scale, -factor)
    else:
        for k in range(first, last):
            d[at + k] = factor * (_epanechnikov_slope(np.float64(x[k] * scale), power) * d[at + k])


@helper
def sum_row(s, at, first, last, padded_keys):
    """s ← s/Σs, zeros elsewhere; return the sum."""
    low, high = first // LANES * LANES, (last + LANES - N1) // LANES * LANES
    total = _total(s, at, low, high)
    scale_row(s, at, first, last, padded_keys, ONE / total if total != 0 else ZERO)
    return total


@helper
def scale_row(s, at, first, last, padded_keys, by):
    """s ← by·s over the visible keys, zeros elsewhere."""
    low, high = first // LANES * LANES, (last + LANES - N1) // LANES * LANES
    _difference_row(s, at, s, at, low, high, first, last, ZERO, ZERO, by)
    _clear(s, at, N0, low)
    _clear(s, at, high, padded_keys)


@helper
def sigmoid_row(s, at, first, last, padded_keys, bias):
    """s ← σ(s + bias) over the visible keys, zeros elsewhere."""
    low, high = first // LANES * LANES, (last + LANES - N1) // LANES * LANES
    _sigmoid_row(s, at, s, at, low, high, first, last, ZERO, bias, ZERO)
    _clear(s, at, N0, low)
    _clear(s, at, high, padded_keys)


@helper
def largest_of(s, at, first, last):
    """Return the largest score that is not NaN; s ← −∞ outside of the visible keys."""
    return _largest(s, at, first // LANES * LANES, (last + LANES - N1) // LANES * LANES, first, last, ONE)


@helper
def sum_gradient(w, d, at, first, last, padded_keys, inverse):
    """d ← (d − Σwd)·inverse over the visible keys, zeros elsewhere: the gradient of scores that were divided."""
    low, high = first // LANES * LANES, (last + LANES - N1) // LANES * LANES
    mean = _weighted_sum(w, at, d, at, low, high, first, last)
    _difference_row(d, at, d, at, low, high, first, last, ZERO, mean, inverse)
    _clear(d, at, N0, low)
    _clear(d, at, high, padded_keys)


@helper
def sigmoid_gradient(w, d, at, first, last, padded_keys):
    """d ← d·w(1 − w) over the visible keys, zeros elsewhere."""
    low, high = first // LANES * LANES, (last + LANES - N1) // LANES * LANES
    _sigmoid_slope_row(d, at, w, at, low, high, first, last, ZERO, ZERO, ZERO)
    _clear(d, at, N0, low)
    _clear(d, at, high, padded_keys)


@helper
def _clear(s, at, start, stop):
    for k in range(at + start, at + stop):
        s[k] = ZERO


@helper
def softmax(s, at, first, last, padded_keys, scale, sink):
    """s ← softmax(scale·s) over the visible keys and a sink, zeros elsewhere.

    Return the maximum, which was subtracted, and the sum before division.
    """
    low, high = first // LANES * LANES, (last + LANES - N1) // LANES * LANES
    top = max(_largest(s, at, low, high, first, last, scale), sink)
    base = top if top > -np.inf else ZERO
    total = _exponentials(s, at, low, high, base)
    if sink != -np.inf:
        total += np.float32(np.exp(sink - base))
    _multiply(s, at, low, high, ONE / total if total != 0 else ZERO)
    _clear(s, at, N0, low)
    _clear(s, at, high, padded_keys)
    return top, total


@helper
def softmax_backward(w, d, at, first, last, padded_keys, scale):
    """d ← scale·w(d − Σwd), the gradient of a row's dot products; zeros for masked keys. Return Σwd."""
    low, high = first // LANES * LANES, (last + LANES - N1) // LANES * LANES
    mean = _weighted_sum(w, at, d, at, low, high, first, last)
    _score_gradients(w, at, d, at, low, high, first, last, mean, scale)
    _clear(d, at, N0, low)
    _clear(d, at, high, padded_keys)
    return mean
