"""Softmax attention by dot products where sequences are short: an item's tables lie in the first cache, all at once.

Products of tables so small gain nothing from a library, which takes as long to be called as to compute: they are made
in registers (`qkv.linalg.small_matmul`). Operands are read and gradients are written where they lie in the projections
of all heads, in float32 or bfloat16; between them everything is float32.
"""

# mypy: ignore-errors
# Numba's signatures are the types here.

import numpy as np

from qkv.algorithms.sdpa.row_softmax import slope, softmax
from qkv.compiled.kernels import Kernel, helper
from qkv.linalg.padded_rows import ZERO, clear, load, store, whole
from qkv.linalg.small_matmul import BLOCK, N0, N1, by_keys, by_rows, pairs, turn


@helper
def _ends(first, last, at, keys):
    """From and to which key a row sees, low ≤ high."""
    low, high = np.uint64(max(first[at], np.int32(0))), min(np.uint64(max(last[at], np.int32(0))), keys)
    return min(low, high), high


@helper
def _reach(first, last, start, by, queries, keys, rows, edges):
    """From and to which key each row sees, and each block of rows; then the whole item. What sees nothing: K and 0."""
    low, high = keys, N0
    for block in range(rows // BLOCK):
        least, most = keys, N0
        for r in range(block * BLOCK, min(block * BLOCK + BLOCK, queries)):
            f, t = _ends(first, last, start + r * by, keys)
            if f < t:
                least, most = min(least, f), max(most, t)
        edges[block, 0], edges[block, 1] = least, most
        low, high = min(low, least), max(high, most)
    return low, max(low, high)


@helper
def _take(x, start, of_row, first, last, f, by, queries, keys, width, to, deep, rows):
    """What there is of each query as a table; zeros where one sees nothing, whatever it holds."""
    load(x, start, of_row, N0, queries, width, to, deep, rows)
    for r in range(queries):
        low, high = _ends(first, last, f + r * by, keys)
        if low == high:
            clear(to, r * deep, (r + N1) * deep)


@helper
def _weights(s, to, lanes, first, last, f, by, queries, keys, block, scale, sink, lse, start):
    """From a block's scores to weights, row by row; the row state, where there is room for it."""
    stop = min(block * BLOCK + BLOCK, queries)
    for r in range(block * BLOCK, stop):
        low, high = _ends(first, last, f + r * by, keys)
        top, total = softmax(s, to + (r - block * BLOCK) * lanes, low, high, lanes, scale, sink)
        if lse.size:
            lse[start + r] = top + np.log(total) if total != 0 else -np.inf
    clear(s, to + (stop - block * BLOCK) * lanes, to + BLOCK * lanes)


@helper
def _slopes(w, d, lanes, first, last, f, by, queries, keys, block, scale, sink, lse):
    """From a block's gradients of weights to those of products, row by row; the gradient of the sink."""
    pulled = ZERO
    stop = min(block * BLOCK + BLOCK, queries)
    for r in range(block * BLOCK, stop):
        low, high = _ends(first, last, f + r * by, keys)
        level = slope(w, d, r * lanes, low, high, lanes, scale)
        if sink != -np.inf:
            pulled -= np.exp(sink - lse[r]) * level
    clear(d, stop * lanes, (block + N1) * BLOCK * lanes)
    return pulled


def _forward(start, stop, sizes, scale, query, key, value, first, last, sink, out, lse, q, k, v, t, s, o, edges):
    """Compute the items start to stop, counted over (B, H).

    Args:
        start, stop: the range of items.
        sizes: H, Q, K, F and V; then strides: of query, key and value over B, H and their rows, of the bounds over B, H
            and Q.
        scale: multiplies the products.
        query, key, value: from their first number to their last; the last dimension lies together.
        first, last: the keys that a row sees, likewise.
        sink: of each item, −inf for none.
        out: (B, Q, H, V), flat.
        lse: (B, H, Q), flat; of size zero where it is not wanted.
        q, k, v, t, s, o: tables of this thread, (Q, F), (K, F), (K, V), (F, K), (8, K) and (8, V), flat, other sizes
            than 8 multiples of 16.
        edges: of this thread, two for eight queries.
    """
    heads, queries, keys, width, wide = sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]
    rows, lanes, deep, broad = whole(queries), whole(keys), whole(width), whole(wide)
    for item in range(start, stop):
        b, h = item // heads, item % heads
        f, by = b * sizes[14] + h * sizes[15], sizes[16]
        low, high = _reach(first, last, f, by, queries, keys, rows, edges)
        _take(query, b * sizes[5] + h * sizes[6], sizes[7], first, last, f, by, queries, keys, width, q, deep, rows)
        load(key, b * sizes[8] + h * sizes[9], sizes[10], low, high, width, k, deep, lanes)
        load(value, b * sizes[11] + h * sizes[12], sizes[13], low, high, wide, v, broad, lanes)
        turn(k, lanes, deep, t)
        for block in range((queries + BLOCK - N1) // BLOCK):
            # A block's scores and weights stay in the first cache.
            r = block * BLOCK
            pairs(s, N0, lanes, q, deep, t, edges, block)
            _weights(s, N0, lanes, first, last, f, by, queries, keys, block, scale, sink[item], lse, item * queries)
            by_rows(o, N0, broad, s, N0, lanes, v, edges, block)
            place = ((b * queries + r) * heads + h) * wide
            store(o, min(BLOCK, queries - r), wide, broad, out, place, heads * wide)


def _backward(
    start,
    stop,
    sizes,
    scale,
    query,
    key,
    value,
    grad,
    first,
    last,
    sink,
    to_q,
    to_k,
    to_v,
    to_sink,
    none,
    q,
    k,
    v,
    g,
    t,
    u,
    s,
    d,
    lse,
    edges,
):
    """Compute the gradients of the items start to stop, from weights made again.

    Args:
        start, stop, scale, query, key, value, first, last, sink: as `forward`.
        sizes: as `forward`; then the strides of the output's gradient over B, H and Q.
        grad: of the output, from its first number to its last; the last dimension lies together.
        to_q, to_k, to_v: (B, Q, H, F), (B, K, H, F) and (B, K, H, V), flat.
        to_sink: of each item.
        none: of size zero.
        q, k, v, g, t, u, s, d: tables of this thread, (Q, F), (K, F), (K, V), (Q, V), the largest of these, (V, K), and
            twice (Q, K).
        lse: of this thread, one for each query.
        edges: of this thread, two for eight queries.
    """
    heads, queries, keys, width, wide = sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]
    rows, lanes, deep, broad = whole(queries), whole(keys), whole(width), whole(wide)
    for item in range(start, stop):
        b, h = item // heads, item % heads
        f, by = b * sizes[14] + h * sizes[15], sizes[16]
        low, high = _reach(first, last, f, by, queries, keys, rows, edges)
        _take(query, b * sizes[5] + h * sizes[6], sizes[7], first, last, f, by, queries, keys, width, q, deep, rows)
        load(key, b * sizes[8] + h * sizes[9], sizes[10], low, high, width, k, deep, lanes)
        load(value, b * sizes[11] + h * sizes[12], sizes[13], low, high, wide, v, broad, lanes)
        _take(grad, b * sizes[17] + h * sizes[18], sizes[19], first, last, f, by, queries, keys, wide, g, broad, rows)
        turn(k, lanes, deep, t)
        turn(v, lanes, broad, u)
        pulled = ZERO
        for block in range(rows // BLOCK):
            to = block * BLOCK * lanes
            pairs(s, to, lanes, q, deep, t, edges, block)
            state = lse if sink[item] != -np.inf else none
            _weights(s, to, lanes, first, last, f, by, queries, keys, block, scale, sink[item], state, N0)
            pairs(d, to, lanes, g, broad, u, edges, block)
            pulled += _slopes(s, d, lanes, first, last, f, by, queries, keys, block, scale, sink[item], lse)
        to_sink[item] = pulled
        by_keys(t, broad, lanes, s, lanes, g, edges, rows)
        store(t, keys, wide, broad, to_v, (b * keys * heads + h) * wide, heads * wide)
        by_keys(t, deep, lanes, d, lanes, q, edges, rows)
        store(t, keys, width, deep, to_k, (b * keys * heads + h) * width, heads * width)
        for block in range(rows // BLOCK):
            r = block * BLOCK
            by_rows(t, r * deep, deep, d, r * lanes, lanes, k, edges, block)
        store(t, queries, width, deep, to_q, (b * queries * heads + h) * width, heads * width)


def _kernels(function, signature):
    """A kernel for each type in which operands are stored: float32, and the bits of bfloat16."""
    return {size: Kernel(function, signature.replace("T", letter)) for size, letter in ((4, "f4"), (2, "u2"))}


forward = _kernels(
    _forward,
    "void(u8, u8, u8[::1], F, T[::1], T[::1], T[::1], i4[::1], i4[::1], F[::1], T[::1], F[::1], "
    "F[::1], F[::1], F[::1], F[::1], F[::1], F[::1], u8[:,::1])",
)
backward = _kernels(
    _backward,
    "void(u8, u8, u8[::1], F, T[::1], T[::1], T[::1], T[::1], i4[::1], i4[::1], F[::1], T[::1], T[::1], T[::1], "
    "F[::1], F[::1], F[::1], F[::1], F[::1], F[::1], F[::1], F[::1], F[::1], F[::1], F[::1], u8[:,::1])",
)
