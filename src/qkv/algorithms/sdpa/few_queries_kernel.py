"""Numba kernels for softmax attention over dot products with few queries: a decoding step over its cache, in place.

A step reads each key and value once and does little arithmetic with it. PyTorch's kernel computes it as matrix products
of one row each, which take several times as long as reading the cache.
"""

# mypy: ignore-errors
# Numba's signatures are the types here.

import numpy as np

from qkv.compiled.exp import exp_single_or_zero
from qkv.compiled.hints import wide_registers
from qkv.compiled.kernels import helper, kernel, reduction

ROUND = 16
"""Floats in one vector register; the scores of a row are padded to a multiple of it."""
LANES = np.uint64(ROUND)
# Unsigned, because Numba checks each signed index for being negative.
N0, N1, N2, N3, N4 = np.uint64(0), np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)
# Exact in float32; a Python float would promote float32 to float64.
ZERO, ONE = np.float32(0), np.float32(1)


@helper
def _visible_keys(mask, start, stride, keys, indices):
    """Write the indices of the keys that a row sees; return their number."""
    if mask.size == 0:
        for k in range(keys):
            indices[k] = k
        return keys
    count = np.uint64(0)
    for k in range(keys):
        indices[count] = k
        count += np.uint64(mask[start + k * stride])
    return count


@reduction
def _dots(x, start, y, y0, y1, y2, y3, width):
    """Return the dot products of one vector with four others; the four sums do not wait for one another."""
    wide_registers()
    s0, s1, s2, s3 = ZERO, ZERO, ZERO, ZERO
    for c in range(width):
        s0 += x[start + c] * y[y0 + c]
        s1 += x[start + c] * y[y1 + c]
        s2 += x[start + c] * y[y2 + c]
        s3 += x[start + c] * y[y3 + c]
    return s0, s1, s2, s3


@reduction
def _softmax(s, count):
    """s ← softmax(s) of the first `count` scores, by whole registers; return maximum and sum before division."""
    wide_registers()
    top = np.float32(-np.inf)
    for k in range(count):
        top = s[k] if s[k] > top else top
    base = top if top > -np.inf else ZERO
    whole = (count + LANES - N1) // LANES
    for k in range(count, whole * LANES):
        s[k] = -np.inf
    total = ZERO
    for k in range(whole * LANES):
        s[k] = exp_single_or_zero(s[k] - base)
        total += s[k]
    inverse = ONE / total if total != 0 else ZERO
    for k in range(whole * LANES):
        s[k] *= inverse
    return top, total


@helper
def _clear(out, to, value_width):
    for c in range(value_width):
        out[to + c] = ZERO


@helper
def _add_one(out, to, value_width, p, v, start):
    wide_registers()
    for c in range(value_width):
        out[to + c] += p * v[start + c]


@helper
def _add_four(out, to, value_width, p0, p1, p2, p3, v, v0, v1, v2, v3):
    wide_registers()
    for c in range(value_width):
        out[to + c] += (p0 * v[v0 + c] + p1 * v[v1 + c]) + (p2 * v[v2 + c] + p3 * v[v3 + c])


@helper
def _scores(query, x, of_head, key, y, sizes, scale, indices, count, scores):
    """Score the visible keys for all heads, four at a time; an incomplete group of four repeats the last key."""
    heads, width, by, of_key = sizes[0], sizes[3], sizes[9], sizes[10]
    for k in range(N0, count, N4):
        last = count - N1
        y0, y1 = y + indices[k] * of_key, y + indices[min(k + N1, last)] * of_key
        y2, y3 = y + indices[min(k + N2, last)] * of_key, y + indices[min(k + N3, last)] * of_key
        for h in range(heads):
            at = h * by
            s0, s1, s2, s3 = _dots(query, x + h * of_head, key, y0 + at, y1 + at, y2 + at, y3 + at, width)
            scores[h, k], scores[h, k + N1] = s0 * scale, s1 * scale
            scores[h, k + N2], scores[h, k + N3] = s2 * scale, s3 * scale


