"""Passes over a row in explicit vector registers: shapes and normalizers of scores, and their gradients.

Numba vectorizes no loops over few keys. Every pass is the same loop with another step: it replaces the numbers of a row
over the range of keys that the row sees, and returns a sum or a maximum of the results. Rows are padded to whole
registers; other keys in these registers get a given number, and those outside of them 0.
"""

# mypy: ignore-errors
# Numba's signatures are the types here.

from typing import Any, NamedTuple

import numpy as np

from qkv.algorithms.rowwise.gradients_kernel import _epanechnikov_slope
from qkv.algorithms.rowwise.weights_kernel import (
    BOXCAR,
    EPANECHNIKOV,
    GAUSSIAN_SHAPE,
    LINEAR,
    NEGATIVE_HALF,
    _root_power,
)
from qkv.compiled import registers
from qkv.compiled.codegen import intrinsic, ir, types
from qkv.compiled.kernels import helper
from qkv.compiled.register_math import _INT, _INTS, REGISTER, constant, exp, fma, row_pointer, tanh
from qkv.compiled.registers import ROUND
from qkv.linalg.padded_rows import clear, round_up
from qkv.linalg.small_matmul import LANES, N0

SOFTCAP, LEAKY = 5, 6
# Exact in float32; a Python float would promote float32 to float64.
ZERO, ONE, HALF = np.float32(0), np.float32(1), np.float32(0.5)


class Fold(NamedTuple):
    """What a pass returns.

    Attributes:
        start: the number before the first key.
        add: `(builder, total, x, y) -> total`, with registers of the results and of the other row.
        join: `(builder, total, total) -> total`.
    """

    start: float
    add: Any
    join: Any


def _larger(builder, x, y):
    """Return the larger number, and y if x is NaN."""
    return builder.select(builder.fcmp_ordered(">", x, y), x, y)


def _sum(builder, x, y):
    return builder.fadd(x, y)


SUM = Fold(0.0, lambda builder, total, x, _: builder.fadd(total, x), _sum)
_DOT = Fold(0.0, lambda builder, total, x, y: fma(builder, y, x, total), _sum)
_LARGEST = Fold(-np.inf, lambda builder, total, x, _: _larger(builder, x, total), _larger)


def _seen(builder, k, first, last):
    """Return which lanes of the register that starts at k are in the key range from first to last."""
    k, first, last = (registers.broadcast(builder, builder.trunc(x, _INT), _INTS) for x in (k, first, last))
    place = builder.sub(builder.add(k, ir.Constant(_INTS, list(range(ROUND)))), first)
    return builder.icmp_unsigned("<", place, builder.sub(last, first))


def row_pass(step, fold=None):
    """Return a function that replaces the numbers of a row, x ← step(x), and folds them; 0 without a fold.

    Args:
        step: `(builder, x, y, a, b) -> x`, with registers of x and of another row y, and two numbers, broadcast.
        fold: what the function returns.

    The function takes x and where the row begins in it, y likewise, the first key and the one after the last, the size
    of the row, what other keys in their registers get, and a and b.
    """

    @intrinsic
    def over_registers(_, x, at, y, other, low, high, first, last, hidden, a, b):
        def make(context, builder, signature, arguments):
            x, y = (row_pointer(context, builder, signature, arguments, index) for index in (0, 2))
            low, high, first, last, *numbers = arguments[4:]
            hidden, a, b = (registers.broadcast(builder, number, REGISTER) for number in numbers)

            def one(k, totals):
                pointer = builder.gep(x, [k])
                pair = [registers.load(builder, part, REGISTER) for part in (pointer, builder.gep(y, [k]))]
                result = builder.select(_seen(builder, k, first, last), step(builder, *pair, a, b), hidden)
                registers.store(builder, result, pointer)
                return [fold.add(builder, total, result, pair[1]) for total in totals]

            start = [] if fold is None else [constant(fold.start)]
            totals = registers.loop(builder, low, high, ROUND, start, one)
            if fold is None:
                return context.get_constant(types.float32, 0.0)
            return registers.reduce(builder, totals[0], lambda x, y: fold.join(builder, x, y))

        return types.float32(x, at, y, other, low, high, first, last, hidden, a, b), make

    @helper
    def over_row(x, at, y, other, first, last, size, hidden, a, b):
        low, high = first // LANES * LANES, round_up(last)
        result = over_registers(x, at, y, other, low, high, first, last, hidden, a, b)
        clear(x, at, at + low)
        clear(x, at + high, at + size)
        return result

    return over_row


