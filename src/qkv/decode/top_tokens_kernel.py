"""The best tokens of each row of scores and their log-probabilities, in two passes over a row that is in the cache."""

# mypy: ignore-errors
# Numba's signatures are the types here.

import numpy as np

from qkv.compiled.exp import exp_single_or_zero
from qkv.compiled.hints import wide_registers
from qkv.compiled.kernels import inlined, kernel, reduction

BLOCK = 64
"""Scores per block. The search looks at the maxima of the blocks first."""
WIDE = np.uint64(BLOCK)
# Unsigned, so that Numba does not check each index for counting from the end.
N0, N1 = np.uint64(0), np.uint64(1)
# Exact in float32; a Python number would lift float32 to float64.
ZERO = np.float32(0)
LOWEST, NONE = np.float32(-np.inf), np.float32(np.nan)


@reduction
def _maximum(x, start, stop):
    wide_registers()
    top = LOWEST
    for k in range(start, stop):
        top = x[k] if x[k] > top else top
    return top


@reduction
def _sum_of_powers(x, start, stop, top):
    wide_registers()
    total = ZERO
    for k in range(start, stop):
        total += exp_single_or_zero(x[k] - top)
    return total


@inlined
def _ruled_out(never, k):
    for place in range(never.size):  # noqa: SIM110 - no generators in kernels
        if never[place] == k:
            return True
    return False


@inlined
def _taken(tokens, row, count, k):
    for place in range(count):  # noqa: SIM110 - no generators in kernels
        if tokens[row, place] == k:
            return True
    return False


@inlined
def _best_of(x, begin, start, stop, never, tokens, row, count):
    """Return the index and value of a block's greatest score that is neither ruled out nor taken; `stop` if none is."""
    best, top = stop, LOWEST
    for k in range(start, stop):
        s = x[begin + k]
        if (s > top or (s == top and best == stop)) and not _ruled_out(never, k) and not _taken(tokens, row, count, k):
            best, top = k, s
    return best, top


@inlined
def _greatest(maxima, blocks):
    """Return the first block with the greatest bound, or the number of blocks if all bounds are NaN."""
    found, top = blocks, LOWEST
    for block in range(blocks):
        if maxima[block] > top or (maxima[block] == top and found == blocks):
            found, top = block, maxima[block]
    return found


@inlined
def _next(x, begin, size, blocks, never, tokens, row, count, maxima):
    """Return the best token that is neither ruled out nor taken, or N if only NaN is left.

    The maximum of a block is an upper bound, because that token may be ruled out or taken. A block is searched only if
    no other bound is greater.
    """
    while True:
        block = _greatest(maxima, blocks)
        if block == blocks:
            return size
        start, stop = block * WIDE, min((block + N1) * WIDE, size)
        best, top = _best_of(x, begin, start, stop, never, tokens, row, count)
        if best < stop and top == maxima[block]:
            return best
        maxima[block] = top if best < stop else NONE


@inlined
def _left(size, never, tokens, row, count):
    """Return the lowest token that is neither ruled out nor taken."""
    for k in range(size):
        if not _ruled_out(never, k) and not _taken(tokens, row, count, k):
            return k
    return N0


@kernel("void(u8, u8, u8, F[::1], u8[::1], u8[:,::1], F[:,::1], F[::1])", scratch=1, single=True)
def best_tokens(r0, r1, size, scores, never, tokens, gains, maxima):
    """Find the best tokens of each row, the best first and of equal ones the lowest, and their log-probabilities.

    Args:
        r0, r1: the range of rows.
        size: N, the number of scores in a row.
        scores: (R·N,), float32, flat.
        never: tokens to leave out; at least C others must remain.
        tokens, gains: (R, C), written.
        maxima: scratch, one number for each block of a row.
    """
    blocks = (size + WIDE - N1) // WIDE
    for r in range(r0, r1):
        begin, top = r * size, LOWEST
        for block in range(blocks):
            maxima[block] = _maximum(scores, begin + block * WIDE, begin + min((block + N1) * WIDE, size))
            top = maxima[block] if maxima[block] > top else top
        # In a row that holds NaN or only −inf the sum is NaN, and so are the log-probabilities.
        total = np.log(_sum_of_powers(scores, begin, begin + size, top))
        for place in range(np.uint64(tokens.shape[1])):
            found = _next(scores, begin, size, blocks, never, tokens, r, place, maxima)
            tokens[r, place] = found if found < size else _left(size, never, tokens, r, place)
            gains[r, place] = (scores[begin + tokens[r, place]] - top) - total
