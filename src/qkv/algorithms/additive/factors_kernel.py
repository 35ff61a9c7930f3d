"""Compute both factors of e^{2(a+b)} once per row, and choose for each hidden feature how its tanh is computed.

The derivation is in `qkv.algorithms.additive.factored`. Key factors are written in tiles whose rows are features, so
that later loops over keys read contiguous memory. Features are reordered by the way they are computed:

| way | stored in `left` and `right` | a term of the score |
|---|---|---|
| calm | E = 2^(2a·log₂e + N), F = 2^(2b·log₂e − N) | v(EF − 1)/(EF + 1), where EF needs no cap |
| factored | the same | the same with EF capped |
| small | a, b | v · odd polynomial of a + b |
| direct | a, b | v · tanh(a + b), computed in float64 |

Features of the first three ways are grouped in fours, padded with features of weight zero.
"""

# mypy: ignore-errors
# Numba's signatures are the types here.

import numpy as np

from qkv.compiled.exp import LN2_HIGH, LN2_LOW, LOG2E, exp_times_power
from qkv.compiled.hints import wide_registers
from qkv.compiled.kernels import helper, kernel

LN2 = LN2_HIGH + LN2_LOW
CENTER_LIMIT = 131072.0
VECTOR_LIMIT = 4096.0
CALM, FACTORED, SMALL, DIRECT = 0, 1, 2, 3


@helper
def _visible_rows(n, first, last, mask, owner, queries, keys, change):
    """Mark the queries that see any key, and the keys that any query sees."""
    bounds, layer = owner[n, 1], owner[n, 2]
    queries[:] = False
    keys[:] = False
    change[:] = 0
    for q in range(queries.size):
        start, stop = max(np.int64(first[bounds, q]), 0), min(np.int64(last[bounds, q]), keys.size)
        queries[q] = start < stop
        if mask.size and start < stop:
            row = mask[layer, q if mask.shape[1] > 1 else 0]
            queries[q] = False
            for k in range(start, stop):
                queries[q] |= row[k]
                keys[k] |= row[k]
        elif start < stop:
            change[start] += 1
            change[stop] -= 1
    open_ranges = 0
    for k in range(keys.size):
        open_ranges += change[k]
        keys[k] |= open_ranges > 0


@helper
def _extremes(x, visible, low, high, bad):
    """Find the smallest and largest entry of each feature over visible rows; `bad` becomes NaN if one is not finite."""
    wide_registers()
    low[:] = np.inf
    high[:] = -np.inf
    for i in range(x.shape[0]):
        if visible[i]:
            row = x[i]
            for c in range(row.size):
                value = row[c]
                low[c] = value if value < low[c] else low[c]
                high[c] = value if value > high[c] else high[c]
                bad[c] += value - value


@helper
def _choose(stats, bad, vector, limits, way, center, clamp):
    """Decide per feature how its tanh is computed, and where its factors are centered and clamped."""
    saturation, limit, small, has_polynomial, calm = limits[0], limits[1], limits[2], limits[3], limits[4]
    for c in range(way.size):
        way[c], center[c], clamp[c] = DIRECT, 0.0, 0.0
        if bad[c] != 0 or stats[0, c] > stats[1, c] or stats[2, c] > stats[3, c]:
            continue
        if not abs(vector[c]) <= VECTOR_LIMIT:
            continue
        highest = stats[1, c] + stats[3, c]
        if max(-stats[0, c], stats[1, c]) + max(-stats[2, c], stats[3, c]) < small:
            way[c] = SMALL if has_polynomial else DIRECT
            continue
        half_queries, half_keys = 0.5 * (stats[1, c] - stats[0, c]), 0.5 * (stats[3, c] - stats[2, c])
        half = min(half_queries, half_keys)
        middle = stats[2, c] + half_keys if half_keys <= half_queries else -(stats[0, c] + half_queries)
        if half + 0.5 + saturation <= limit and abs(middle) <= CENTER_LIMIT:
            way[c] = CALM if highest <= calm else FACTORED
            center[c] = np.rint(2 * middle * LOG2E)
            clamp[c] = 2 * (saturation + half) + 0.5 * LN2


@helper
def _order_features(way, count, feature):
    """Order features by the way they are computed; all ways but the last are padded to multiples of four with -1."""
    feature[:] = -1
    at = 0
    for kind in range(4):
        start = at
        for c in range(way.size):
            if way[c] == kind:
                feature[at] = c
                at += 1
        if kind != DIRECT:
            at = start + (at - start + 3) // 4 * 4
        count[kind] = at - start


