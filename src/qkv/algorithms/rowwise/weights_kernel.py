"""From a tile of products to weights, one whole row at a time: bend, add the bias, hide, normalize, drop.

A tile holds L items of h rows and c columns. Products come in their own type X: float64 where a distance is a
difference of products, so that a row's maximum is subtracted before anything is rounded to the type F of the weights.
A row stays in the first cache while the steps pass over it; PyTorch would send it through memory once for each.
"""

# mypy: ignore-errors
# Numba's signatures are the types here.

import numpy as np

from qkv.algorithms.rowwise.dropout_kernel import mix, row_bits
from qkv.algorithms.rowwise.row_loops_kernel import copy_row, count_true, hide, largest, sum_of
from qkv.compiled.exp import exp_or_zero, exp_single_or_zero
from qkv.compiled.hints import wide_registers
from qkv.compiled.kernels import helper, inlined, kernel

LINEAR, HALF, BELL, BOX, BUMP = 0, 1, 2, 3, 4
SOFTMAX, SUM, MEAN, IDENTITY, SCORES, GAUSSIAN = 0, 1, 2, 3, 4, 5
# e^x is 0 below: it is less than half of the least number of either type, 2^−149 and 2^−1074.
FAINT4, FAINT8 = -150 * 0.6931471805599453, -1075 * 0.6931471805599453
# Exact in both float types; a Python number would lift float32 to float64.
ZERO, ONE, HALF_OF = np.float32(0), np.float32(1), np.float32(0.5)


@helper
def _root_power(x, power):
    """x^(power/2)."""
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
def _bell(s, single):
    """s ← e^(−s/2)."""
    wide_registers()
    if single:
        for k in range(s.size):
            s[k] = exp_single_or_zero(np.float32(-HALF_OF * s[k]))
    else:
        for k in range(s.size):
            s[k] = exp_or_zero(-0.5 * np.float64(s[k]))


@helper
def _bump(s, power):
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
def _bend(shape, power, single, x, scale, s):
    """Scale the products of a row, and bend them."""
    wide_registers()
    if shape == LINEAR:
        for k in range(s.size):
            s[k] = x[k] * scale
        return
    _distances(x, scale, s)
    if shape == HALF:
        for k in range(s.size):
            s[k] = -HALF_OF * s[k]
    elif shape == BELL:
        _bell(s, single)
    elif shape == BOX:
        for k in range(s.size):
            s[k] = (ONE if s[k] <= ONE else ZERO) + (s[k] - s[k])
    else:
        _bump(s, power)


@helper
def _add(s, bias):
    for k in range(s.size):
        s[k] += bias[k]


@helper
def _divide(s, total, w):
    wide_registers()
    for k in range(s.size):
        w[k] = s[k] / total


@helper
def _divide_all(w, total):
    """w ← w/total; `_divide` of an array into itself would run one by one, for fear of overlap."""
    wide_registers()
    for k in range(w.size):
        w[k] /= total


@helper
def _softmax(s, w, sink, least, single, columns):
    """Turn scores into e^s/Σe^s, the largest subtracted first; gives the log of the sum.

    Where the largest is below `least`, all are 0; NaN, which is no largest score, stays visible.
    """
    wide_registers()
    top = max(np.float64(largest(s, columns)), sink)
    if top < least and not np.isnan(sum_of(s)):
        w[:] = 0
        return -np.inf
    columns[0] = top if top > -np.inf else 0.0
    base = columns[0]
    if single:
        for k in range(s.size):
            w[k] = exp_single_or_zero(np.float32(s[k] - base))
    else:
        for k in range(s.size):
            w[k] = exp_or_zero(np.float64(s[k] - base))
    own = np.exp(sink - np.float64(base))
    total = sum_of(w) + own
    if total == 0.0:
        w[:] = 0
        return -np.inf
    columns[0] = total
    _divide_all(w, columns[0])
    return np.float64(base) + np.log(total)