def _times(builder, x, _, a, __):
    return builder.fmul(x, a)


def _half_negative(builder, x, _, scale, __):
    return builder.fmul(builder.fmul(x, scale), constant(-0.5))


def gaussian(builder, x, y, scale, _):
    """Return e^(−scale·x/2)."""
    return exp(builder, _half_negative(builder, x, y, scale, _))


def boxcar(builder, x, _, scale, __):
    """Return 1 for scale·x ≤ 1, else 0; NaN stays NaN."""
    x = builder.fmul(x, scale)
    step = builder.select(builder.fcmp_ordered("<=", x, constant(1.0)), constant(1.0), constant(0.0))
    return builder.select(builder.fcmp_unordered("uno", x, x), x, step)


def parabola(builder, x, _, scale, __):
    """Return max(0, 1 − scale·x)."""
    bump = builder.fsub(constant(1.0), builder.fmul(x, scale))
    return builder.select(builder.fcmp_ordered("<", bump, constant(0.0)), constant(0.0), bump)


def _softcap(builder, x, _, scale, cap):
    return builder.fmul(cap, tanh(builder, builder.fmul(x, scale)))


def _leaky(builder, x, _, scale, slope):
    x = builder.fmul(x, scale)
    # −∞ times a slope of 0 would be NaN.
    none = builder.fcmp_ordered("==", slope, constant(0.0))
    below = builder.select(none, constant(0.0), builder.fmul(x, slope))
    return builder.select(builder.fcmp_unordered(">", x, constant(0.0)), x, below)


def _sigmoid(builder, x, _, bias, __):
    x = builder.fadd(x, bias)
    positive = builder.fcmp_ordered(">", x, constant(0.0))
    e = exp(builder, builder.select(positive, builder.fsub(constant(-0.0), x), x))
    return builder.fdiv(builder.select(positive, constant(1.0), e), builder.fadd(constant(1.0), e))


def _exponential(builder, x, _, base, __):
    return exp(builder, builder.fsub(x, base))


def _divided_difference(builder, g, _, mean, inverse):
    return builder.fmul(builder.fsub(g, mean), inverse)


def _softmax_slope(builder, g, w, mean, _):
    return builder.fmul(w, builder.fsub(g, mean))


def _sigmoid_slope(builder, g, w, _, __):
    return builder.fmul(g, builder.fmul(w, builder.fsub(constant(1.0), w)))


def _gaussian_slope(builder, g, x, scale, factor):
    return builder.fmul(g, builder.fmul(gaussian(builder, x, x, scale, factor), factor))


def _parabola_slope(builder, g, x, scale, factor):
    outside = builder.fcmp_ordered(">=", builder.fmul(x, scale), constant(1.0))
    return builder.select(outside, constant(0.0), builder.fmul(g, factor))


def _softcap_slope(builder, g, x, scale, factor):
    t = tanh(builder, builder.fmul(x, scale))
    return builder.fmul(builder.fmul(g, factor), builder.fsub(constant(1.0), builder.fmul(t, t)))


def _leaky_slope(builder, g, x, slope, factor):
    g = builder.fmul(g, factor)
    return builder.select(builder.fcmp_ordered(">", x, constant(0.0)), g, builder.fmul(g, slope))


