"""Additive attention, forward: scores, normalizer and weighted sum in one pass over tiles of keys.

The derivation is in `qkv.kernels.tanh_sum`; the factors come from `qkv.kernels.tanh_factors`. Each
row is computed on its own, so no bit depends on how rows are shared among threads.
"""

# mypy: ignore-errors
# Numba's signatures are the types here.

import numpy as np

from qkv.kernels.compiled import helper, kernel, reduction, stage, wide_registers

LOG2E = 1.4426950408889634
LN2_HIGH = 6.93147180369123816490e-01
LN2_LOW = 1.90821492927058770002e-10
SOFTMAX, IDENTITY, SIGMOID = 0, 1, 2
BLOCK = 64
LOW32 = 0xFFFFFFFF
# Exact in both float types; a Python number would lift float32 to float64.
ONE, HALF, ZERO = np.float32(1), np.float32(0.5), np.float32(0)
CAP, WIDE_CAP = np.float32(2**30), np.float32(2**60)
C1, C2, C3 = np.float32(-0.33333332796631665), np.float32(0.13333225775482527), np.float32(-0.05393346914596769)
C4, C5 = np.float32(0.02147068302533676), np.float32(-0.006942941750416007)


@helper
def _expm1(x):
    """e^x − 1 and e^x in float64, for |x| ≤ 708; the first keeps its relative accuracy near 0."""
    n = np.rint(x * LOG2E)
    r = (x - n * LN2_HIGH) - n * LN2_LOW
    r2 = r * r
    low = (0.5 + r * (1 / 6)) + r2 * ((1 / 24) + r * (1 / 120))
    middle = ((1 / 720) + r * (1 / 5040)) + r2 * ((1 / 40320) + r * (1 / 362880))
    high = ((1 / 3628800) + r * (1 / 39916800)) + r2 * ((1 / 479001600) + r * (1 / 6227020800))
    r4 = r2 * r2
    p = r + r2 * (low + r4 * (middle + r4 * high))
    scale = np.int64((np.int64(n) + 1023) << 52).view(np.float64)
    return scale * p + (scale - 1.0), scale * p + scale


@helper
def _tanh(x):
    """Compute tanh in float64, within 2 units of the last place; NaN stays NaN."""
    y = 2.0 * abs(x)
    y = 40.0 if y > 40.0 else y
    e, _ = _expm1(y)
    t = e / (e + 2.0)
    return -t if x < 0 else t


@helper
def _small_tanh(x):
    """Compute tanh for |x| < ½ by an odd polynomial, within 2^-27 of its value."""
    y = x * x
    return x + x * (y * (C1 + y * (C2 + y * (C3 + y * (C4 + y * C5)))))


@helper
def _fractions(d0, d1, d2, d3, w0, w1, w2, w3):
    """Sum four fractions w/d by one division: a division costs as much as five multiply-adds."""
    pair, other = d0 * d1, d2 * d3
    return ((w0 * d1 + w1 * d0) * other + (w2 * d3 + w3 * d2) * pair) / (pair * other)


@helper
def _capped(x, cap):
    """A denominator 1 + EF, so small that four of them multiply to a finite number."""
    return x if x < cap else cap


@helper
def _scores(left, right, weight, count, start, stop, s):
    """s = Σ v tanh(a + b) for the keys start to stop of a tile."""
    wide_registers()
    s[:] = 0
    size = stop - start
    cap = CAP if s.itemsize == 4 else WIDE_CAP
    calm, small, direct = count[0], count[0] + count[1], count[0] + count[1] + count[2]
    for i in range(0, direct, 4):
        e0, e1, e2, e3 = left[i], left[i + 1], left[i + 2], left[i + 3]
        w0, w1, w2, w3 = weight[i], weight[i + 1], weight[i + 2], weight[i + 3]
        f0, f1 = right[i, start:stop], right[i + 1, start:stop]
        f2, f3 = right[i + 2, start:stop], right[i + 3, start:stop]
        # Σ over the four of v − 2v/(1 + EF): summing them first keeps the partial sums as small as the scores.
        whole = -HALF * ((w0 + w1) + (w2 + w3))
        if i < calm:
            for k in range(size):
                d0, d1, d2, d3 = ONE + e0 * f0[k], ONE + e1 * f1[k], ONE + e2 * f2[k], ONE + e3 * f3[k]
                s[k] += _fractions(d0, d1, d2, d3, w0, w1, w2, w3) + whole
        elif i < small:
            for k in range(size):
                d0, d1 = _capped(ONE + e0 * f0[k], cap), _capped(ONE + e1 * f1[k], cap)
                d2, d3 = _capped(ONE + e2 * f2[k], cap), _capped(ONE + e3 * f3[k], cap)
                s[k] += _fractions(d0, d1, d2, d3, w0, w1, w2, w3) + whole
        else:
            for k in range(size):
                pair = w0 * _small_tanh(e0 + f0[k]) + w1 * _small_tanh(e1 + f1[k])
                s[k] += pair + (w2 * _small_tanh(e2 + f2[k]) + w3 * _small_tanh(e3 + f3[k]))
    for i in range(direct, direct + count[3]):
        a, v, b = np.float64(left[i]), np.float64(weight[i]), right[i, start:stop]
        for k in range(size):
            s[k] += v * _tanh(a + b[k])