@helper
def _share(s, w, columns):
    """Turn kernel values into s/Σs; gives the sum."""
    total = sum_of(s)
    if total == 0.0:
        w[:] = 0
    else:
        columns[0] = total
        _divide(s, columns[0], w)
    return total


@helper
def _drop(w, bits, start, threshold, keep):
    """Drop weights by the bits of (seed, row, key) and scale those that are kept."""
    wide_registers()
    for k in range(w.size):
        key = mix(np.uint32(np.uint32(start + k) + np.uint32(0x9E3779B9)))
        w[k] = w[k] * keep if mix(np.uint32(bits + key)) >= threshold else ZERO


@inlined
def _normalize(rule, s, w, sink, visible, single, columns):
    """Turn the scores of a row into weights; gives its state."""
    if rule == SOFTMAX:
        return _softmax(s, w, sink, -np.inf, single, columns)
    if rule == GAUSSIAN:
        return np.exp(_softmax(s, w, -np.inf, FAINT4 if single else FAINT8, single, columns))
    if rule == SUM:
        return _share(s, w, columns)
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


def weigh(
    start, stop, shape, power, rule, single, products, scale, sink, first, last, mask, bias,
    drop, number, left, weights, state, s, columns,
):  # fmt: skip
    """Turn the rows start to stop of a tile, counted over (L, h), into weights.

    Args:
        start, stop: the range of rows.
        shape, power: LINEAR (a dot product), or of a distance: HALF, BELL, BOX, BUMP with its power.
        rule: a normalizer, by its number above; GAUSSIAN divides the exponentials of scores by their sum, SCORES leaves
            scores to another kernel, hidden ones at −inf.
        single: whether weights are float32.
        products: (L, h, c).
        scale: (L), multiplies the products.
        sink: (L), of a softmax, −inf for none.
        first, last: (L, h), the keys that each row may see.
        mask: (1 or L, 1 or h, c), of size zero where there is none.
        bias: likewise; or the diagonals of a relative bias, (1 or L, 1, h + c − 1).
        drop: seed, threshold and the bits of 1/(1 − p) of dropout; empty for none.
        number: (L), the number of each item's first row in the whole problem.
        left: the key in the first column.
        weights: out, (L, h, c).
        state: out, (L, h).
        s, columns: scratch of this thread: c and 64 numbers.
    """
    height, width = products.shape[1], products.shape[2]
    hidden = 0.0 if SOFTMAX < rule < SCORES else -np.inf
    for row in range(start, stop):
        n, q = row // height, row % height
        low, high = max(np.int64(first[n, q]) - left, 0), min(np.int64(last[n, q]) - left, width)
        low = min(low, width)
        high = max(low, high)
        scores, w = s[: high - low], weights[n, q, low:high]
        visible = high - low
        columns[0] = hidden if rule == SCORES else 0.0
        weights[n, q, :low] = columns[0]
        weights[n, q, high:] = columns[0]
        columns[0] = scale[n]
        _bend(shape, power, single, products[n, q, low:high], columns[0], scores)
        if bias.size:
            at = low + (height - 1 - q if bias.shape[2] > width else 0)
            _add(scores, bias[n if bias.shape[0] > 1 else 0, q if bias.shape[1] > 1 else 0, at : at + visible])
        if mask.size:
            seen = mask[n if mask.shape[0] > 1 else 0, q if mask.shape[1] > 1 else 0, low:high]
            columns[0] = hidden
            hide(scores, seen, columns[0])
            visible = count_true(seen)
        state[n, q] = _normalize(rule, scores, w, sink[n], visible, single, columns)
        if drop.size:
            columns[0] = np.uint64(drop[2]).view(np.float64)
            bits = row_bits(drop[0], np.uint64(number[n] + q))
            _drop(w, bits, left + low, drop[1], columns[0])


same = kernel(_SIGNATURE.replace("X", "F"))(weigh)
wider = kernel(_SIGNATURE.replace("X", "f8"))(weigh)
