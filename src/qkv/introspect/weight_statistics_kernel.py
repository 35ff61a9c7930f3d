"""Statistics of softmax weights on a tile of products, in one pass over it that never writes a weight.

With t = scale·q·k − lse a weight is e^t, a row's entropy −Σ e^t t, and what a key receives Σ e^t over the rows. The
tile is overwritten by t; a row is looked at again only where a segment of it holds something larger than the least of
its largest so far.
"""

# mypy: ignore-errors
# Numba's signatures are the types here.

import numpy as np

from qkv.compiled.exp import exp_single
from qkv.compiled.kernels import helper, kernel, reduction

SEGMENT = 128
# Exact in float32; a Python number would lift it to float64.
ZERO, LEAST = np.float32(0), np.float32(-87.0)


@reduction
def _segment(p, scale, lse, bar, received):
    """Sums of e^t and of e^t·t; how many t are above the bar. Weights below e^−87 count as 0; NaN stays NaN."""
    total, mixed, above = ZERO, ZERO, np.int32(0)
    for j in range(p.size):
        t = p[j] * scale - lse
        p[j] = t
        x = LEAST if t < LEAST else t
        e = exp_single(x)
        e = ZERO if t < LEAST else e
        received[j] += e
        total += e
        mixed += e * x
        above += np.int32(1) if t > bar else np.int32(0)
    return total, mixed, above


@helper
def _insert(t, key, best, keys):
    """Put one into a row's largest, in falling order; of equal ones the earlier stays ahead."""
    place = best.size - 1
    while place > 0 and t > best[place - 1]:
        best[place] = best[place - 1]
        keys[place] = keys[place - 1]
        place -= 1
    best[place] = t
    keys[place] = key


@kernel(
    "void(i8, i8, i8, i8, f4, f4[:,::1], f4[::1], i4[::1], i4[::1], f8[:,::1], f8[::1], f8[::1], f4[:,::1], i8[:,::1])"
)
def tally(chunk, start, stop, column, scale, products, lse, first, last, received, total, entropy, best, keys):
    """Add up the rows start to stop of a tile.

    Args:
        chunk: which row of `received` is this caller's own.
        start, stop: the range of rows.
        column: the first key of the tile.
        scale: multiplies the products.
        products: q·k, (R, C); overwritten.
        lse: of the rows, (R).
        first, last: the keys that each row may see, (R), counted over all keys.
        received: in place, (chunks, C).
        total, entropy: in place, (R).
        best, keys: in place, (R, n): the largest t of each row in falling order, and their keys.
    """
    width = products.shape[1]
    for r in range(start, stop):
        low, high = max(np.int64(first[r]) - column, 0), min(np.int64(last[r]) - column, width)
        for at in range(low, high, SEGMENT):
            end = min(at + SEGMENT, high)
            p = products[r, at:end]
            bar = best[r, best.shape[1] - 1]
            weight, mixed, above = _segment(p, scale, lse[r], bar, received[chunk, at:end])
            total[r] += weight
            entropy[r] -= mixed
            if above > 0:
                for j in range(p.size):
                    if p[j] > best[r, best.shape[1] - 1]:
                        _insert(p[j], column + at + j, best[r], keys[r])
