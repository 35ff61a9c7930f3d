"""Compute the weights of a tile from its products, row by row: pointwise shape, bias, mask, normalizer, dropout.

A tile holds L items of h rows and c columns. Products have their own type X: float64 where a distance is a difference
of products, so that a row's maximum is subtracted before anything is rounded to the type F of the weights. A row stays
in the L1 cache between the steps; a PyTorch operator for each step would read and write it in memory each time.
"""

# mypy: ignore-errors
# Numba's signatures are the types here.

import numpy as np

from qkv.compiled.dropout import drop_weights, row_bits
from qkv.compiled.exp import exp_or_zero, exp_single_or_zero
from qkv.compiled.hints import wide_registers
from qkv.compiled.kernels import helper, inlined, kernel
from qkv.compiled.row_loops import copy_row, count_true, hide, largest, sum_of

LINEAR, NEGATIVE_HALF, GAUSSIAN_SHAPE, BOXCAR, EPANECHNIKOV = 0, 1, 2, 3, 4
SOFTMAX, SUM, MEAN, IDENTITY, SCORES = 0, 1, 2, 3, 4
# Exact in both float types; a Python float would promote float32 to float64.
ZERO, ONE, HALF = np.float32(0), np.float32(1), np.float32(0.5)


@helper
def _root_power(x, power):
    """Return x^(power/2)."""
    if power == 2.0:
        return x
    return np.sqrt(x) if power == 1.0 else x ** (0.5 * power)


@helper
def _distances(x, scale, s):
    """s ← max(0, x)·scale, ‖q−k‖²/h²; NaN stays NaN."""
    wide_registers()
    for k in range(x.size):
        s[k] = (ZERO if x[k] < ZERO else x[k]) * scale


@helper
def _gaussian(s, single):
    """s ← e^(−s/2)."""
    wide_registers()
    if single:
        for k in range(s.size):
            s[k] = exp_single_or_zero(np.float32(-HALF * s[k]))
    else:
        for k in range(s.size):
            s[k] = exp_or_zero(-0.5 * np.float64(s[k]))


@helper
def _epanechnikov(s, power):
    """s ← max(0, 1 − s^(power/2))."""
    wide_registers()
    if power == 2.0:
        for k in range(s.size):
            y = ONE - s[k]
            s[k] = ZERO if y < ZERO else y
    else:
        for k in range(s.size):
            y = 1.0 - _root_power(np.float64(s[k]), power)
            s[k] = 0.0 if y < 0.0 else y


@helper
def _apply_shape(shape, power, single, x, scale, s):
    """s ← shape(x·scale), the scores of a row before the bias."""
    wide_registers()
    if shape == LINEAR:
        for k in range(s.size):
            s[k] = x[k] * scale
        return
    _distances(x, scale, s)
    if shape == NEGATIVE_HALF:
        for k in range(s.size):
            s[k] = -HALF * s[k]
    elif shape == GAUSSIAN_SHAPE:
        _gaussian(s, single)
    elif shape == BOXCAR:
        for k in range(s.size):
            s[k] = (ONE if s[k] <= ONE else ZERO) + (s[k] - s[k])
    else:
        _epanechnikov(s, power)


@helper
def _add_bias(s, bias):
    for k in range(s.size):
        s[k] += bias[k]


@helper
def _divide(s, total, w):
    wide_registers()
    for k in range(s.size):
        w[k] = s[k] / total


@helper
def _divide_all(w, total):
    """w ← w/total; `_divide` with s = w would not be vectorized, because its arguments might overlap."""
    wide_registers()
    for k in range(w.size):
        w[k] /= total


@helper
def _softmax(s, w, sink, single, columns):
    """w ← e^s/Σe^s, with the largest score subtracted first; return the log-sum-exp."""
    wide_registers()
    top = max(np.float64(largest(s, -np.inf, columns)), sink)
    columns[0] = top if top > -np.inf else 0.0
    base = columns[0]
    if single:
        for k in range(s.size):
            w[k] = exp_single_or_zero(np.float32(s[k] - base))
    else:
        for k in range(s.size):
            w[k] = exp_or_zero(np.float64(s[k] - base))
    sink_weight = np.exp(sink - np.float64(base))
    total = sum_of(w) + sink_weight
    if total == 0.0:
        w[:] = 0
        return -np.inf
    columns[0] = total
    _divide_all(w, columns[0])
    return np.float64(base) + np.log(total)


