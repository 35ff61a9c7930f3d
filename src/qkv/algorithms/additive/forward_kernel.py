"""Additive attention, forward: scores, normalizer and weighted sum in one pass over tiles of keys.

The derivation is in `qkv.algorithms.additive.factored`; the factors come from `qkv.algorithms.additive.factors_kernel`,
and scores of four rows at a time from `qkv.algorithms.additive.scores_kernel`. The result of a row does not depend on
other rows, so it is bit-identical however rows are divided among threads.
"""

# mypy: ignore-errors
# Numba's signatures are the types here.

import numpy as np

from qkv.algorithms.additive.scores_kernel import scores
from qkv.compiled.exp import expm1_and_exp
from qkv.compiled.kernels import helper, inlined, kernel, reduction, wide_registers
from qkv.linalg.multiply_add import IN_FOURS, add_four, add_one

SOFTMAX, IDENTITY, SIGMOID = 0, 1, 2
BLOCK = 64
LOW32 = 0xFFFFFFFF
# Exact in both float types; a Python number would promote float32 to float64.
ZERO = np.float32(0)


@helper
def _seen(sight, n, q, edge, size):
    """Return the range of a tile's keys, starting at key `edge`, that is within the bounds of a row."""
    first, last, _, _, owner = sight
    start = max(np.int64(first[owner[n, 1], q]) - edge, 0)
    return start, min(np.int64(last[owner[n, 1], q]) - edge, size)


@helper
def _hide(s, sight, n, q, at, hidden):
    """Write `hidden` where the dense mask hides a key; the first entry is key number `at`."""
    _, _, mask, _, owner = sight
    if mask.size:
        seen = mask[owner[n, 2], q if mask.shape[1] > 1 else 0, at : at + s.size]
        for k in range(s.size):
            s[k] = s[k] if seen[k] else hidden


@inlined
def _beside(sight, n, q, at, hidden, s):
    """Add the bias to the scores of a row, starting at key `at`, and write `hidden` for hidden keys."""
    bias, owner = sight[3], sight[4]
    if bias.size:
        added = bias[owner[n, 3], q if bias.shape[1] > 1 else 0, at : at + s.size]
        for k in range(s.size):
            s[k] += added[k]
    _hide(s, sight, n, q, at, hidden)


@helper
def _largest(s, least, columns):
    """Return the largest score that is not NaN, found in 64 columns so that the loop fills registers."""
    wide_registers()
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
    wide_registers()
    for k in range(s.size):
        x = np.float64(s[k] - base)
        _, e = expm1_and_exp(-708.0 if x < -708.0 else x)
        s[k] = 0.0 if x < -708.0 else e


@helper
def _logistic(s, shift):
    """s ← σ(s + shift)."""
    wide_registers()
    for k in range(s.size):
        x = -np.float64(s[k] + shift)
        x = 700.0 if x > 700.0 else x
        _, e = expm1_and_exp(-708.0 if x < -708.0 else x)
        s[k] = 0.0 if x == 700.0 else 1.0 / (1.0 + e)


@reduction
def _total(s):
    total = ZERO * s[0]
    for k in range(s.size):
        total += s[k]
    return total


@helper
def _mix(x):
    """Mix 32 bits held in uint64: MurmurHash3's fmix32, as `qkv.engine.dropout.mix`."""
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
    """Apply dropout: the hash of (seed, row, key) decides which weights become 0; the others are scaled."""
    low = np.uint64(LOW32)
    for k in range(s.size):
        key = _mix((np.uint64(start + k) + np.uint64(0x9E3779B9)) & low)
        s[k] = s[k] * scale if _mix((bits + key) & low) >= threshold else ZERO


@helper
def _softmax_step(s, n, q, columns, out, top, total):
    """Convert the scores of one tile to weights, and rescale the sums of earlier tiles."""
    before = top[n, q]
    now = _largest(s, before, columns)
    base = now if now > -np.inf else ZERO * total[n, q]
    _exponentials(s, base)
    if now != before:
        _, e = expm1_and_exp(max(np.float64(before - base), -708.0))
        keep = e if before > -np.inf else 0.0
        total[n, q] *= keep
        for c in range(out.size):
            out[c] *= keep
        top[n, q] = now
    total[n, q] += _total(s)


