"""From gradients of the weights to those of the products of a tile, one whole row at a time; undoes `weights_kernel`.

The equations are those of `qkv.algorithms.tiled.row_rules`. Sums along a row are float64.
"""

# mypy: ignore-errors
# Numba's signatures are the types here.

import numpy as np

from qkv.algorithms.rowwise.dropout_kernel import mix, row_bits
from qkv.algorithms.rowwise.row_loops_kernel import copy_row, count_true, hide
from qkv.algorithms.rowwise.weights_kernel import BELL, BOX, GAUSSIAN, HALF, LINEAR, MEAN, SOFTMAX, SUM
from qkv.compiled.exp import exp_or_zero, exp_single_or_zero
from qkv.compiled.hints import wide_registers
from qkv.compiled.kernels import helper, inlined, kernel, reduction

# Exact in both float types; a Python number would lift float32 to float64.
ZERO, ONE, HALF_OF = np.float32(0), np.float32(1), np.float32(0.5)


@helper
def _keep(share, bits, start, threshold, keep):
    """Give what each weight is multiplied by under dropout."""
    wide_registers()
    for k in range(share.size):
        key = mix(np.uint32(np.uint32(start + k) + np.uint32(0x9E3779B9)))
        share[k] = keep if mix(np.uint32(bits + key)) >= threshold else ZERO


@helper
def _multiply(x, y):
    wide_registers()
    for k in range(x.size):
        x[k] *= y[k]


@reduction
def _inner(x, y):
    wide_registers()
    total = 0.0
    for k in range(x.size):
        total += np.float64(x[k]) * np.float64(y[k])
    return total


@helper
def _level(q, g, level):
    """g ← q(g − level)."""
    wide_registers()
    for k in range(g.size):
        g[k] = q[k] * (g[k] - level)


@helper
def _evenly(g, level, total, added):
    """g ← (g − level)/total + added."""
    wide_registers()
    for k in range(g.size):
        g[k] = (g[k] - level) / total + added


@inlined
def _unnormalize(rule, w, g, state, of_state, sink, visible, hold):
    """Turn the gradient g of a row's weights into that of its scores; gives the gradient of the sink."""
    if rule == SOFTMAX:
        delta = _inner(w, g)
        hold[0] = delta - of_state
        _level(w, g, hold[0])
        return 0.0 if sink == -np.inf else np.exp(sink - state) * (of_state - delta)
    if rule == GAUSSIAN:
        hold[0] = _inner(w, g) - of_state * state
        _level(w, g, hold[0])
        return 0.0
    if rule == SUM:
        hold[0], hold[1], hold[2] = _inner(w, g), 1.0 if state == 0.0 else state, of_state
        if state == 0.0:
            g[:] = hold[2]
        else:
            _evenly(g, hold[0], hold[1], hold[2])
        return 0.0
    if rule == MEAN:
        hold[0], hold[1] = 0.0, max(visible, 1)
        _evenly(g, hold[0], hold[1], hold[0])
    return 0.0


@helper
def _bump_slope(x, power):
    """d/dx max(0, 1 − x^(power/2)): 0 outside, and at x = 0 where a root has no slope."""
    if x >= 1.0 or (x == 0.0 and power != 2.0):
        return 0.0
    if power == 2.0:
        return -1.0
    return -0.5 / np.sqrt(x) if power == 1.0 else -0.5 * power * x ** (0.5 * power - 1.0)


@helper
def _unbend_bell(single, g, x, scale):
    wide_registers()
    if single:
        for k in range(g.size):
            d = (ZERO if x[k] < ZERO else x[k]) * scale
            x[k] = -HALF_OF * exp_single_or_zero(np.float32(-HALF_OF * d)) * g[k]
    else:
        for k in range(g.size):
            d = (ZERO if x[k] < ZERO else x[k]) * scale
            x[k] = -0.5 * exp_or_zero(-0.5 * np.float64(d)) * g[k]


@helper
def _unbend_bump(power, g, x, scale):
    wide_registers()
    if power == 2.0:
        for k in range(g.size):
            x[k] = ZERO if x[k] * scale >= ONE else -g[k]
    else:
        for k in range(g.size):
            d = (ZERO if x[k] < ZERO else x[k]) * scale
            x[k] = _bump_slope(np.float64(d), power) * g[k]