@helper
def _divide_by_sum(s, w, columns):
    """w ← s/Σs; return the sum."""
    total = sum_of(s)
    if total == 0.0:
        w[:] = 0
    else:
        columns[0] = total
        _divide(s, columns[0], w)
    return total


@inlined
def _normalize(rule, s, w, sink, visible, single, columns):
    """w ← the normalized scores of a row; return the row state."""
    if rule == SOFTMAX:
        return _softmax(s, w, sink, single, columns)
    if rule == SUM:
        return _divide_by_sum(s, w, columns)
    if rule == MEAN:
        columns[0] = max(visible, 1)
        _divide(s, columns[0], w)
        return np.float64(visible)
    copy_row(s, w)
    return 0.0


_SIGNATURE = (
    "void(i8, i8, i8, f8, i8, b1, X[:,:,::1], f8[::1], f8[::1], i4[:,::1], i4[:,::1], b1[:,:,::1], F[:,:,::1],"
    " u8[::1], i8[::1], i8, F[:,:,::1], f8[:,::1], X[::1], X[::1])"
)


def rows_forward(
    start, stop, shape, power, rule, single, products, scale, sink, first, last, mask, bias,
    drop, row_offset, column_offset, weights, state, s, columns,
):  # fmt: skip
    """Compute the weights of the rows start to stop of a tile, counted over (L, h).

    Args:
        start, stop: the range of rows.
        shape, power: LINEAR for a dot product; for a squared distance NEGATIVE_HALF, GAUSSIAN_SHAPE, BOXCAR, or
            EPANECHNIKOV with its power.
        rule: the number of a normalizer; SCORES writes the scores themselves, masked ones as −inf, for another
            kernel to normalize.
        single: whether the weights are float32.
        products: (L, h, c).
        scale: (L), multiplies the products.
        sink: (L), the sink of a softmax; −inf for none.
        first, last: (L, h), the keys that each row may see.
        mask: (1 or L, 1 or h, c); of size zero for none.
        bias: of the same shape; or the diagonals of a relative bias, (1 or L, 1, h + c − 1).
        drop: seed, threshold and the bits of 1/(1 − p) of dropout; empty for none.
        row_offset: (L), the number of each item's first row, counted over the whole problem.
        column_offset: the number of the key in the first column.
        weights: (L, h, c), written.
        state: (L, h), written.
        s, columns: scratch of this thread, c and 64 numbers.
    """
    height, width = products.shape[1], products.shape[2]
    hidden = 0.0 if SOFTMAX < rule < SCORES else -np.inf
    for row in range(start, stop):
        n, q = row // height, row % height
        low, high = max(np.int64(first[n, q]) - column_offset, 0), min(np.int64(last[n, q]) - column_offset, width)
        low = min(low, width)
        high = max(low, high)
        scores, w = s[: high - low], weights[n, q, low:high]
        visible = high - low
        columns[0] = hidden if rule == SCORES else 0.0
        weights[n, q, :low] = columns[0]
        weights[n, q, high:] = columns[0]
        columns[0] = scale[n]
        _apply_shape(shape, power, single, products[n, q, low:high], columns[0], scores)
        if bias.size:
            at = low + (height - 1 - q if bias.shape[2] > width else 0)
            _add_bias(scores, bias[n if bias.shape[0] > 1 else 0, q if bias.shape[1] > 1 else 0, at : at + visible])
        if mask.size:
            seen = mask[n if mask.shape[0] > 1 else 0, q if mask.shape[1] > 1 else 0, low:high]
            columns[0] = hidden
            hide(scores, seen, columns[0])
            visible = count_true(seen)
        state[n, q] = _normalize(rule, scores, w, sink[n], visible, single, columns)
        if drop.size:
            columns[0] = np.uint64(drop[2]).view(np.float64)
            bits = row_bits(drop[0], np.uint64(row_offset[n] + q))
            drop_weights(w, bits, column_offset + low, drop[1], columns[0])


same_dtype = kernel(_SIGNATURE.replace("X", "F"), scratch=2)(rows_forward)
float64_products = kernel(_SIGNATURE.replace("X", "f8"), scratch=2)(rows_forward)
