"""Softmax attention by dot products where sequences are short: an item's tables lie in the first cache, all at once.

Products of tables so small gain nothing from a library, which takes as long to be called as to compute: here eight rows
of sixteen sums stay in registers while their terms pass by. Operands are read and gradients are written where they lie
in the projections of all heads, in float32 or bfloat16; between them everything is float32.
"""

# mypy: ignore-errors
# Numba's signatures are the types here.

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic, overload

from qkv.kernels.compiled import Kernel, helper, reduction, wide_registers

ROUND = 16
"""Numbers of one register; rows and columns of tables fill whole ones."""
ROWS = 8
"""Registers that hold sums: enough for each to be ready again when its next term comes."""
# Unsigned: a place that may count from the end would have to be looked at each time.
LANES, BLOCK, N0, N1 = np.uint64(ROUND), np.uint64(ROWS), np.uint64(0), np.uint64(1)
# Exact in float32; a Python number would lift float32 to float64.
ZERO, ONE, LEAST = np.float32(0), np.float32(1), np.float32(-87.0)
LOG2E, HIGH, LOW = np.float32(1.4426950408889634), np.float32(0.693359375), np.float32(-2.12194440e-4)
D2, D3, D4 = np.float32(5.0000001201e-1), np.float32(1.6666665459e-1), np.float32(4.1665795894e-2)
D5, D6, D7 = np.float32(8.3334519073e-3), np.float32(1.3981999507e-3), np.float32(1.9875691500e-4)


def _wide(x):
    """The number that 32 bits, or the upper 16 of them, stand for; in plain Python the former alone."""
    return x


@overload(_wide, inline="always")
def _wide_of(x):
    if isinstance(x, types.Float):
        return lambda x: x
    return lambda x: np.uint32(np.uint32(x) << np.uint32(16)).view(np.float32)


def _put(to, at, x):
    """Write a number down, rounded to the nearest, ties to even, where 16 bits are kept."""
    to[at] = x


@overload(_put, inline="always")
def _put_in(to, at, x):
    if isinstance(to.dtype, types.Float):

        def put(to, at, x):
            to[at] = x

    else:

        def put(to, at, x):
            bits = np.float32(x).view(np.uint32)
            even = np.uint32(0x7FFF) + np.uint32((bits >> np.uint32(16)) & np.uint32(1))
            rounded = np.uint32(np.uint32(bits + even) >> np.uint32(16))
            to[at] = np.uint16(0x7FC0) if np.isnan(x) else np.uint16(rounded)

    return put


@helper
def _exp(x):
    """e^x within one unit of the last place, for x ≤ 0; exactly 0 below e^−87; NaN stays NaN.

    Source: Moshier, Cephes, `expf`.
    """
    y = LEAST if x < LEAST else x
    n = np.rint(y * LOG2E)
    r = (y - n * HIGH) - n * LOW
    p = D2 + r * (D3 + r * (D4 + r * (D5 + r * (D6 + r * D7))))
    scale = np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)
    e = (r * r * p + r) * scale + scale
    return ZERO if x < LEAST else e


