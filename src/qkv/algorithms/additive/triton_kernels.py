"""Additive attention on a GPU: Triton kernels that stream over keys and never hold a (Q, K) or (Q, K, A) tensor.

The tanh is the factored one of `qkv.algorithms.additive.factored`, with its ranges, centers, clamps and cap (1 to 3
there), over all queries and keys of an item, of which those that no row sees are 0. What differs:

- *Rounding.* d = EF + 1 is one fused multiply-add of the two rounded factors: it rounds by u·d, which moves t = 1 − 2/d
  by 2u/d, at x = 0 as far as one rounding of EF. v(EF − 1) = vd − 2v is another, and rounds by at most u|v|d, which
  moves vt by u|v|. A pair and feature takes two instructions for them instead of three.
- *Cap.* d instead of EF is at most 2^28. Four of them multiply to 2^112, and their numerator is at most 4·2^12·2^112 =
  2^126: all are finite.
- *Everything else*, small activations too, is tanh(a + b) by (e^2x − 1)/(e^2x + 1) in float32, within 2.5 units of the
  last place also near 0 (`qkv.compiled.tanh`); NaN stays NaN.

Where one weight of a row is nearly 1, the gradient of its score is a difference of two equal numbers, the products of
the output's gradient with value and output. So both are products of tiles, with their factors in the same order, which
is another one for queries than for keys: in any other order, as in PyTorch's flash kernel, their roundings differ, and
a vector of 5,000 multiplies the difference.

Features are ordered on the device: first those that need no cap, then those that do, each padded to fours with
features of weight 0, then the others. No number is read on the host.
"""

# mypy: ignore-errors
# Triton's functions are compiled from their source; types are those of its tensors.

import triton
import triton.language as tl
from triton import knobs

LOG2E = tl.constexpr(1.4426950408889634)
TWICE_LOG2E = tl.constexpr(2.8853900817779268)
LN2 = tl.constexpr(0.6931471805599453)
# X₀, the largest R + ½ + X₀, the least max|a| + max|b|, the largest a + b without a cap, as in `factored`.
SATURATION, LIMIT, SMALL, CALM = (tl.constexpr(x) for x in (9.02, 26.7, 0.5, 9.7))
CENTER_LIMIT, VECTOR_LIMIT, CAP = (tl.constexpr(x) for x in (131072.0, 4096.0, 2.0**28))
PRECISION = tl.constexpr("tf32x3")
"""Products of tensor cores with all digits of float32: each factor in two parts, three of the four products."""
# Coefficients of the polynomial for 2^f − 1, as in `qkv.compiled.tanh`.
T1, T2, T3 = tl.constexpr(0.69314718), tl.constexpr(0.24022649), tl.constexpr(0.05550357)
T4, T5, T6 = tl.constexpr(0.0096182376), tl.constexpr(0.0013390735), tl.constexpr(0.00015403512)


@triton.jit
def _extremes(x, rows, width, c, ROWS: tl.constexpr):
    """Return the smallest and the largest entry of each feature, and 0, or NaN where one is not finite."""
    low = tl.full(c.shape, float("inf"), tl.float32)
    high = tl.full(c.shape, float("-inf"), tl.float32)
    bad = tl.zeros(c.shape, tl.float32)
    for start in range(0, rows, ROWS):
        i = start + tl.arange(0, ROWS)
        inside = (i < rows)[:, None]
        y = tl.load(x + i[:, None] * width + c[None, :], mask=inside & (c < width)[None, :], other=0.0)
        low = tl.minimum(low, tl.min(tl.where(inside, y, float("inf")), 0))
        high = tl.maximum(high, tl.max(tl.where(inside, y, float("-inf")), 0))
        bad += tl.sum(y - y, 0)
    return low.to(tl.float64), high.to(tl.float64), bad