@helper
def _seen(sight, n, q, edge, size):
    """Give the part of a tile of keys, from `edge` on, that lies within the bounds of a row."""
    first, last, _, _, owner = sight
    start = max(np.int64(first[owner[n, 1], q]) - edge, 0)
    return start, min(np.int64(last[owner[n, 1], q]) - edge, size)


@helper
def _whole(start, stop, size):
    """Round a part of a tile up to whole registers: the scores beyond `stop` cost less than a loop one by one."""
    return min(start + (stop - start + 15) // 16 * 16, size)


@helper
def _hide(s, sight, n, q, at, hidden):
    """Put `hidden` where the dense mask hides a key; the first entry is key number `at`."""
    _, _, mask, _, owner = sight
    if mask.size:
        seen = mask[owner[n, 2], q if mask.shape[1] > 1 else 0, at : at + s.size]
        for k in range(s.size):
            s[k] = s[k] if seen[k] else hidden


@stage
def _row_scores(factors, sight, n, q, tile, start, hidden, registers, s):
    """Score one row and a part of a tile: bias added, hidden keys overwritten; `registers` begins with s."""
    left, right, weight, count = factors
    _, _, _, bias, owner = sight
    at = tile * right.shape[3] + start
    _scores(left[n, q], right[n, tile], weight[n], count[n], start, start + registers.size, registers)
    if bias.size:
        added = bias[owner[n, 3], q if bias.shape[1] > 1 else 0, at : at + s.size]
        for k in range(s.size):
            s[k] += added[k]
    _hide(s, sight, n, q, at, hidden)


@helper
def _largest(s, least, columns):
    """Give the largest score that is not NaN, taken in 64 columns so that it fills registers."""
    columns[:] = least
    whole = s.size - s.size % 64
    for start in range(0, whole, 64):
        part = s[start : start + 64]
        for k in range(64):
            columns[k] = part[k] if part[k] > columns[k] else columns[k]
    for k in range(whole, s.size):
        columns[0] = s[k] if s[k] > columns[0] else columns[0]
    top = columns[0]
    for k in range(64):
        top = columns[k] if columns[k] > top else top
    return top


@helper
def _exponentials(s, base):
    """s ← exp(s − base); exactly 0 below exp(−708)."""
    for k in range(s.size):
        x = np.float64(s[k] - base)
        _, e = _expm1(-708.0 if x < -708.0 else x)
        s[k] = 0.0 if x < -708.0 else e


@helper
def _logistic(s, shift):
    """s ← σ(s + shift)."""
    for k in range(s.size):
        x = -np.float64(s[k] + shift)
        x = 700.0 if x > 700.0 else x
        _, e = _expm1(-708.0 if x < -708.0 else x)
        s[k] = 0.0 if x == 700.0 else 1.0 / (1.0 + e)


@reduction
def _total(s):
    total = ZERO * s[0]
    for k in range(s.size):
        total += s[k]
    return total


@helper
def _mix(x):
    """Mix 32 bits held in uint64: MurmurHash3's fmix32, as `qkv.backends.dropout.mix`."""
    x = ((x ^ (x >> np.uint64(16))) * np.uint64(0x85EBCA6B)) & np.uint64(LOW32)
    x = ((x ^ (x >> np.uint64(13))) * np.uint64(0xC2B2AE35)) & np.uint64(LOW32)
    return x ^ (x >> np.uint64(16))


@helper
def _row_bits(seed, row):
    low = np.uint64(LOW32)
    high_row = _mix((_mix((row >> np.uint64(32)) & low) + np.uint64(1)) & low)
    both = _mix(seed & low) + _mix((seed >> np.uint64(32)) & low)
    return _mix((both + _mix(row & low) + high_row) & low)


@helper
def _drop(s, bits, start, threshold, scale):
    """Drop weights by the bits of (seed, row, key) and scale those that are kept."""
    low = np.uint64(LOW32)
    for k in range(s.size):
        key = _mix((np.uint64(start + k) + np.uint64(0x9E3779B9)) & low)
        s[k] = s[k] * scale if _mix((bits + key) & low) >= threshold else ZERO


@helper
def _add_values(out, s, value):
    """out += Σ s_k value_k, eight keys at a time."""
    wide_registers()
    width = out.size
    whole = s.size - s.size % 8
    for k in range(0, whole, 8):
        p0, p1, p2, p3 = s[k], s[k + 1], s[k + 2], s[k + 3]
        p4, p5, p6, p7 = s[k + 4], s[k + 5], s[k + 6], s[k + 7]
        v0, v1, v2, v3 = value[k], value[k + 1], value[k + 2], value[k + 3]
        v4, v5, v6, v7 = value[k + 4], value[k + 5], value[k + 6], value[k + 7]
        for c in range(width):
            one = (p0 * v0[c] + p1 * v1[c]) + (p2 * v2[c] + p3 * v3[c])
            out[c] += one + ((p4 * v4[c] + p5 * v5[c]) + (p6 * v6[c] + p7 * v7[c]))
    for k in range(whole, s.size):
        p, v = s[k], value[k]
        for c in range(width):
            out[c] += p * v[c]


@helper
def _softmax_step(s, n, q, columns, out, top, total):
    """Turn the scores of one tile into weights, and rescale what earlier tiles gave."""
    before = top[n, q]
    now = _largest(s, before, columns)
    base = now if now > -np.inf else ZERO * total[n, q]
    _exponentials(s, base)
    if now != before:
        _, e = _expm1(max(np.float64(before - base), -708.0))
        keep = e if before > -np.inf else 0.0
        total[n, q] *= keep
        for c in range(out.size):
            out[c] *= keep
        top[n, q] = now
    total[n, q] += _total(s)


@helper
def _finish(out, total):
    """Divide by the sum of a softmax row; a row without weight gives 0."""
    if total == 0:
        out[:] = 0
    else:
        for c in range(out.size):
            out[c] /= total


@stage
def _meet(n, q, tile, rule, factors, sight, value, shift, drop, scale, scratch, out, top, total):
    """Let one row meet one tile of keys."""
    size = factors[1].shape[3]
    edge = tile * size
    start, stop = _seen(sight, n, q, edge, min(size, value.shape[1] - edge))
    if start >= stop:
        return
    s, registers = scratch[: stop - start], scratch[: _whole(start, stop, size) - start]
    _row_scores(factors, sight, n, q, tile, start, 0.0 if rule == IDENTITY else -np.inf, registers, s)
    if rule == SOFTMAX:
        _softmax_step(s, n, q, scratch[size : size + 64], out[n, q], top, total)
    elif rule == SIGMOID:
        _logistic(s, shift[n, q])
    if drop.size:
        _drop(s, _row_bits(drop[0], np.uint64(n * out.shape[1] + q)), edge + start, drop[1], scale)
    _add_values(out[n, q], s, value[n, edge + start : edge + stop])


@kernel(
    "void(i8, i8, i8, F[:,:,::1], F[:,:,:,::1], F[:,::1], i8[:,::1], F[:,:,::1], i4[:,::1], i4[:,::1], b1[:,:,::1],"
    " F[:,:,::1], i8[:,::1], F[:,::1], u8[::1], F, F[:,:,::1], F[:,::1], F[:,::1], F[::1])"
)
def forward(
    start, stop, rule, left, right, weight, count, value, first, last, mask, bias, owner, shift, drop, scale,
    out, top, total, scratch,
):  # fmt: skip
    """Compute the rows start to stop, counted over (N, Q).

    Args:
        start, stop: the range of rows.
        rule: SOFTMAX, IDENTITY or SIGMOID.
        left, right, weight, count: the factors.
        value: (N, K, V).
        first, last, mask, owner: what each row may see, as in `factors`.
        bias: (S, 1 or Q, K), of size zero where there is none.
        shift: (N, Q), added to the scores of a sigmoid.
        drop: seed and threshold of dropout; empty for none.
        scale: of weights that are kept.
        out: out, (N, Q, V).
        top, total: out, (N, Q): the largest score and the sum of exp(s − top) of a softmax row.
        scratch: keys per tile + 64 numbers of this thread.
    """
    queries = left.shape[1]
    factors, sight = (left, right, weight, count), (first, last, mask, bias, owner)
    row = start
    while row < stop:
        n, begin = row // queries, row % queries
        end = min(queries, begin + BLOCK, begin + stop - row)
        out[n, begin:end] = 0
        top[n, begin:end] = -np.inf
        total[n, begin:end] = 0
        for tile in range(right.shape[1]):
            for q in range(begin, end):
                _meet(n, q, tile, rule, factors, sight, value, shift, drop, scale, scratch, out, top, total)
        if rule == SOFTMAX:
            for q in range(begin, end):
                _finish(out[n, q], total[n, q])
        row += end - begin