multiply_row, _half_negative_row, _sigmoid_row = (row_pass(step) for step in (_times, _half_negative, _sigmoid))
_gaussian_row, _boxcar_row, _parabola_row = (row_pass(step) for step in (gaussian, boxcar, parabola))
_softcap_row, _leaky_row = (row_pass(step) for step in (_softcap, _leaky))
_gaussian_slope_row, _parabola_slope_row = (row_pass(step) for step in (_gaussian_slope, _parabola_slope))
_softcap_slope_row, _leaky_slope_row = (row_pass(step) for step in (_softcap_slope, _leaky_slope))
_softmax_slope_row, sigmoid_slope_row = (row_pass(step) for step in (_softmax_slope, _sigmoid_slope))
_difference_row = row_pass(_divided_difference)
_exponential_sum, _sum_row = row_pass(_exponential, SUM), row_pass(_times, SUM)
_largest_row, _weighted_sum = row_pass(_times, _LARGEST), row_pass(_times, _DOT)


@helper
def shape_row(shape, number, s, at, first, last, size, scale, hidden):
    """s ← shape(scale·s) over the visible keys; `number` is the power, the cap or the slope."""
    if shape == LINEAR:
        multiply_row(s, at, s, at, first, last, size, hidden, scale, ZERO)
    elif shape == NEGATIVE_HALF:
        _half_negative_row(s, at, s, at, first, last, size, hidden, scale, ZERO)
    elif shape == GAUSSIAN_SHAPE:
        _gaussian_row(s, at, s, at, first, last, size, hidden, scale, ZERO)
    elif shape == BOXCAR:
        _boxcar_row(s, at, s, at, first, last, size, hidden, scale, ZERO)
    elif shape == SOFTCAP:
        _softcap_row(s, at, s, at, first, last, size, hidden, np.float32(scale / number), np.float32(number))
    elif shape == LEAKY:
        _leaky_row(s, at, s, at, first, last, size, hidden, scale, np.float32(number))
    elif number == 2.0:
        _parabola_row(s, at, s, at, first, last, size, hidden, scale, ZERO)
    else:
        multiply_row(s, at, s, at, first, last, size, hidden, scale, ZERO)
        for k in range(at + first, at + last):
            y = 1.0 - _root_power(np.float64(s[k]), number)
            s[k] = 0.0 if y < 0.0 else y


@helper
def shape_gradient(shape, number, d, at, x, first, last, size, scale, factor):
    """d ← factor·d·shape'(scale·x), where x has the products of the row; BOXCAR has no slope, LEAKY scale 1."""
    if shape == LINEAR:
        multiply_row(d, at, d, at, first, last, size, ZERO, factor, ZERO)
    elif shape == NEGATIVE_HALF:
        multiply_row(d, at, d, at, first, last, size, ZERO, np.float32(HALF * -factor), ZERO)
    elif shape == GAUSSIAN_SHAPE:
        _gaussian_slope_row(d, at, x, N0, first, last, size, ZERO, scale, np.float32(HALF * -factor))
    elif shape == SOFTCAP:
        _softcap_slope_row(d, at, x, N0, first, last, size, ZERO, np.float32(scale / number), factor)
    elif shape == LEAKY:
        _leaky_slope_row(d, at, x, N0, first, last, size, ZERO, np.float32(number), factor)
    elif shape == EPANECHNIKOV and number == 2.0:
        _parabola_slope_row(d, at, x, N0, first, last, size, ZERO, scale, -factor)
    elif shape == EPANECHNIKOV:
        for k in range(first, last):
            d[at + k] = factor * (_epanechnikov_slope(np.float64(x[k] * scale), number) * d[at + k])
    else:
        clear(d, at, at + size)


@helper
def largest_of(s, at, first, last, size):
    """Return the largest score that is not NaN; s ← −∞ for other keys in their registers."""
    return _largest_row(s, at, s, at, first, last, size, np.float32(-np.inf), ONE, ZERO)


@helper
def softmax(s, at, first, last, size, sink):
    """s ← softmax(s) over the visible keys and a sink; return the maximum and the sum of exponentials."""
    top = max(largest_of(s, at, first, last, size), sink)
    base = top if top > -np.inf else ZERO
    total = _exponential_sum(s, at, s, at, first, last, size, ZERO, base, ZERO)
    if sink != -np.inf:
        total += np.float32(np.exp(sink - base))
    multiply_row(s, at, s, at, first, last, size, ZERO, ONE / total if total != 0 else ZERO, ZERO)
    return top, total


