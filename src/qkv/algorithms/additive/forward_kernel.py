"""Additive attention, forward: scores, normalizer and weighted sum in one pass over tiles of keys.

The derivation is in `qkv.algorithms.additive.factored`; the factors come from `qkv.algorithms.additive.factors_kernel`,
and scores of four rows at a time from `qkv.algorithms.additive.scores_kernel`. The result of a row does not depend on
other rows, so it is bit-identical however rows are divided among threads.
"""

# mypy: ignore-errors
# Numba's signatures are the types here.

import numpy as np

from qkv.algorithms.additive.hidden_keys_kernel import add_bias_and_hide, visible_range
from qkv.algorithms.additive.row_weights_kernel import (
    IDENTITY,
    SIGMOID,
    SOFTMAX,
    divide_by_sum,
    exponentials,
    logistic,
    total_of,
)
from qkv.algorithms.additive.scores_kernel import scores
from qkv.compiled.dropout import drop_weights, row_bits
from qkv.compiled.exp import expm1_and_exp
from qkv.compiled.kernels import helper, inlined, kernel
from qkv.compiled.row_loops import largest
from qkv.linalg.multiply_add import add_four_in_fours, add_one_in_fours

BLOCK = 64
# Exact in both float types; a Python float would promote float32 to float64.
ZERO = np.float32(0)


@helper
def _softmax_step(s, n, q, columns, out, top, total):
    """Convert the scores of one tile to weights, and rescale the sums of earlier tiles."""
    before = top[n, q]
    now = largest(s, before, columns)
    base = now if now > -np.inf else ZERO * total[n, q]
    exponentials(s, base)
    if now != before:
        _, e = expm1_and_exp(max(np.float64(before - base), -708.0))
        rescale = e if before > -np.inf else 0.0
        total[n, q] *= rescale
        for c in range(out.size):
            out[c] *= rescale
        top[n, q] = now
    total[n, q] += total_of(s)


@inlined
def _scores_to_weights(n, q, at, rule, ranges, shift, drop, scale, s, columns, out, top, total):
    """Convert the scores of one row, whose first key is number `at`, to weights."""
    add_bias_and_hide(ranges, n, q, at, 0.0 if rule == IDENTITY else -np.inf, s)
    if rule == SOFTMAX:
        _softmax_step(s, n, q, columns, out[n, q], top, total)
    elif rule == SIGMOID:
        logistic(s, shift[n, q])
    if drop.size:
        drop_weights(s, row_bits(drop[0], np.uint64(n * out.shape[1] + q)), at, drop[1], scale)


@inlined
def _process_four_rows(
    n, q, end, tile, rule, factors, ranges, value, shift, drop, scale, rows, columns, out, top, total
):  # fmt: skip
    """Process four rows, or those up to `end`, with one tile of keys."""
    left, right, weight, count = factors
    tile_start, low, high = tile * right.shape[3], right.shape[3], 0
    size = min(right.shape[3], value.shape[1] - tile_start)
    for j in range(min(4, end - q)):
        start, stop = visible_range(ranges, n, q + j, tile_start, size)
        if start < stop:
            low, high = min(low, start), max(high, stop)
    if low >= high:
        return
    scores(left[n], q, end - 1, right[n, tile], weight[n], count[n], low, high, rows)
    same_range = q + 4 <= end
    for j in range(min(4, end - q)):
        start, stop = visible_range(ranges, n, q + j, tile_start, size)
        same_range &= start == low and stop == high
        if start < stop:
            s = rows[j, start:stop]
            _scores_to_weights(
                n, q + j, tile_start + start, rule, ranges, shift, drop, scale, s, columns, out, top, total
            )
    # Offsets of row q of the output and of the keys from `tile_start` on. Products are summed in fours, which is more
    # accurate: the backward pass takes Σ_k w_k·dw_k from the output and subtracts it from every dw_k of the row, so an
    # error of the output becomes an error of all the row's gradients.
    width = value.shape[2]
    to, keys = (n * out.shape[1] + q) * width, (n * value.shape[1] + tile_start) * width
    if same_range:
        terms, first = high - low, keys + low * width
        add_four_in_fours(out, to, width, rows, low, right.shape[3], 1, value, first, width, terms, width)
        return
    for j in range(min(4, end - q)):
        start, stop = visible_range(ranges, n, q + j, tile_start, size)
        if start < stop:
            offset, terms, first = j * right.shape[3] + start, stop - start, keys + start * width
            add_one_in_fours(out, to + j * width, width, rows, offset, 0, 1, value, first, width, terms, width)


@kernel(
    "void(i8, i8, i8, F[:,:,::1], F[:,:,:,::1], F[:,::1], i8[:,::1], F[:,:,::1], i4[:,::1], i4[:,::1], b1[:,:,::1],"
    " F[:,:,::1], i8[:,::1], F[:,::1], u8[::1], F, F[:,:,::1], F[:,::1], F[:,::1], F[:,::1], F[::1])",
    scratch=2,
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
        bias: (S, 1 or Q, K), or diagonals (S, 1, Q + K − 1); of size zero if there is none.
        shift: (N, Q), added to the scores of a sigmoid.
        drop: seed and threshold of dropout; empty for none.
        scale: the factor of weights that dropout keeps.
        out: written, (N, Q, V).
        top, total: written, (N, Q): the largest score and the sum of exp(s − top) of a softmax row.
        rows, columns: per-thread scratch, (4, keys per tile) and 64.
    """
    queries = left.shape[1]
    factors, ranges = (left, right, weight, count), (first, last, mask, bias, owner)
    row = start
    while row < stop:
        n, begin = row // queries, row % queries
        end = min(queries, begin + BLOCK, begin + stop - row)
        out[n, begin:end] = 0
        top[n, begin:end] = -np.inf
        total[n, begin:end] = 0
        for tile in range(right.shape[1]):
            for q in range(begin, end, 4):
                _process_four_rows(
                    n, q, end, tile, rule, factors, ranges, value, shift, drop, scale, rows, columns, out, top, total
                )
        if rule == SOFTMAX:
            for q in range(begin, end):
                divide_by_sum(out[n, q], total[n, q])
        row += end - begin
