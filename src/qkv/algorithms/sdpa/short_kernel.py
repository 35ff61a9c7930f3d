"""Softmax attention over dot products for short sequences, of which all matrices of an item fit the L1 and L2 caches.

For products this small, calling a library takes as long as computing them, so they are computed in registers
(`qkv.linalg.small_matmul`). Operands are read from, and gradients written to, the projections of all heads, in float32
or bfloat16; everything between is float32.
"""

# mypy: ignore-errors
# Numba's signatures are the types here.

import numpy as np

from qkv.algorithms.sdpa.row_softmax import softmax, softmax_backward
from qkv.compiled.kernels import Kernel, helper
from qkv.linalg.padded_rows import clear, load, round_up, store
from qkv.linalg.small_matmul import (
    BLOCK,
    N0,
    N1,
    multiply_panels,
    multiply_transposed,
    multiply_visible,
    transpose_to_panels,
)


@helper
def _key_range(first, last, at, keys):
    """Return the range of keys that a row sees, low ≤ high."""
    low, high = np.uint64(max(first[at], np.int32(0))), min(np.uint64(max(last[at], np.int32(0))), keys)
    return min(low, high), high


@helper
def _key_ranges(first, last, start, by, queries, keys, padded_rows, ranges):
    """Write the range of keys that each block of rows sees, K and 0 if none; return that of the item, low ≤ high."""
    low, high = keys, N0
    for block in range(padded_rows // BLOCK):
        lowest, highest = keys, N0
        for r in range(block * BLOCK, min(block * BLOCK + BLOCK, queries)):
            f, t = _key_range(first, last, start + r * by, keys)
            if f < t:
                lowest, highest = min(lowest, f), max(highest, t)
        ranges[block, 0], ranges[block, 1] = lowest, highest
        low, high = min(low, lowest), max(high, highest)
    return low, max(low, high)


@helper
def _load_rows(x, start, of_row, first, last, f, by, queries, keys, width, to, padded_width, padded_rows):
    """Copy queries, or gradients of their outputs, into a table, with zeros for queries that see no key."""
    load(x, start, of_row, N0, queries, width, to, padded_width, padded_rows)
    for r in range(queries):
        low, high = _key_range(first, last, f + r * by, keys)
        if low == high:
            clear(to, r * padded_width, (r + N1) * padded_width)


@helper
def _weights(s, to, padded_keys, first, last, f, by, queries, keys, block, scale, sink, lse, start):
    """s ← the weights of a block of rows, from products; lse ← their row states, unless of size zero."""
    stop = min(block * BLOCK + BLOCK, queries)
    for r in range(block * BLOCK, stop):
        low, high = _key_range(first, last, f + r * by, keys)
        top, total = softmax(s, to + (r - block * BLOCK) * padded_keys, low, high, padded_keys, scale, sink)
        if lse.size:
            lse[start + r] = np.float64(top) + np.log(np.float64(total)) if total != 0 else -np.inf
    clear(s, to + (stop - block * BLOCK) * padded_keys, to + BLOCK * padded_keys)


@helper
def _backward_rows(w, d, padded_keys, first, last, f, by, queries, keys, block, scale, sink, lse):
    """d ← the gradients of a block's products, from those of its weights w; return the gradient of the sink."""
    g_sink = np.float64(0)
    stop = min(block * BLOCK + BLOCK, queries)
    for r in range(block * BLOCK, stop):
        low, high = _key_range(first, last, f + r * by, keys)
        mean = softmax_backward(w, d, r * padded_keys, low, high, padded_keys, scale)
        if sink != -np.inf:
            g_sink -= np.exp(np.float64(sink) - lse[r]) * mean
    clear(d, stop * padded_keys, (block + N1) * BLOCK * padded_keys)
    return g_sink


def _forward(start, stop, sizes, scale, query, key, value, first, last, sink, out, lse, q, k, v, t, s, o, ranges):
    """Compute the items start to stop, counted over (B, H).

    Args:
        start, stop: the range of items.
        sizes: H, Q, K, F and V; then strides: of query, key and value over B, H and their rows, of the bounds over B, H
            and Q.
        scale: multiplies the products.
        query, key, value: flat views from the first number to the last; the last dimension is contiguous.
        first, last: the range of keys that a row sees, flat views.
        sink: of each item, −inf for none.
        out: (B, Q, H, V), flat.
        lse: (B, H, Q), flat, float64; of size zero if not requested.
        q, k, v, t, s, o: scratch of this thread, (Q, F), (K, F), (K, V), (F, K), (8, K) and (8, V), flat, sizes other
            than 8 rounded up to multiples of 16.
        ranges: scratch of this thread, two numbers per eight queries.
    """
    heads, queries, keys, width, value_width = sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]
    padded_rows, padded_keys = round_up(queries), round_up(keys)
    padded_width, padded_value_width = round_up(width), round_up(value_width)
    for item in range(start, stop):
        b, h = item // heads, item % heads
        f, by = b * sizes[14] + h * sizes[15], sizes[16]
        low, high = _key_ranges(first, last, f, by, queries, keys, padded_rows, ranges)
        _load_rows(
            query, b * sizes[5] + h * sizes[6], sizes[7], first, last, f, by, queries, keys, width, q, padded_width,
            padded_rows,
        )  # fmt: skip
        load(key, b * sizes[8] + h * sizes[9], sizes[10], low, high, width, k, padded_width, padded_keys)
        load(
            value, b * sizes[11] + h * sizes[12], sizes[13], low, high, value_width, v, padded_value_width, padded_keys
        )
        transpose_to_panels(k, padded_keys, padded_width, t)
        for block in range((queries + BLOCK - N1) // BLOCK):
            # A block's scores and weights stay in the L1 cache.
            r = block * BLOCK
            multiply_panels(s, N0, padded_keys, q, padded_width, t, ranges, block)
            _weights(
                s, N0, padded_keys, first, last, f, by, queries, keys, block, scale, sink[item], lse, item * queries
            )
            multiply_visible(o, N0, padded_value_width, s, N0, padded_keys, v, ranges, block)
            at = ((b * queries + r) * heads + h) * value_width
            store(o, min(BLOCK, queries - r), value_width, padded_value_width, out, at, heads * value_width)


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
    d_query,
    d_key,
    d_value,
    d_sink,
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
    ranges,
):
    """Compute the gradients of the items start to stop, with recomputed weights.

    Args:
        start, stop, scale, query, key, value, first, last, sink: as `forward`.
        sizes: as `forward`; then the strides of the output's gradient over B, H and Q.
        grad: gradient of the output, a flat view; the last dimension is contiguous.
        d_query, d_key, d_value: (B, Q, H, F), (B, K, H, F) and (B, K, H, V), flat, written.
        d_sink: of each item, written.
        none: of size zero.
        q, k, v, g, t, u, s, d: scratch of this thread, (Q, F), (K, F), (K, V), (Q, V), the largest of these, (V, K),
            and twice (Q, K).
        lse: scratch of this thread, one float64 number per query.
        ranges: scratch of this thread, two numbers per eight queries.
    """
    heads, queries, keys, width, value_width = sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]
    padded_rows, padded_keys = round_up(queries), round_up(keys)
    padded_width, padded_value_width = round_up(width), round_up(value_width)
    for item in range(start, stop):
        b, h = item // heads, item % heads
        f, by = b * sizes[14] + h * sizes[15], sizes[16]
        low, high = _key_ranges(first, last, f, by, queries, keys, padded_rows, ranges)
        _load_rows(
            query, b * sizes[5] + h * sizes[6], sizes[7], first, last, f, by, queries, keys, width, q, padded_width,
            padded_rows,
        )  # fmt: skip
        load(key, b * sizes[8] + h * sizes[9], sizes[10], low, high, width, k, padded_width, padded_keys)
        load(
            value, b * sizes[11] + h * sizes[12], sizes[13], low, high, value_width, v, padded_value_width, padded_keys
        )
        _load_rows(
            grad, b * sizes[17] + h * sizes[18], sizes[19], first, last, f, by, queries, keys, value_width, g,
            padded_value_width, padded_rows,
        )  # fmt: skip
        transpose_to_panels(k, padded_keys, padded_width, t)
        transpose_to_panels(v, padded_keys, padded_value_width, u)
        g_sink = np.float64(0)
        for block in range(padded_rows // BLOCK):
            to = block * BLOCK * padded_keys
            multiply_panels(s, to, padded_keys, q, padded_width, t, ranges, block)
            state = lse if sink[item] != -np.inf else none
            _weights(s, to, padded_keys, first, last, f, by, queries, keys, block, scale, sink[item], state, N0)
            multiply_panels(d, to, padded_keys, g, padded_value_width, u, ranges, block)
            g_sink += _backward_rows(
                s, d, padded_keys, first, last, f, by, queries, keys, block, scale, sink[item], lse
            )
        d_sink[item] = g_sink
        multiply_transposed(t, padded_value_width, padded_keys, s, padded_keys, g, ranges, padded_rows)
        store(
            t, keys, value_width, padded_value_width, d_value, (b * keys * heads + h) * value_width, heads * value_width
        )
        multiply_transposed(t, padded_width, padded_keys, d, padded_keys, q, ranges, padded_rows)
        store(t, keys, width, padded_width, d_key, (b * keys * heads + h) * width, heads * width)
        for block in range(padded_rows // BLOCK):
            r = block * BLOCK
            multiply_visible(t, r * padded_width, padded_width, d, r * padded_keys, padded_keys, k, ranges, block)
        store(t, queries, width, padded_width, d_query, (b * queries * heads + h) * width, heads * width)


def _kernels(function, signature, scratch):
    """Return a kernel for each type in which operands are stored, float32 and the bits of bfloat16, by their size."""
    letters = {4: "f4", 2: "u2"}
    return {
        size: Kernel(function, signature.replace("T", letter), scratch, single=True) for size, letter in letters.items()
    }


forward = _kernels(
    _forward,
    "void(u8, u8, u8[::1], F, T[::1], T[::1], T[::1], i4[::1], i4[::1], F[::1], T[::1], f8[::1], "
    "F[::1], F[::1], F[::1], F[::1], F[::1], F[::1], u8[:,::1])",
    scratch=7,
)
backward = _kernels(
    _backward,
    "void(u8, u8, u8[::1], F, T[::1], T[::1], T[::1], T[::1], i4[::1], i4[::1], F[::1], T[::1], T[::1], T[::1], "
    "f8[::1], f8[::1], F[::1], F[::1], F[::1], F[::1], F[::1], F[::1], F[::1], F[::1], f8[::1], u8[:,::1])",
    scratch=10,
)