@intrinsic
def _tile(_, c, to, of_c, a, x, of_a, by, b, y, of_b, terms):
    """c ← a·b for eight rows of c and sixteen columns, whose sums stay in registers.

    Row i of c begins at `to + i·of_c`; its term t lies in a at `x + i·of_a + t·by`, and row t of b at `y + t·of_b`.
    Numba's loops write their sums back to memory after each term: eight times as slow.
    """

    def make(context, builder, signature, given):
        data = [context.make_array(signature.args[i])(context, builder, given[i]).data for i in (0, 3, 7)]
        c, a, b = (builder.gep(start, [given[i]]) for start, i in zip(data, (1, 4, 8), strict=True))
        of_c, of_a, by, of_b, terms = (given[i] for i in (2, 5, 6, 9, 10))
        word, index = ir.IntType(64), ir.IntType(32)
        register = ir.VectorType(ir.FloatType(), ROUND)
        none, zero = ir.Constant(register, ir.Undefined), ir.Constant(register, [0.0] * ROUND)
        everywhere = ir.Constant(ir.VectorType(index, ROUND), [0] * ROUND)
        rows = [builder.mul(of_a, word(i)) for i in range(ROWS)]
        before, each, after = builder.block, builder.append_basic_block(), builder.append_basic_block()
        builder.cbranch(builder.icmp_unsigned("==", terms, word(0)), after, each)

        builder.position_at_end(each)
        counts = [builder.phi(word) for _ in range(3)]
        sums = [builder.phi(register) for _ in range(ROWS)]
        row = builder.load(builder.bitcast(builder.gep(b, [counts[2]]), register.as_pointer()), align=4)
        added = []
        for start, total in zip(rows, sums, strict=True):
            number = builder.load(builder.gep(a, [builder.add(start, counts[1])]))
            spread = builder.shuffle_vector(builder.insert_element(none, number, index(0)), none, everywhere)
            share = builder.fmul(spread, row, flags=("contract",))
            added.append(builder.fadd(share, total, flags=("contract",)))
        next_ = [builder.add(now, step) for now, step in zip(counts, (word(1), by, of_b), strict=True)]
        builder.cbranch(builder.icmp_unsigned("<", next_[0], terms), each, after)
        for now, start, then in zip((*counts, *sums), [word(0)] * 3 + [zero] * ROWS, (*next_, *added), strict=True):
            now.add_incoming(start, before)
            now.add_incoming(then, each)

        builder.position_at_end(after)
        found = [builder.phi(register) for _ in range(ROWS)]
        for i, (total, then) in enumerate(zip(found, added, strict=True)):
            total.add_incoming(zero, before)
            total.add_incoming(then, each)
            found[i] = total
        for i, total in enumerate(found):
            place = builder.gep(c, [builder.mul(of_c, word(i))])
            builder.store(total, builder.bitcast(place, register.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(c, to, of_c, a, x, of_a, by, b, y, of_b, terms), make


@helper
def _zero(x, start, stop):
    wide_registers()
    for i in range(start, stop):
        x[i] = ZERO


@helper
def _load(x, start, of_row, first, last, width, to, deep, rows):
    """Lay the rows first to last out as (rows, deep), zeros around them."""
    wide_registers()
    _zero(to, N0, first * deep)
    for r in range(first, last):
        at, begin = r * deep, start + r * of_row
        for c in range(width):
            to[at + c] = _wide(x[begin + c])
        for c in range(width, deep):
            to[at + c] = ZERO
    _zero(to, last * deep, rows * deep)


@helper
def _turn(x, rows, deep, to):
    """(rows, deep) to (deep, rows)."""
    for c in range(deep):
        for r in range(rows):
            to[c * rows + r] = x[r * deep + c]


@helper
def _store(x, rows, width, deep, to, start, of_row):
    wide_registers()
    for r in range(rows):
        at, begin = r * deep, start + r * of_row
        for c in range(width):
            _put(to, begin + c, x[at + c])


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
    _load(x, start, of_row, N0, queries, width, to, deep, rows)
    for r in range(queries):
        low, high = _ends(first, last, f + r * by, keys)
        if low == high:
            _zero(to, r * deep, (r + N1) * deep)


@helper
def _by_rows(c, of_c, width, a, of_a, b, edges, rows):
    """c ← a·b where each block of rows of a has terms for the keys that it sees alone."""
    for block in range(rows // BLOCK):
        low, high = edges[block, 0], max(edges[block, 0], edges[block, 1])
        r = block * BLOCK
        for j in range(N0, width, LANES):
            _tile(c, r * of_c + j, of_c, a, r * of_a + low, of_a, N1, b, low * width + j, width, high - low)


@helper
def _pairs(c, lanes, a, deep, turned, edges, rows):
    """c ← a·(b turned) where a block of rows gets columns for the registers of keys in which it sees any."""
    for block in range(rows // BLOCK):
        r = block * BLOCK
        for j in range(edges[block, 0] // LANES * LANES, edges[block, 1], LANES):
            _tile(c, r * lanes + j, lanes, a, r * deep, deep, N1, turned, j, lanes, deep)


@helper
def _by_keys(c, width, keys, a, lanes, b, edges, rows):
    """c ← aᵀ·b: a block of keys adds up the blocks of rows that see any of them."""
    blocks = rows // BLOCK
    for k in range(N0, keys, BLOCK):
        start, stop = blocks, N0
        for block in range(blocks):
            if edges[block, 0] < k + BLOCK and edges[block, 1] > k:
                start, stop = min(start, block), block + N1
        i, count = start * BLOCK, (stop - start) * BLOCK if stop > start else N0
        for j in range(N0, width, LANES):
            _tile(c, k * width + j, width, a, i * lanes + k, N1, lanes, b, i * width + j, width, count)


@reduction
def _softmax(s, at, first, last, lanes, scale, sink):
    """s ← softmax(scale·s) of what a row sees beside a sink, zeros elsewhere; what was subtracted, and the sum before
    division."""
    wide_registers()
    top = np.float32(-np.inf)
    for k in range(first, last):
        # Scaled first: a scale may be negative.
        scaled = s[at + k] * scale
        top = scaled if scaled > top else top
    top = max(top, sink)
    base = top if top > -np.inf else ZERO
    low, high = first // LANES * LANES, (last + LANES - N1) // LANES * LANES
    for k in range(low, high):
        s[at + k] = _exp(s[at + k] * scale - base)
    _zero(s, at, at + first)
    _zero(s, at + last, at + lanes)
    total = _exp(sink - base)
    for k in range(low, high):
        total += s[at + k]
    share = ONE / total if total != 0 else ZERO
    for k in range(low, high):
        s[at + k] *= share
    return top, total


@helper
def _weights(s, lanes, first, last, f, by, queries, keys, rows, scale, sink, lse, start):
    """From scores to weights, row by row; the row state, where there is room for it."""
    for r in range(queries):
        low, high = _ends(first, last, f + r * by, keys)
        top, total = _softmax(s, r * lanes, low, high, lanes, scale, sink)
        if lse.size:
            lse[start + r] = top + np.log(total) if total != 0 else -np.inf
    _zero(s, queries * lanes, rows * lanes)


@reduction
def _slope(w, d, at, first, last, lanes, scale):
    """d ← scale·w(d − Σwd), the gradient of a row's products."""
    wide_registers()
    _zero(d, at, at + first)
    _zero(d, at + last, at + lanes)
    level = ZERO
    for k in range(first, last):
        level += w[at + k] * d[at + k]
    for k in range(first, last):
        d[at + k] = w[at + k] * (d[at + k] - level) * scale


@helper
def _slopes(w, d, lanes, first, last, f, by, queries, keys, rows, scale):
    for r in range(queries):
        low, high = _ends(first, last, f + r * by, keys)
        _slope(w, d, r * lanes, low, high, lanes, scale)
    _zero(d, queries * lanes, rows * lanes)


@helper
def _whole(size):
    """A size rounded up to whole registers."""
    return (size + LANES - N1) // LANES * LANES


def _forward(start, stop, sizes, scale, query, key, value, first, last, sink, out, lse, q, k, v, t, s, edges):
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
        q, k, v, t, s: tables of this thread, (Q, F), (K, F), (K, V), (K, F) or (Q, V), and (Q, K), flat, each size a
            multiple of 16.
        edges: of this thread, two for eight queries.
    """
    heads, queries, keys, width, wide = sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]
    rows, lanes, deep, broad = _whole(queries), _whole(keys), _whole(width), _whole(wide)
    for item in range(start, stop):
        b, h = item // heads, item % heads
        f, by = b * sizes[14] + h * sizes[15], sizes[16]
        low, high = _reach(first, last, f, by, queries, keys, rows, edges)
        _take(query, b * sizes[5] + h * sizes[6], sizes[7], first, last, f, by, queries, keys, width, q, deep, rows)
        _load(key, b * sizes[8] + h * sizes[9], sizes[10], low, high, width, k, deep, lanes)
        _load(value, b * sizes[11] + h * sizes[12], sizes[13], low, high, wide, v, broad, lanes)
        _turn(k, lanes, deep, t)
        _pairs(s, lanes, q, deep, t, edges, rows)
        _weights(s, lanes, first, last, f, by, queries, keys, rows, scale, sink[item], lse, item * queries)
        _by_rows(t, broad, broad, s, lanes, v, edges, rows)
        _store(t, queries, wide, broad, out, (b * queries * heads + h) * wide, heads * wide)


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
    none,
    q,
    k,
    v,
    g,
    t,
    s,
    d,
    edges,
):
    """Compute the gradients of the items start to stop, from weights made again.

    Args:
        start, stop, scale, query, key, value, first, last, sink: as `forward`.
        sizes: as `forward`; then the strides of the output's gradient over B, H and Q.
        grad: of the output, from its first number to its last; the last dimension lies together.
        to_q, to_k, to_v: (B, Q, H, F), (B, K, H, F) and (B, K, H, V), flat.
        none: of size zero.
        q, k, v, g, t, s, d: tables of this thread, (Q, F), (K, F), (K, V), (Q, V), the largest of these, and twice
            (Q, K).
        edges: of this thread, two for eight queries.
    """
    heads, queries, keys, width, wide = sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]
    rows, lanes, deep, broad = _whole(queries), _whole(keys), _whole(width), _whole(wide)
    for item in range(start, stop):
        b, h = item // heads, item % heads
        f, by = b * sizes[14] + h * sizes[15], sizes[16]
        low, high = _reach(first, last, f, by, queries, keys, rows, edges)
        _take(query, b * sizes[5] + h * sizes[6], sizes[7], first, last, f, by, queries, keys, width, q, deep, rows)
        _load(key, b * sizes[8] + h * sizes[9], sizes[10], low, high, width, k, deep, lanes)
        _load(value, b * sizes[11] + h * sizes[12], sizes[13], low, high, wide, v, broad, lanes)
        _take(grad, b * sizes[17] + h * sizes[18], sizes[19], first, last, f, by, queries, keys, wide, g, broad, rows)
        _turn(k, lanes, deep, t)
        _pairs(s, lanes, q, deep, t, edges, rows)
        _weights(s, lanes, first, last, f, by, queries, keys, rows, scale, sink[item], none, N0)
        _turn(v, lanes, broad, t)
        _pairs(d, lanes, g, broad, t, edges, rows)
        _slopes(s, d, lanes, first, last, f, by, queries, keys, rows, scale)
        _by_keys(t, broad, lanes, s, lanes, g, edges, rows)
        _store(t, keys, wide, broad, to_v, (b * keys * heads + h) * wide, heads * wide)
        _by_keys(t, deep, lanes, d, lanes, q, edges, rows)
        _store(t, keys, width, deep, to_k, (b * keys * heads + h) * width, heads * width)
        _by_rows(t, deep, deep, d, lanes, k, edges, rows)
        _store(t, queries, width, deep, to_q, (b * queries * heads + h) * width, heads * width)


def _kernels(function, signature):
    """A kernel for each type in which operands are stored: float32, and the bits of bfloat16."""
    return {size: Kernel(function, signature.replace("T", letter)) for size, letter in ((4, "f4"), (2, "u2"))}


forward = _kernels(
    _forward,
    "void(u8, u8, u8[::1], F, T[::1], T[::1], T[::1], i4[::1], i4[::1], F[::1], T[::1], F[::1], "
    "F[::1], F[::1], F[::1], F[::1], F[::1], u8[:,::1])",
)
backward = _kernels(
    _backward,
    "void(u8, u8, u8[::1], F, T[::1], T[::1], T[::1], T[::1], i4[::1], i4[::1], F[::1], T[::1], T[::1], T[::1], "
    "F[::1], F[::1], F[::1], F[::1], F[::1], F[::1], F[::1], F[::1], u8[:,::1])",
)