@helper
def _unbend(shape, power, single, g, x, scale):
    """x ← the gradient of x·scale, the distance or the dot product."""
    if shape == LINEAR:
        copy_row(g, x)
    elif shape == HALF:
        for k in range(g.size):
            x[k] = -HALF_OF * g[k]
    elif shape == BELL:
        _unbend_bell(single, g, x, scale)
    else:
        _unbend_bump(power, g, x, scale)


@reduction
def _pulled_scale(shape, x, products):
    wide_registers()
    total = 0.0
    for k in range(x.size):
        y = products[k]
        total += np.float64(x[k]) * np.float64(ZERO if shape != LINEAR and y < ZERO else y)
    return total


@helper
def _scale(x, scale):
    wide_registers()
    for k in range(x.size):
        x[k] *= scale


_SIGNATURE = (
    "void(i8, i8, i8, f8, i8, b1, X[:,:,::1], f8[::1], f8[::1], i4[:,::1], i4[:,::1], b1[:,:,::1], u8[::1], i8[::1],"
    " i8, F[:,:,::1], f8[:,::1], F[:,:,::1], f8[:,::1], b1, f8[:,::1], f8[:,::1], F[::1], X[::1], F[::1], X[::1])"
)


def unweigh(
    start, stop, shape, power, rule, single, products, scale, sink, first, last, mask, drop, number, left,
    weights, state, grads, of_state, learns_scale, d_sink, d_scale, share, copy, hold, wide,
):  # fmt: skip
    """Turn gradients of the weights into those of the products, for the rows start to stop of a tile.

    Args:
        start, stop, shape, power, rule, single: as in `weigh`; a BOX sends nothing back.
        products: in and out, (L, h, c): become the gradients of the products.
        scale, sink, first, last, mask, drop, number, left: as in `weigh`.
        weights: in and out, (L, h, c): what `weigh` gave without dropout; become the weights that are applied.
        state: (L, h), what `weigh` gave.
        grads: in and out, (L, h, c): of the weights that are applied; become those of the scores.
        of_state: (L, h), the gradient of the state; of size zero where there is none.
        learns_scale: whether the gradient of the scale is wanted.
        d_sink, d_scale: out, (L, h).
        share, copy, hold, wide: scratch of this thread: c, c, 4 and 1 numbers.
    """
    height, width = products.shape[1], products.shape[2]
    for row in range(start, stop):
        n, q = row // height, row % height
        low, high = max(np.int64(first[n, q]) - left, 0), min(np.int64(last[n, q]) - left, width)
        low = min(low, width)
        high = max(low, high)
        x, w, g, kept = products[n, q, low:high], weights[n, q, low:high], grads[n, q, low:high], share[: high - low]
        products[n, q, :low] = 0
        products[n, q, high:] = 0
        grads[n, q, :low] = 0
        grads[n, q, high:] = 0
        d_sink[n, q] = 0
        d_scale[n, q] = 0
        if drop.size:
            bits = row_bits(drop[0], np.uint64(number[n] + q))
            hold[0] = np.uint64(drop[2]).view(np.float64)
            _keep(kept, bits, left + low, drop[1], hold[0])
            _multiply(g, kept)
        visible = high - low
        if mask.size:
            visible = count_true(mask[n if mask.shape[0] > 1 else 0, q if mask.shape[1] > 1 else 0, low:high])
        pulled = of_state[n, q] if of_state.size else 0.0
        d_sink[n, q] = _unnormalize(rule, w, g, state[n, q], pulled, sink[n], visible, hold)
        if mask.size:
            hold[0] = 0
            hide(g, mask[n if mask.shape[0] > 1 else 0, q if mask.shape[1] > 1 else 0, low:high], hold[0])
        if drop.size:
            _multiply(w, kept)
        if shape == BOX:
            x[:] = 0
            continue
        if learns_scale:
            copy_row(x, copy)
        wide[0] = scale[n]
        _unbend(shape, power, single, g, x, wide[0])
        if learns_scale:
            d_scale[n, q] = _pulled_scale(shape, x, copy[: high - low])
        _scale(x, wide[0])


same = kernel(_SIGNATURE.replace("X", "F"))(unweigh)
wider = kernel(_SIGNATURE.replace("X", "f8"))(unweigh)
