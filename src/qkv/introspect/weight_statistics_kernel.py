"""Statistics of softmax weights on a tile of products, in one pass over it that never writes a weight.

With t = min(0, scale·q·k − lse), a weight is e^t, a row's entropy −Σ e^t t, and the weight a key receives Σ e^t over
the rows. A rounded product can exceed the row's log-sum-exp, which is why t ends at 0; lse is subtracted in two parts,
so that its rounding to float32 counts for nothing. The tile is overwritten by t. A segment of a row is read again only
if it contains a t above the smallest of the row's largest so far.
"""

# mypy: ignore-errors
# Numba's signatures are the types here.

import numpy as np

from qkv.compiled.exp import exp_single
from qkv.compiled.kernels import helper, kernel, reduction

SEGMENT = 128
# Exact in float32; a Python number would promote to float64. e^r by the polynomial of Cephes' expf (Moshier 1989).
ZERO, ONE, LEAST = np.float32(0), np.float32(1), np.float32(-87.0)
LOG2E, HIGH, LOW = np.float32(1.4426950408889634), np.float32(0.693359375), np.float32(-2.12194440e-4)
D2, D3, D4 = np.float32(5.0000001201e-1), np.float32(1.6666665459e-1), np.float32(4.1665795894e-2)
D5, D6, D7 = np.float32(8.3334519073e-3), np.float32(1.3981999507e-3), np.float32(1.9875691500e-4)


@helper
def _exp(x):
    """Compute e^x in float32 within one unit in the last place, for |x| ≤ 87."""
    n = np.rint(x * LOG2E)
    r = (x - n * HIGH) - n * LOW
    tail = D2 + r * (D3 + r * (D4 + r * (D5 + r * (D6 + r * D7))))
    scale = np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)
    return scale * (r + r * r * tail) + scale


@reduction
def _segment(p, scale, lse, rest, bar, received):
    """Sum e^t and e^t·t, and count the t above the bar. Weights below e^−87 count as 0; NaN stays NaN."""
    total, mixed, above = ZERO, ZERO, np.int32(0)
    for j in range(p.size):
        t = (p[j] * scale - lse) - rest
        t = ZERO if t > ZERO else t
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
    """Insert one into a row's largest, in descending order; earlier keys stay ahead in ties."""
    place = best.size - 1
    while place > 0 and t > best[place - 1]:
        best[place] = best[place - 1]
        keys[place] = keys[place - 1]
        place -= 1
    best[place] = t
    keys[place] = key


@kernel(
    "void(i8, i8, i8, i8, f4, f4[:,::1], f8[::1], i4[::1], i4[::1], f8[:,::1], f8[::1], f8[::1], f4[:,::1], i8[:,::1])",
    single=True,
)
def tally(chunk, start, stop, column, scale, products, lse, first, last, received, total, entropy, best, keys):
    """Process the rows start to stop of a tile.

    Args:
        chunk: the row of `received` that belongs to this caller.
        start, stop: the range of rows.
        column: the first key of the tile.
        scale: multiplies the products.
        products: q·k, (R, C); overwritten.
        lse: log-sum-exp of the rows, (R), float64.
        first, last: the keys that each row may see, (R), indexed over all keys.
        received: updated in place, (chunks, C).
        total, entropy: updated in place, (R).
        best, keys: updated in place, (R, n): the largest t of each row in descending order, and their keys.
    """
    width = products.shape[1]
    for r in range(start, stop):
        low, high = max(np.int64(first[r]) - column, 0), min(np.int64(last[r]) - column, width)
        near = np.float32(lse[r])
        # An infinite state has no rest.
        rest = np.float32(lse[r] - np.float64(near)) if near - near == ZERO else ZERO
        for at in range(low, high, SEGMENT):
            end = min(at + SEGMENT, high)
            p = products[r, at:end]
            bar = best[r, best.shape[1] - 1]
            weight, mixed, above = _segment(p, scale, near, rest, bar, received[chunk, at:end])
            total[r] += weight
            entropy[r] -= mixed
            if above > 0:
                for j in range(p.size):
                    if p[j] > best[r, best.shape[1] - 1]:
                        _insert(p[j], column + at + j, best[r], keys[r])