@helper
def softmax_gradient(w, d, at, first, last, size):
    """d ← w(d − Σwd) over the visible keys; return Σwd."""
    mean = _weighted_sum(d, at, w, at, first, last, size, ZERO, ONE, ZERO)
    _softmax_slope_row(d, at, w, at, first, last, size, ZERO, mean, ZERO)
    return mean


@helper
def divide_by_sum(s, at, first, last, size):
    """s ← s/Σs over the visible keys; return the sum."""
    total = _sum_row(s, at, s, at, first, last, size, ZERO, ONE, ZERO)
    multiply_row(s, at, s, at, first, last, size, ZERO, ONE / total if total != 0 else ZERO, ZERO)
    return total


@helper
def quotient_gradient(w, d, at, first, last, size, inverse):
    """d ← (d − Σwd)·inverse over the visible keys: the gradient of scores that were divided by their sum."""
    mean = _weighted_sum(d, at, w, at, first, last, size, ZERO, ONE, ZERO)
    _difference_row(d, at, d, at, first, last, size, ZERO, mean, inverse)


@helper
def sigmoid_row(s, at, first, last, size, bias):
    """s ← σ(s + bias) over the visible keys."""
    _sigmoid_row(s, at, s, at, first, last, size, ZERO, bias, ZERO)


@intrinsic
def _tanh_gradient(_, g, x, k, y, d_k, of_k, low, high, q, at, d_v, to):
    """Add g v(1 − t²) without v to 16 features of the keys from low to high, replace those of a query, and add Σ gt.

    With t = tanh(q + k): the features of key i lie in k and d_k at `y + i·of_k`, its gradient in g at `x + i`, the
    query's in q at `at`, and those of v in d_v at `to`.
    """

    def make(context, builder, signature, arguments):
        g, k, q, d_v = (row_pointer(context, builder, signature, arguments, i) for i in (0, 2, 8, 10))
        d_k = builder.gep(context.make_array(signature.args[4])(context, builder, arguments[4]).data, [arguments[3]])
        of_k, low, high = arguments[5:8]
        query, zero = registers.load(builder, q, REGISTER), constant(0.0)

        def step(i, sums):
            begin = builder.mul(i, of_k)
            gradient = registers.broadcast(builder, builder.load(builder.gep(g, [i])), REGISTER)
            t = tanh(builder, builder.fadd(query, registers.load(builder, builder.gep(k, [begin]), REGISTER)))
            slope = builder.fmul(gradient, builder.fsub(constant(1.0), builder.fmul(t, t)))
            to_key = builder.gep(d_k, [begin])
            registers.store(builder, builder.fadd(registers.load(builder, to_key, REGISTER), slope), to_key)
            return [builder.fadd(sums[0], slope), fma(builder, gradient, t, sums[1])]

        slopes, products = registers.loop(builder, low, high, 1, [zero, zero], step)
        registers.store(builder, slopes, q)
        registers.store(builder, builder.fadd(registers.load(builder, d_v, REGISTER), products), d_v)
        return context.get_dummy_value()

    return types.void(g, x, k, y, d_k, of_k, low, high, q, at, d_v, to), make


@helper
def tanh_gradients(g, padded_keys, q, k, v, d_k, d_v, width, rows, padded_rows, ends):
    """Compute the gradients of `tanh_to_panels` from those of the scores, g (rows, keys); that of q in its place."""
    clear(d_k, N0, padded_keys * width)
    clear(d_v, N0, width)
    for r in range(rows):
        for j in range(N0, width, LANES):
            low, high = ends[r, 0], ends[r, 1]
            _tanh_gradient(g, r * padded_keys, k, j, d_k, width, low, high, q, r * width + j, d_v, j)
    for r in range(padded_rows):
        for c in range(width):
            q[r * width + c] *= v[c]
    for r in range(padded_keys):
        for c in range(width):
            d_k[r * width + c] *= v[c]
