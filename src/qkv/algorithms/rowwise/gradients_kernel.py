"""Compute gradients of the products of a tile from those of the weights, row by row: the backward of `weights_kernel`.

The equations are those of `qkv.algorithms.tiled.row_rules`. Sums along a row are float64.
"""

# mypy: ignore-errors
# Numba's signatures are the types here.

import numpy as np

from qkv.algorithms.rowwise.weights_kernel import (
    BOXCAR,
    GAUSSIAN_SHAPE,
    LINEAR,
    MEAN,
    NEGATIVE_HALF,
    SOFTMAX,
    SUM,
)
from qkv.compiled.dropout import keep_factors, row_bits
from qkv.compiled.exp import exp_or_zero, exp_single_or_zero
from qkv.compiled.hints import wide_registers
from qkv.compiled.kernels import helper, inlined, kernel, reduction
from qkv.compiled.row_loops import copy_row, count_true, hide

# Exact in both float types; a Python float would promote float32 to float64.
ZERO, ONE, HALF = np.float32(0), np.float32(1), np.float32(0.5)


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
def _multiply_difference(q, g, mean):
    """g ← q(g − level)."""
    wide_registers()
    for k in range(g.size):
        g[k] = q[k] * (g[k] - mean)


@helper
def _subtract_divide_add(g, mean, total, addend):
    """g ← (g − level)/total + added."""
    wide_registers()
    for k in range(g.size):
        g[k] = (g[k] - mean) / total + addend


@inlined
def _backward_normalizer(rule, w, g, state, g_state, sink, visible, typed):
    """g ← the gradient of a row's scores, from that of its weights; return the gradient of the sink.

    Numbers go through `typed`, whose element type is that of the row, so that float32 is not promoted.
    """
    if rule == SOFTMAX:
        delta = _inner(w, g)
        typed[0] = delta - g_state
        _multiply_difference(w, g, typed[0])
        return 0.0 if sink == -np.inf else np.exp(sink - state) * (g_state - delta)
    if rule == SUM:
        typed[0], typed[1], typed[2] = _inner(w, g), 1.0 if state == 0.0 else state, g_state
        if state == 0.0:
            g[:] = typed[2]
        else:
            _subtract_divide_add(g, typed[0], typed[1], typed[2])
        return 0.0
    if rule == MEAN:
        typed[0], typed[1] = 0.0, max(visible, 1)
        _subtract_divide_add(g, typed[0], typed[1], typed[0])
    return 0.0


@helper
def _epanechnikov_slope(x, power):
    """Return d/dx max(0, 1 − x^(power/2)); 0 outside the support, and at x = 0 where a root has no derivative."""
    if x >= 1.0 or (x == 0.0 and power != 2.0):
        return 0.0
    if power == 2.0:
        return -1.0
    return -0.5 / np.sqrt(x) if power == 1.0 else -0.5 * power * x ** (0.5 * power - 1.0)


@helper
def _backward_gaussian(single, g, x, scale):
    wide_registers()
    if single:
        for k in range(g.size):
            d = (ZERO if x[k] < ZERO else x[k]) * scale
            x[k] = -HALF * exp_single_or_zero(np.float32(-HALF * d)) * g[k]
    else:
        for k in range(g.size):
            d = (ZERO if x[k] < ZERO else x[k]) * scale
            x[k] = -0.5 * exp_or_zero(-0.5 * np.float64(d)) * g[k]


@helper
def _backward_epanechnikov(power, g, x, scale):
    wide_registers()
    if power == 2.0:
        for k in range(g.size):
            x[k] = ZERO if x[k] * scale >= ONE else -g[k]
    else:
        for k in range(g.size):
            d = (ZERO if x[k] < ZERO else x[k]) * scale
            x[k] = _epanechnikov_slope(np.float64(d), power) * g[k]


@helper
def _backward_shape(shape, power, single, g, x, scale):
    """x ← the gradient of x·scale, from the gradient g of shape(x·scale)."""
    if shape == LINEAR:
        copy_row(g, x)
    elif shape == NEGATIVE_HALF:
        for k in range(g.size):
            x[k] = -HALF * g[k]
    elif shape == GAUSSIAN_SHAPE:
        _backward_gaussian(single, g, x, scale)
    else:
        _backward_epanechnikov(power, g, x, scale)