@helper
def _factor(row, stop, center, clamp, sign):
    """Replace the first `stop` entries of a row of reordered features with e^{2x} · 2^{sign·N}, clamped."""
    wide_registers()
    for i in range(stop):
        middle = -sign * center[i] * LN2
        x = 2.0 * np.float64(row[i])
        x = middle - clamp[i] if x < middle - clamp[i] else x
        x = middle + clamp[i] if x > middle + clamp[i] else x
        row[i] = exp_times_power(x, sign * center[i])


@helper
def _copy_features(x, feature, ordered, row):
    """Copy the features of a row in their new order; in one plain loop if the order is unchanged."""
    if ordered:
        for i in range(x.size):
            row[i] = x[i]
    else:
        for i in range(feature.size):
            row[i] = x[feature[i]] if feature[i] >= 0 else 0


@helper
def _fill_left(a, visible, feature, ordered, stop, center, clamp, left):
    for q in range(a.shape[0]):
        row = left[q]
        row[:] = 0
        if visible[q]:
            _copy_features(a[q], feature, ordered, row)
            _factor(row, stop, center, clamp, 1.0)


@helper
def _fill_right(b, visible, feature, ordered, stop, center, clamp, block, right):
    size = right.shape[2]
    for start in range(0, right.shape[0] * size, 16):
        block[:] = 0
        for j in range(min(16, b.shape[0] - start)):
            if visible[start + j]:
                _copy_features(b[start + j], feature, ordered, block[j])
                _factor(block[j], stop, center, clamp, -1.0)
        tile = right[start // size]
        for i in range(feature.size):
            to = tile[i, start % size : start % size + 16]
            for j in range(16):
                to[j] = block[j, i]


@kernel(
    "void(i8, i8, f8[::1], F[:,:,::1], F[:,:,::1], F[:,::1], i4[:,::1], i4[:,::1], b1[:,:,::1], i8[:,::1],"
    " F[:,:,::1], F[:,:,:,::1], F[:,::1], i8[:,::1], i8[:,::1], b1[::1], i8[::1], f8[:,::1], F[:,::1])",
    scratch=4,
)
def factors(
    n0, n1, limits, a, b, vector, first, last, mask, owner, left, right, weight, count, feature,
    flags, counts, floats, block,
):  # fmt: skip
    """Fill `left`, `right`, `weight`, `count` and `feature` for the items n0 to n1.

    Args:
        n0, n1: the range of items.
        limits: X₀, the largest R + ½ + X₀, the bound on |a| + |b| for small activations, whether the polynomial is
            exact enough, the largest a + b that needs no cap.
        a, b: projected queries (N, Q, A) and keys (N, K, A).
        vector: (C, A).
        first, last: bounds per row (P, Q).
        mask: (M, 1 or Q, K), of size zero if there is none.
        owner: (N, 4): the row of vector, bounds, mask and bias that belongs to an item.
        left: written, (N, Q, R) with R at least A + 9.
        right: written, (N, tiles, R, keys per tile); the keys per tile are a multiple of 16.
        weight: written, (N, R): v in the new order, 0 for padding.
        count: written, (N, 4): the number of features computed in each way.
        feature: written, (N, R): the feature at each position, -1 for none.
        flags, counts, floats, block: per-thread scratch: Q + K, A + K + 1, (9, R) and (16, R).
    """
    queries, keys = flags[: a.shape[1]], flags[a.shape[1] :]
    features, padded_width = a.shape[2], left.shape[2]
    stats, bad = floats[:4, :features], floats[4, :features]
    center, clamp, centers, clamps = floats[5, :features], floats[6, :features], floats[7], floats[8]
    way, change = counts[:features], counts[features:]
    for n in range(n0, n1):
        _visible_rows(n, first, last, mask, owner, queries, keys, change)
        bad[:] = 0
        _extremes(a[n], queries, stats[0], stats[1], bad)
        _extremes(b[n], keys, stats[2], stats[3], bad)
        _choose(stats, bad, vector[owner[n, 0]], limits, way, center, clamp)
        _order_features(way, count[n], feature[n])
        ordered = True
        for i in range(padded_width):
            c = feature[n, i]
            ordered = ordered and c == (i if i < features else -1)
            weight[n, i] = 0 if c < 0 else vector[owner[n, 0], c]
            centers[i], clamps[i] = (0.0, 0.0) if c < 0 else (center[c], clamp[c])
        _fill_left(a[n], queries, feature[n], ordered, count[n, 0] + count[n, 1], centers, clamps, left[n])
        _fill_right(b[n], keys, feature[n], ordered, count[n, 0] + count[n, 1], centers, clamps, block, right[n])
