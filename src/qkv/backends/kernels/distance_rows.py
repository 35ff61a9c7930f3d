"""Kernels of a distance (Gaussian, boxcar, Epanechnikov) on a tile of matrix products, in one pass over it.

A tile holds products q·k in float64; with the squared norms it gives x = max(0, ‖q‖² + ‖k‖² − 2q·k)·scale, which is
‖q−k‖²/h². One pass turns it into the kernel's values and their sums, another into the gradients of x, where PyTorch
would walk through memory once for each operation. Whether the products are exact enough is the caller's to know.
"""

# mypy: ignore-errors
# Numba's signatures are the types here.

import numpy as np

from qkv.backends.kernels.compiled import helper, kernel, reduction

LOG2E = 1.4426950408889634
LN2_HIGH = 6.93147180369123816490e-01
LN2_LOW = 1.90821492927058770002e-10
BELL, BOX, BUMP = 0, 1, 2


@helper
def _exp(x):
    """e^x in float64, for |x| ≤ 708."""
    n = np.rint(x * LOG2E)
    r = (x - n * LN2_HIGH) - n * LN2_LOW
    r2 = r * r
    low = (0.5 + r * (1 / 6)) + r2 * ((1 / 24) + r * (1 / 120))
    middle = ((1 / 720) + r * (1 / 5040)) + r2 * ((1 / 40320) + r * (1 / 362880))
    high = ((1 / 3628800) + r * (1 / 39916800)) + r2 * ((1 / 479001600) + r * (1 / 6227020800))
    r4 = r2 * r2
    scale = np.int64((np.int64(n) + 1023) << 52).view(np.float64)
    return scale * (r + r2 * (low + r4 * (middle + r4 * high))) + scale


@helper
def _distance(product, query, key, scale):
    """‖q−k‖²/h²; NaN stays NaN."""
    x = (query + key) - 2.0 * product
    return (0.0 if x < 0.0 else x) * scale


@helper
def _bell(x):
    """e^{−x/2}, exactly 0 below e^{−708}."""
    y = -0.5 * x
    e = _exp(-708.0 if y < -708.0 else y)
    return 0.0 if y < -708.0 else e


@helper
def _root_power(x, power):
    """x^(power/2)."""
    if power == 2.0:
        return x
    return np.sqrt(x) if power == 1.0 else x ** (0.5 * power)


@helper
def _bump_slope(x, power):
    """d/dx max(0, 1 − x^(power/2)): 0 outside, and at x = 0 where a root has no slope."""
    if x >= 1.0 or (x == 0.0 and power != 2.0):
        return 0.0
    if power == 2.0:
        return -1.0
    return -0.5 / np.sqrt(x) if power == 1.0 else -0.5 * power * x ** (0.5 * power - 1.0)


@helper
def _values(shape, power, products, query, keys, scale, out):
    if shape == BELL:
        for k in range(out.size):
            out[k] = _bell(_distance(products[k], query, keys[k], scale))
    elif shape == BOX:
        for k in range(out.size):
            x = _distance(products[k], query, keys[k], scale)
            out[k] = (1.0 if x <= 1.0 else 0.0) + (x - x)
    elif power == 2.0:
        for k in range(out.size):
            y = 1.0 - _distance(products[k], query, keys[k], scale)
            out[k] = 0.0 if y < 0.0 else y
    else:
        for k in range(out.size):
            y = 1.0 - _root_power(_distance(products[k], query, keys[k], scale), power)
            out[k] = 0.0 if y < 0.0 else y


@reduction
def _sum(x):
    total = 0.0
    for k in range(x.size):
        total += np.float64(x[k])
    return total


@helper
def _hide(x, seen):
    for k in range(x.size):
        x[k] = x[k] if seen[k] else 0


@kernel("void(i8, i8, i8, f8, f8, f8[:,::1], f8[::1], f8[::1], i4[::1], i4[::1], b1[:,::1], F[:,::1], f8[::1])")
def values(start, stop, shape, power, scale, products, queries, keys, first, last, mask, out, total):
    """Compute the kernel's values for the rows start to stop of a tile.

    Args:
        start, stop: the range of rows.
        shape, power: BELL, BOX, or BUMP with its power.
        scale: 1/h².
        products: q·k, (R, C).
        queries, keys: squared norms, (R) and (C).
        first, last: the columns that each row may see, (R).
        mask: (1 or R, C), of size zero where there is none.
        out: out, (R, C); 0 where a key is hidden.
        total: out, (R), the sums.
    """
    for r in range(start, stop):
        low, high = max(np.int64(first[r]), 0), min(np.int64(last[r]), out.shape[1])
        out[r] = 0
        total[r] = 0
        if low < high:
            row = out[r, low:high]
            _values(shape, power, products[r, low:high], queries[r], keys[low:high], scale, row)
            if mask.size:
                _hide(row, mask[r if mask.shape[0] > 1 else 0, low:high])
            total[r] = _sum(row)


@helper
def _slopes(shape, power, products, query, keys, scale, share, delta, g):
    for k in range(g.size):
        x = _distance(products[k], query, keys[k], scale)
        slope = -0.5 * _bell(x) if shape == BELL else _bump_slope(x, power)
        g[k] = (np.float64(g[k]) - delta) * share * slope


@kernel(
    "void(i8, i8, i8, f8, f8, f8[:,::1], f8[::1], f8[::1], i4[::1], i4[::1], b1[:,::1], f8[::1], f8[::1], F[:,::1])"
)
def slopes(start, stop, shape, power, scale, products, queries, keys, first, last, mask, share, delta, grads):
    """Turn gradients of the weights into those of x = ‖q−k‖²/h², for the rows start to stop of a tile.

    Args:
        start, stop, shape, power, scale, products, queries, keys, first, last, mask: as in `values`; a BOX has none.
        share, delta: (R): a row's gradients become (g − delta)·share, that of the kernel's values under a sum.
        grads: in place, (R, C); 0 where a key is hidden.
    """
    for r in range(start, stop):
        low, high = max(np.int64(first[r]), 0), min(np.int64(last[r]), grads.shape[1])
        if low >= high or shape == BOX:
            grads[r] = 0
        else:
            grads[r, :low] = 0
            grads[r, high:] = 0
            g = grads[r, low:high]
            _slopes(shape, power, products[r, low:high], queries[r], keys[low:high], scale, share[r], delta[r], g)
            if mask.size:
                _hide(g, mask[r if mask.shape[0] > 1 else 0, low:high])