@helper
def _values(out, to, value, v, sizes, indices, count, scores):
    """Add the weighted values of the visible keys to the output of all heads."""
    heads, value_width, by, of_key = sizes[0], sizes[4], sizes[12], sizes[13]
    whole = count // N4 * N4
    for k in range(N0, whole, N4):
        v0, v1 = v + indices[k] * of_key, v + indices[k + N1] * of_key
        v2, v3 = v + indices[k + N2] * of_key, v + indices[k + N3] * of_key
        for h in range(heads):
            at, p0, p1, p2, p3 = h * by, scores[h, k], scores[h, k + N1], scores[h, k + N2], scores[h, k + N3]
            _add_four(out, to + h * value_width, value_width, p0, p1, p2, p3, value, v0 + at, v1 + at, v2 + at, v3 + at)
    for k in range(whole, count):
        for h in range(heads):
            _add_one(out, to + h * value_width, value_width, scores[h, k], value, v + indices[k] * of_key + h * by)


@kernel(
    "void(u8, u8, u8[::1], F, F[::1], F[::1], F[::1], b1[::1], F[::1], F[::1], u8[::1], F[:,::1])",
    scratch=2,
    single=True,
)
def forward(start, stop, sizes, scale, query, key, value, mask, out, lse, indices, scores):
    """Compute output and lse of the rows start to stop, counted over (B, Q), for all heads of each row.

    Keys and values are read position by position, all heads of a position together: this is the layout of a cache, so
    memory is read in order.

    Args:
        start, stop: the range of rows.
        sizes: H, Q, K, F and V; then strides: of query over B, H and Q, of key and value over B, H and K, of the mask
            over B, Q and K.
        scale: factor of the dot products.
        query, key, value: flat views from the first number to the last; the last dimension is contiguous.
        mask: likewise, one for all heads; of size zero if all keys are visible.
        out: (B, Q, H, V), flat.
        lse: (B, H, Q), flat; of size zero if it is not needed.
        indices, scores: scratch of this thread, K and (H, K), K rounded up to a multiple of 16.
    """
    heads, queries, keys, value_width = sizes[0], sizes[1], sizes[2], sizes[4]
    for row in range(start, stop):
        b, q = row // queries, row % queries
        count = _visible_keys(mask, b * sizes[14] + q * sizes[15], sizes[16], keys, indices)
        x, y, v = b * sizes[5] + q * sizes[7], b * sizes[8], b * sizes[11]
        _scores(query, x, sizes[6], key, y, sizes, scale, indices, count, scores)
        for h in range(heads):
            top, total = _softmax(scores[h], count)
            if lse.size:
                lse[(b * heads + h) * queries + q] = top + np.log(total) if total != 0 else top
        _clear(out, row * heads * value_width, heads * value_width)
        _values(out, row * heads * value_width, value, v, sizes, indices, count, scores)


@kernel("void(u8, u8, u8[::1], F[::1], F[::1], F[::1])", single=True)
def append(start, stop, sizes, fresh, key, value):
    """Append the new keys and values of the batch items start to stop to the cached ones.

    Args:
        start, stop: the range of items.
        sizes: N and K, the number of new positions and the number after appending; H·F and H·V; then strides: of
            `fresh` over B and N, of keys over B and K, of values over B and K.
        fresh: queries, keys and values of all heads concatenated, as one fused projection returns them.
        key, value: (B, K, H, F) and (B, K, H, V), flat views from the first number on; written.
    """
    new, keys, width, value_width = sizes[0], sizes[1], sizes[2], sizes[3]
    for b in range(start, stop):
        for n in range(new):
            at, k = b * sizes[4] + n * sizes[5] + width, keys - new + n
            to_key, to_value = b * sizes[6] + k * sizes[7], b * sizes[8] + k * sizes[9]
            for c in range(width):
                key[to_key + c] = fresh[at + c]
            for c in range(value_width):
                value[to_value + c] = fresh[at + width + c]