@triton.jit
def choose(
    query, key, vector, ways, position, count, queries, keys, width, padded,
    FEATURES: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Decide how the tanh of each hidden feature of an item is computed, and where it is stored.

    Args:
        query, key: projected, (N, Q, A) and (N, K, A).
        vector: (N, A).
        ways: written at the positions of features, (N, 3, R) full of -1: the feature, its center N, and its clamp, 0
            for a tanh that is not factored.
        position: written, (N, A): the position of each feature.
        count: written, (N, 3): where features without a cap end, those with one, and all others.
        queries, keys, width, padded: Q, K, A and R.
        FEATURES: a power of 2 of at least A; ROWS: how many rows are read at a time.
    """
    n, c = tl.program_id(0).to(tl.int64), tl.arange(0, FEATURES)
    low_q, high_q, bad_q = _extremes(query + n * queries * width, queries, width, c, ROWS)
    low_k, high_k, bad_k = _extremes(key + n * keys * width, keys, width, c, ROWS)
    inside = c < width
    v = tl.load(vector + n * width + c, mask=inside, other=0.0)
    half_q, half_k = 0.5 * (high_q - low_q), 0.5 * (high_k - low_k)
    half = tl.minimum(half_q, half_k)
    middle = tl.where(half_k <= half_q, low_k + half_k, -(low_q + half_q))
    largest = tl.maximum(-low_q, high_q) + tl.maximum(-low_k, high_k)
    fits = (bad_q + bad_k == 0.0) & (tl.abs(v) <= VECTOR_LIMIT) & (largest >= SMALL)
    fits &= (half + 0.5 + SATURATION <= LIMIT) & (tl.abs(middle) <= CENTER_LIMIT)
    calm = (inside & fits & (high_q + high_k <= CALM)).to(tl.int32)
    capped = (inside & fits).to(tl.int32) - calm
    other = inside.to(tl.int32) - calm - capped
    end_calm = (tl.sum(calm, 0) + 3) // 4 * 4
    end_capped = end_calm + (tl.sum(capped, 0) + 3) // 4 * 4
    at = tl.where(capped > 0, end_calm + tl.cumsum(capped, 0), tl.cumsum(calm, 0)) - 1
    at = tl.where(other > 0, end_capped + tl.cumsum(other, 0) - 1, at)
    factored = calm + capped > 0
    to = ways + n * 3 * padded + at
    tl.store(to, c.to(tl.float32), mask=inside)
    tl.store(to + padded, tl.where(factored, tl.floor(2.0 * middle * LOG2E + 0.5), 0.0).to(tl.float32), mask=inside)
    clamp = tl.where(factored, 2.0 * (SATURATION + half) + 0.5 * LN2, 0.0)
    tl.store(to + 2 * padded, clamp.to(tl.float32), mask=inside)
    tl.store(position + n * width + c, at.to(tl.int64), mask=inside)
    tl.store(count + n * 3, end_calm)
    tl.store(count + n * 3 + 1, end_capped)
    tl.store(count + n * 3 + 2, end_capped + tl.sum(other, 0))


@triton.jit
def factors(
    x, vector, ways, weight, factor, rows, width, padded, padded_rows,
    SIGN: tl.constexpr, ROWS: tl.constexpr, FEATURES: tl.constexpr,
):  # fmt: skip
    """Compute the factors of one side: e^2x · 2^(sign·N), clamped, or x itself where the tanh is not factored.

    Args:
        x: (N, rows, A).
        vector, ways: as `choose` takes and writes them.
        weight: written, (N, R): the vector at each position, 0 for padding.
        factor: written, (N, R, rows, padded).
        rows, width, padded, padded_rows: of x, A, R, and of `factor`.
        SIGN: 1 for queries, -1 for keys; ROWS, FEATURES: sizes of a tile.
    """
    n, r = tl.program_id(1).to(tl.int64), tl.program_id(2) * FEATURES + tl.arange(0, FEATURES)
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = r < padded
    feature = tl.load(ways + n * 3 * padded + r, mask=inside, other=-1.0).to(tl.int32)
    center = SIGN * tl.load(ways + (n * 3 + 1) * padded + r, mask=inside, other=0.0).to(tl.float64)
    clamp = tl.load(ways + (n * 3 + 2) * padded + r, mask=inside, other=0.0).to(tl.float64)
    if tl.program_id(0) == 0:
        v = tl.load(vector + n * width + feature, mask=feature >= 0, other=0.0)
        tl.store(weight + n * padded + r, v, mask=inside)
    present = (feature >= 0)[None, :] & (i < rows)[:, None]
    y = tl.load(x + (n * rows + i[:, None]) * width + feature[None, :], mask=present, other=0.0)
    middle = -center * LN2
    z = tl.minimum(tl.maximum(2.0 * y.to(tl.float64), (middle - clamp)[None, :]), (middle + clamp)[None, :])
    e = tl.exp2(z * LOG2E + center[None, :]).to(tl.float32)
    # Padding is 0, so that its denominators are 1.
    factored = present & (clamp > 0.0)[None, :]
    to = factor + (n * padded + r[None, :]) * padded_rows + i[:, None]
    tl.store(to, tl.where(factored, e, y), mask=inside[None, :] & (i < padded_rows)[:, None])


@triton.jit
def _tanh(x):
    """Compute tanh as `qkv.compiled.tanh` does."""
    y = x * TWICE_LOG2E
    y = tl.where(y > 26.0, 26.0, y)
    y = tl.where(y < -26.0, -26.0, y)
    n = tl.floor(y + 0.5)
    f = y - n
    p = f * (T1 + f * (T2 + f * (T3 + f * (T4 + f * (T5 + f * T6)))))
    # A comparison with NaN is false: its power is 2^0.
    scale = ((tl.where(tl.abs(n) <= 26.0, n, 0.0).to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)
    e = tl.fma(scale, p, scale - 1.0)
    return e / (e + 2.0)


if knobs.runtime.interpret:

    @triton.jit
    def _reciprocal(x):
        return 1.0 / x

else:

    @triton.jit
    def _reciprocal(x):
        """Return 1/x within one unit of the last place, for x from 1 to 2^112: a division would also scale both."""
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )


@triton.jit
def _denominators(left, right, i, of_left, of_right, CAPPED: tl.constexpr):
    """Return EF + 1 of four features, each (M, N); `left` and `right` point at the rows of feature 0."""
    d0 = tl.fma(tl.load(left + i * of_left)[:, None], tl.load(right + i * of_right)[None, :], 1.0)
    d1 = tl.fma(tl.load(left + (i + 1) * of_left)[:, None], tl.load(right + (i + 1) * of_right)[None, :], 1.0)
    d2 = tl.fma(tl.load(left + (i + 2) * of_left)[:, None], tl.load(right + (i + 2) * of_right)[None, :], 1.0)
    d3 = tl.fma(tl.load(left + (i + 3) * of_left)[:, None], tl.load(right + (i + 3) * of_right)[None, :], 1.0)
    if CAPPED:
        return tl.minimum(d0, CAP), tl.minimum(d1, CAP), tl.minimum(d2, CAP), tl.minimum(d3, CAP)
    return d0, d1, d2, d3


@triton.jit
def _add_four(s, left, right, weight, i, of_left, of_right, CAPPED: tl.constexpr):
    """Return s + Σ v(d − 2)/d over four features, with one division."""
    d0, d1, d2, d3 = _denominators(left, right, i, of_left, of_right, CAPPED)
    v0, v1, v2, v3 = tl.load(weight + i), tl.load(weight + i + 1), tl.load(weight + i + 2), tl.load(weight + i + 3)
    n0, n1 = tl.fma(d0, v0, -2.0 * v0), tl.fma(d1, v1, -2.0 * v1)
    n2, n3 = tl.fma(d2, v2, -2.0 * v2), tl.fma(d3, v3, -2.0 * v3)
    d01, d23 = d0 * d1, d2 * d3
    n01, n23 = tl.fma(n0, d1, n1 * d0), tl.fma(n2, d3, n3 * d2)
    return tl.fma(tl.fma(n01, d23, n23 * d01), _reciprocal(d01 * d23), s)


@triton.jit
def _scores(left, right, weight, count, of_left, of_right, M: tl.constexpr, N: tl.constexpr):
    """Return Σ v tanh(a + b) of a tile, (M, N)."""
    s = tl.zeros((M, N), tl.float32)
    calm, capped, end = tl.load(count), tl.load(count + 1), tl.load(count + 2)
    for i in range(0, calm, 4):
        s = _add_four(s, left, right, weight, i, of_left, of_right, False)
    for i in range(calm, capped, 4):
        s = _add_four(s, left, right, weight, i, of_left, of_right, True)
    for i in range(capped, end):
        x = tl.load(left + i * of_left)[:, None] + tl.load(right + i * of_right)[None, :]
        s = tl.fma(_tanh(x), tl.load(weight + i), s)
    return s


@triton.jit
def forward(
    left, right, weight, count, value, first, last, out, top, total,
    queries, keys, width, padded, of_left, of_right,
    WIDTH: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Compute the output of M rows by the running maximum of Milakov and Gimelshein 2018.

    Args:
        left, right, weight, count: as written by `factors` and `choose`.
        value: (N, K, V).
        first, last: the bounds of each row, int32 (N, Q).
        out: written, (N, Q, V); 0 in a row that sees no key.
        top, total: written, (N, Q): the largest score, and Σ exp(s − top).
        queries, keys, width, padded, of_left, of_right: Q, K, V, R, and the rows of `left` and `right`, padded.
        WIDTH: a power of 2 of at least V; M, N: sizes of a tile.
    """
    n, i = tl.program_id(1).to(tl.int64), tl.program_id(0) * M + tl.arange(0, M)
    inside, c = i < queries, tl.arange(0, WIDTH)
    lo = tl.load(first + n * queries + i, mask=inside, other=0)
    hi = tl.load(last + n * queries + i, mask=inside, other=0)
    begin = tl.min(tl.where(hi > lo, lo, keys), 0) // N * N
    end = tl.max(tl.where(hi > lo, hi, 0), 0)
    left += n * padded * of_left + i
    right += n * padded * of_right
    value += n * keys * width
    best = tl.full((M,), float("-inf"), tl.float32)
    sums = tl.zeros((M,), tl.float32)
    acc = tl.zeros((M, WIDTH), tl.float32)
    for start in range(begin, end, N):
        j = start + tl.arange(0, N)
        s = _scores(left, right + j, weight + n * padded, count + n * 3, of_left, of_right, M, N)
        s = tl.where((j[None, :] >= lo[:, None]) & (j[None, :] < hi[:, None]), s, float("-inf"))
        now = tl.maximum(best, tl.max(s, 1))
        base = tl.where(now == float("-inf"), 0.0, now)
        p = tl.exp2((s - base[:, None]) * LOG2E)
        rescale = tl.exp2((best - base) * LOG2E)
        v = tl.load(value + j[:, None] * width + c[None, :], mask=(j < keys)[:, None] & (c < width)[None, :], other=0.0)
        sums = sums * rescale + tl.sum(p, 1)
        acc = tl.dot(p, v, acc * rescale[:, None], input_precision=PRECISION)
        best = now
    row = n * queries + i
    o = acc / tl.where(sums == 0.0, 1.0, sums)[:, None]
    tl.store(out + row[:, None] * width + c[None, :], o, mask=inside[:, None] & (c < width)[None, :])
    tl.store(top + row, best, mask=inside)
    tl.store(total + row, sums, mask=inside)


@triton.jit
def _add(to, x):
    tl.store(to, tl.load(to) + x)


@triton.jit
def _add_feature(slope, turn, at, g, u, TURN: tl.constexpr):
    """Add Σ g(1 − t²) of a feature with u = 1/(EF + 1) to `slope`, and Σ gt to `turn`."""
    h = g * u
    _add(slope + at, 4.0 * tl.sum(tl.fma(-h, u, h), 1))
    if TURN:
        _add(turn + at, tl.sum(tl.fma(h, -2.0, g), 1))


@triton.jit
def _add_features(slope, turn, g, left, right, count, of_left, of_right, TURN: tl.constexpr):
    """Add Σ g(1 − t²) of each feature over the columns of a tile to `slope`, and Σ gt to `turn`."""
    capped, end = tl.load(count + 1), tl.load(count + 2)
    for i in range(0, capped, 4):
        d0, d1, d2, d3 = _denominators(left, right, i, of_left, of_right, True)
        d01, d23 = d0 * d1, d2 * d3
        r = _reciprocal(d01 * d23)
        r01, r23 = r * d23, r * d01
        _add_feature(slope, turn, i * of_left, g, r01 * d1, TURN)
        _add_feature(slope, turn, (i + 1) * of_left, g, r01 * d0, TURN)
        _add_feature(slope, turn, (i + 2) * of_left, g, r23 * d3, TURN)
        _add_feature(slope, turn, (i + 3) * of_left, g, r23 * d2, TURN)
    for i in range(capped, end):
        t = _tanh(tl.load(left + i * of_left)[:, None] + tl.load(right + i * of_right)[None, :])
        h = g * t
        _add(slope + i * of_left, tl.sum(tl.fma(-h, t, g), 1))
        if TURN:
            _add(turn + i * of_left, tl.sum(h, 1))
    # Other threads read the sums in the next tile.
    tl.debug_barrier()


@triton.jit
def _of_same_row(x, y, M: tl.constexpr):
    """Return Σ x·y of each row of two (M, WIDTH) blocks, rounded as the products of tiles are."""
    r = tl.arange(0, M)
    return tl.sum(tl.where(r[:, None] == r[None, :], tl.dot(x, tl.trans(y), input_precision=PRECISION), 0.0), 1)


@triton.jit
def deltas(out, grad, delta, rows, width, WIDTH: tl.constexpr, M: tl.constexpr):
    """Compute the product of output and gradient of each row, in the order of both kernels of gradients.

    Args:
        out, grad: the output and its gradient, (N·Q, V).
        delta: written, (2, N·Q): gradient times output, and output times gradient.
        rows, width: N·Q and V.
        WIDTH, M: as in `forward`.
    """
    i, c = tl.program_id(0).to(tl.int64) * M + tl.arange(0, M), tl.arange(0, WIDTH)
    inside = (i < rows)[:, None] & (c < width)[None, :]
    o = tl.load(out + i[:, None] * width + c[None, :], mask=inside, other=0.0)
    do = tl.load(grad + i[:, None] * width + c[None, :], mask=inside, other=0.0)
    tl.store(delta + i, _of_same_row(do, o, M), mask=i < rows)
    tl.store(delta + rows + i, _of_same_row(o, do, M), mask=i < rows)


@triton.jit
def _row_state(first, last, top, total, delta, row, inside):
    """Return bounds, largest score, 1/Σ exp(s − top) and delta of rows; 0 where there is no sum."""
    lo, hi = tl.load(first + row, mask=inside, other=0), tl.load(last + row, mask=inside, other=0)
    best, sums = tl.load(top + row, mask=inside, other=0.0), tl.load(total + row, mask=inside, other=0.0)
    seen = sums > 0.0
    return (
        lo,
        hi,
        tl.where(seen, best, 0.0),
        tl.where(seen, 1.0 / tl.where(seen, sums, 1.0), sums),
        tl.load(delta + row, mask=inside, other=0.0),
    )


@triton.jit
def query_gradients(
    left, right, weight, count, value, first, last, top, total, delta, grad, slope, turn,
    queries, keys, width, padded, of_left, of_right,
    WIDTH: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Accumulate the gradients of M queries over all keys.

    Args:
        left, right, weight, count, value, first, last, top, total, queries, ...: as in `forward`.
        delta: (N, Q), the product of gradient and output less the gradient of the lse.
        grad: the gradient of the output, (N, Q, V).
        slope, turn: (N, R, rows of `left`), zeros; written: Σ g(1 − t²) and Σ gt, g the gradients of the scores.
    """
    n, i = tl.program_id(1).to(tl.int64), tl.program_id(0) * M + tl.arange(0, M)
    c, row = tl.arange(0, WIDTH), n * queries + i
    lo, hi, best, share, offset = _row_state(first, last, top, total, delta, row, i < queries)
    do = tl.load(
        grad + row[:, None] * width + c[None, :], mask=(i < queries)[:, None] & (c < width)[None, :], other=0.0
    )
    begin = tl.min(tl.where(hi > lo, lo, keys), 0) // N * N
    to = n * padded * of_left + i
    right += n * padded * of_right
    for start in range(begin, tl.max(tl.where(hi > lo, hi, 0), 0), N):
        j = start + tl.arange(0, N)
        s = _scores(left + to, right + j, weight + n * padded, count + n * 3, of_left, of_right, M, N)
        columns = (j < keys)[:, None] & (c < width)[None, :]
        v = tl.load(value + (n * keys + j[:, None]) * width + c[None, :], mask=columns, other=0.0)
        p = tl.exp2((s - best[:, None]) * LOG2E) * share[:, None]
        g = p * (tl.dot(do, tl.trans(v), input_precision=PRECISION) - offset[:, None])
        g = tl.where((j[None, :] >= lo[:, None]) & (j[None, :] < hi[:, None]), g, 0.0)
        _add_features(slope + to, turn + to, g, left + to, right + j, count + n * 3, of_left, of_right, True)


@triton.jit
def key_gradients(
    left, right, weight, count, value, first, last, top, total, delta, grad, slope, d_value,
    queries, keys, width, padded, of_left, of_right,
    WIDTH: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Accumulate the gradients of M keys over all queries; tiles are (keys, queries).

    Args:
        left, ..., grad, queries, ...: as in `query_gradients`.
        slope: (N, R, rows of `right`), zeros; written: Σ g(1 − t²).
        d_value: written, (N, K, V).
    """
    n, j = tl.program_id(1).to(tl.int64), tl.program_id(0) * M + tl.arange(0, M)
    c, begin = tl.arange(0, WIDTH), tl.program_id(0) * M
    columns = (j < keys)[:, None] & (c < width)[None, :]
    v = tl.load(value + (n * keys + j[:, None]) * width + c[None, :], mask=columns, other=0.0)
    to = n * padded * of_right + j
    left += n * padded * of_left
    acc = tl.zeros((M, WIDTH), tl.float32)
    for start in range(0, queries, N):
        i = start + tl.arange(0, N)
        inside, row = i < queries, n * queries + i
        lo, hi, best, share, offset = _row_state(first, last, top, total, delta, row, inside)
        if tl.max(((hi > lo) & (hi > begin) & (lo < begin + M)).to(tl.int32), 0) > 0:
            rows = inside[:, None] & (c < width)[None, :]
            do = tl.load(grad + row[:, None] * width + c[None, :], mask=rows, other=0.0)
            s = _scores(right + to, left + i, weight + n * padded, count + n * 3, of_right, of_left, M, N)
            seen = (j[:, None] >= lo[None, :]) & (j[:, None] < hi[None, :])
            p = tl.where(seen, tl.exp2((s - best[None, :]) * LOG2E) * share[None, :], 0.0)
            product = tl.dot(v, tl.trans(do), input_precision=PRECISION)
            g = tl.where(seen, p * (product - offset[None, :]), 0.0)
            acc = tl.dot(p, do, acc, input_precision=PRECISION)
            _add_features(slope + to, slope, g, right + to, left + i, count + n * 3, of_right, of_left, False)
    tl.store(d_value + (n * keys + j[:, None]) * width + c[None, :], acc, mask=columns)