@reduction
def _scale_gradient(shape, x, products):
    wide_registers()
    total = 0.0
    for k in range(x.size):
        y = products[k]
        total += np.float64(x[k]) * np.float64(ZERO if shape != LINEAR and y < ZERO else y)
    return total


@helper
def _multiply_by(x, scale):
    wide_registers()
    for k in range(x.size):
        x[k] *= scale


_SIGNATURE = (
    "void(i8, i8, i8, f8, i8, b1, X[:,:,::1], f8[::1], f8[::1], i4[:,::1], i4[:,::1], b1[:,:,::1], u8[::1], i8[::1],"
    " i8, F[:,:,::1], f8[:,::1], F[:,:,::1], f8[:,::1], b1, f8[:,::1], f8[:,::1], F[::1], X[::1], F[::1], X[::1])"
)


def rows_backward(
    start, stop, shape, power, rule, single, products, scale, sink, first, last, mask, drop, row_offset,
    column_offset, weights, state, grads, g_state, needs_scale, d_sink, d_scale, factors, copy, typed, typed_scale,
):  # fmt: skip
    """Compute the gradients of the products from those of the weights, for the rows start to stop of a tile.

    Args:
        start, stop, shape, power, rule, single: as in `rows_forward`; the gradient through a BOXCAR is zero.
        products: (L, h, c), overwritten with their gradients.
        scale, sink, first, last, mask, drop, row_offset, column_offset: as in `rows_forward`.
        weights: (L, h, c), as `rows_forward` computed them without dropout; overwritten with those after dropout.
        state: (L, h), as computed by `rows_forward`.
        grads: (L, h, c), the gradients of the weights after dropout; overwritten with those of the scores.
        g_state: (L, h), the gradient of the state; of size zero for none.
        needs_scale: whether to compute the gradient of the scale.
        d_sink, d_scale: (L, h), written.
        factors, copy, typed, typed_scale: scratch of this thread, c, c, 4 and 1 numbers.
    """
    height, width = products.shape[1], products.shape[2]
    for row in range(start, stop):
        n, q = row // height, row % height
        low, high = max(np.int64(first[n, q]) - column_offset, 0), min(np.int64(last[n, q]) - column_offset, width)
        low = min(low, width)
        high = max(low, high)
        x, w, g, row_factors = (
            products[n, q, low:high],
            weights[n, q, low:high],
            grads[n, q, low:high],
            factors[: high - low],
        )
        products[n, q, :low] = 0
        products[n, q, high:] = 0
        grads[n, q, :low] = 0
        grads[n, q, high:] = 0
        d_sink[n, q] = 0
        d_scale[n, q] = 0
        if drop.size:
            bits = row_bits(drop[0], np.uint64(row_offset[n] + q))
            typed[0] = np.uint64(drop[2]).view(np.float64)
            keep_factors(row_factors, bits, column_offset + low, drop[1], typed[0])
            _multiply(g, row_factors)
        visible = high - low
        if mask.size:
            visible = count_true(mask[n if mask.shape[0] > 1 else 0, q if mask.shape[1] > 1 else 0, low:high])
        g_row_state = g_state[n, q] if g_state.size else 0.0
        d_sink[n, q] = _backward_normalizer(rule, w, g, state[n, q], g_row_state, sink[n], visible, typed)
        if mask.size:
            typed[0] = 0
            hide(g, mask[n if mask.shape[0] > 1 else 0, q if mask.shape[1] > 1 else 0, low:high], typed[0])
        if drop.size:
            _multiply(w, row_factors)
        if shape == BOXCAR:
            x[:] = 0
            continue
        if needs_scale:
            copy_row(x, copy)
        typed_scale[0] = scale[n]
        _backward_shape(shape, power, single, g, x, typed_scale[0])
        if needs_scale:
            d_scale[n, q] = _scale_gradient(shape, x, copy[: high - low])
        _multiply_by(x, typed_scale[0])


same_dtype = kernel(_SIGNATURE.replace("X", "F"), scratch=4)(rows_backward)
float64_products = kernel(_SIGNATURE.replace("X", "f8"), scratch=4)(rows_backward)