@helper
def _finish(out, total):
    """Divide by the sum of a softmax row; a row whose sum is 0 becomes 0."""
    if total == 0:
        out[:] = 0
    else:
        for c in range(out.size):
            out[c] /= total


@inlined
def _weigh(n, q, at, rule, sight, shift, drop, scale, s, columns, out, top, total):
    """Convert the scores of one row, whose first key is number `at`, to weights."""
    _beside(sight, n, q, at, 0.0 if rule == IDENTITY else -np.inf, s)
    if rule == SOFTMAX:
        _softmax_step(s, n, q, columns, out[n, q], top, total)
    elif rule == SIGMOID:
        _logistic(s, shift[n, q])
    if drop.size:
        _drop(s, _row_bits(drop[0], np.uint64(n * out.shape[1] + q)), at, drop[1], scale)


@inlined
def _meet_four(
    n, q, end, tile, rule, factors, sight, value, shift, drop, scale, rows, columns, out, top, total
):  # fmt: skip
    """Process four rows, or those up to `end`, with one tile of keys."""
    left, right, weight, count = factors
    edge, low, high = tile * right.shape[3], right.shape[3], 0
    size = min(right.shape[3], value.shape[1] - edge)
    for j in range(min(4, end - q)):
        start, stop = _seen(sight, n, q + j, edge, size)
        if start < stop:
            low, high = min(low, start), max(high, stop)
    if low >= high:
        return
    scores(left[n], q, end - 1, right[n, tile], weight[n], count[n], low, high, rows)
    alike = q + 4 <= end
    for j in range(min(4, end - q)):
        start, stop = _seen(sight, n, q + j, edge, size)
        alike &= start == low and stop == high
        if start < stop:
            s = rows[j, start:stop]
            _weigh(n, q + j, edge + start, rule, sight, shift, drop, scale, s, columns, out, top, total)
    # Offsets of row q of the output and of the keys from `edge` on. Products are summed in fours, which is more
    # accurate: the backward pass takes Σ_k w_k·dw_k from the output and subtracts it from every dw_k of the row, so an
    # error of the output becomes an error of all the row's gradients.
    width = value.shape[2]
    to, keys = (n * out.shape[1] + q) * width, (n * value.shape[1] + edge) * width
    if alike:
        terms, first = high - low, keys + low * width
        add_four(IN_FOURS, out, to, width, rows, low, right.shape[3], 1, value, first, width, terms, width)
        return
    for j in range(min(4, end - q)):
        start, stop = _seen(sight, n, q + j, edge, size)
        if start < stop:
            own, terms, first = j * right.shape[3] + start, stop - start, keys + start * width
            add_one(IN_FOURS, out, to + j * width, width, rows, own, 0, 1, value, first, width, terms, width)


@kernel(
    "void(i8, i8, i8, F[:,:,::1], F[:,:,:,::1], F[:,::1], i8[:,::1], F[:,:,::1], i4[:,::1], i4[:,::1], b1[:,:,::1],"
    " F[:,:,::1], i8[:,::1], F[:,::1], u8[::1], F, F[:,:,::1], F[:,::1], F[:,::1], F[:,::1], F[::1])",
)
def forward(
    start, stop, rule, left, right, weight, count, value, first, last, mask, bias, owner, shift, drop, scale,
    out, top, total, rows, columns,
):  # fmt: skip
    """Compute the rows start to stop, counted over (N, Q).

    Args:
        start, stop: the range of rows.
        rule: SOFTMAX, IDENTITY or SIGMOID.
        left, right, weight, count: the factors.
        value: (N, K, V).
        first, last, mask, owner: the keys that each row may see, as in `factors`.
        bias: (S, 1 or Q, K), of size zero if there is none.
        shift: (N, Q), added to the scores of a sigmoid.
        drop: seed and threshold of dropout; empty for none.
        scale: the factor of weights that dropout keeps.
        out: written, (N, Q, V).
        top, total: written, (N, Q): the largest score and the sum of exp(s − top) of a softmax row.
        rows, columns: per-thread scratch, (4, keys per tile) and 64.
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
            for q in range(begin, end, 4):
                _meet_four(
                    n, q, end, tile, rule, factors, sight, value, shift, drop, scale, rows, columns, out, top, total
                )
        if rule == SOFTMAX:
            for q in range(begin, end):
                _finish(out[n, q], total[n, q])
        row += end - begin
