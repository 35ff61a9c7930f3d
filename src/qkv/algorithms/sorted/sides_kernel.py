"""Sums over the keys on one side of a kink, for scores whose slope changes at query + key = 0: a two-pointer pass.

With sorted queries and keys, the keys on one side of a query's kink are those of the previous query and a few more. So
one two-pointer pass, which adds each key once, computes the sum of every query. A key contributes its row times one or
two factors of its own; a query multiplies the sums by factors of its own.
"""

# mypy: ignore-errors
# Numba's signatures are the types here.

import numpy as np

from qkv.compiled.hints import wide_registers
from qkv.compiled.kernels import inlined, kernel, reduction

# Unsigned: for signed indices Numba would check each time whether they count from the end.
N0, N1, N2 = np.uint64(0), np.uint64(1), np.uint64(2)


@inlined
def _add(sums, to, y, start, width, factor):
    wide_registers()
    for c in range(width):
        sums[to + c] += factor * y[start + c]


@inlined
def _write(values, at, sums, width, one, other):
    wide_registers()
    for c in range(width):
        values[at + c] = one * sums[c] + other * sums[width + c]


@inlined
def _write_more(values, at, sums, width, one, other):
    wide_registers()
    for c in range(width):
        values[at + c] += one * sums[c] + other * sums[width + c]


@reduction
def _dot(sums, own, at, width):
    wide_registers()
    found = 0.0
    for c in range(width):
        found += sums[c] * own[at + c]
    return found


@inlined
def _take(sums, width, y, start, walk, j, p0, p1, extra, extras):
    """Add one source to the sums, and its extra number to theirs."""
    _add(sums, N0, y, start, width, p0[walk, j])
    extras[0] += p0[walk, j] * extra[j]
    if p1.size > 0:
        _add(sums, width, y, start, width, p1[walk, j])
        extras[1] += p1[walk, j] * extra[j]


@inlined
def _put(first, values, at, sums, width, one, other):
    if first:
        _write(values, at, sums, width, one, other)
    else:
        _write_more(values, at, sums, width, one, other)


@inlined
def _total(first, totals, at, found):
    totals[at] = found if first else totals[at] + found


@inlined
def _give(
    normalized, first, walk, counts, i, to, at, width, a0, a1, slope, values, totals, own, own_extra, dots, sums, extras
):  # fmt: skip
    """Write the results of one target from the sums."""
    one, other = a0[walk, i], a1[walk, i] if a1.size > 0 else 0.0
    if normalized:
        one = one / totals[to] if totals[to] != 0 else 0.0
    else:
        _total(first, totals, to, one * extras[0] + other * extras[1])
    if values.size > 0:
        _put(first, values, at, sums, width, one, other)
    if dots.size > 0:
        more = own_extra[i] * extras[0] if counts else 0.0
        _total(first, dots, to, slope[walk, i] * (_dot(sums, own, at, width) + more))


@inlined
def _tally(walk, targets, sources, order, t, s, t_order, s_order, p0, extra, a0, totals, to):
    """The totals alone of one side."""
    upper, total, taken = walk == 0, 0.0, N0
    for step in range(targets):
        i = t_order[order[0] + (step if upper else targets - N1 - step)]
        while taken < sources:
            j = s_order[order[1] + (sources - N1 - taken if upper else taken)]
            if (t[i] + s[j] > 0) != upper:
                break
            total += p0[walk, j] * extra[j]
            taken += N1
        _total(upper, totals, to + i, a0[walk, i] * total)


@kernel(
    "void(u8, u8, u8, u8, b1, u8, F[::1], u8[::1], u8[::1], F[::1], u8[::1], u8[::1], F[::1], f8[:,::1], f8[:,::1],"
    "f8[::1], f8[:,::1], f8[:,::1], f8[:,::1], F[::1], f8[::1], F[::1], f8[::1], f8[::1], f8[::1], f8[::1])"
)
def sides(
    begin, end, blocks, broad, normalized, row_width, t, t_order, t_count, s, s_order, s_count, y, p0, p1, extra,
    a0, a1, slope, values, totals, own, own_extra, dots, sums, extras
):  # fmt: skip
    """Sum the sources with t + s > 0 for each target in a two-pointer pass; in a second pass sum the others.

    Each target i gets, with S₀ = Σ p0_j (y_j, extra_j) and S₁ = Σ p1_j (y_j, extra_j) over its sources, summed over the
    walks: values_i = a0_i S₀ + a1_i S₁, totals_i the same of the extra numbers, and
    dots_i = slope_i (own_i, own_extra_i)·S₀.

    Args:
        begin, end: the range of columns, counted over (items, blocks); everything else lies flat, item after item, as
            many targets and sources in each.
        blocks, broad: how many blocks of columns there are, and how broad they are but for the last; extra numbers go
            with the first.
        normalized: whether values are divided by the totals, and 0 where those are 0; then there is no S₁.
        row_width: of the rows of y, values and own.
        t, s: numbers of targets and sources.
        t_order, s_order: places of those of each item, ascending by their numbers.
        t_count, s_count: how many of each item take part, the first in order.
        y: rows of the sources.
        p0, p1: of each walk numbers of each source, (1 or 2, sources); p1 of size 0 where there is no S₁.
        extra: of each source.
        a0, a1, slope: of each walk numbers of each target; a1 of size 0 with p1, slope of size 0 with dots.
        values: rows of the targets; size 0 for none.
        totals: of the extra numbers, as each block finds them, (blocks, targets), flat.
        own, own_extra: rows and numbers of the targets; size 0 for none.
        dots: of each block, (blocks, targets), flat; size 0 for none.
        sums, extras: scratch, twice `broad`, and two numbers.
    """
    each_t, each_s = np.uint64(t.size) // t_count.size, np.uint64(s.size) // s_count.size
    for place in range(begin, end):
        r, block = place // blocks, place % blocks
        start, to = block * broad, block * t.size
        width = min(broad, row_width - start)
        targets, sources, order = t_count[r], s_count[r], (r * each_t, r * each_s)
        for walk in range(p0.shape[0] if normalized else 0):
            _tally(walk, targets, sources, order, t, s, t_order, s_order, p0, extra, a0, totals, to)
        for walk in range(p0.shape[0]):
            upper = walk == 0
            for c in range(N2 * width):
                sums[c] = 0.0
            extras[0], extras[1] = 0.0, 0.0
            taken = N0
            for step in range(targets):
                i = t_order[order[0] + (step if upper else targets - N1 - step)]
                while taken < sources:
                    j = s_order[order[1] + (sources - N1 - taken if upper else taken)]
                    if (t[i] + s[j] > 0) != upper:
                        break
                    _take(sums, width, y, j * row_width + start, walk, j, p0, p1, extra, extras)
                    taken += N1
                _give(
                    normalized, upper, walk, block == N0, i, to + i, i * row_width + start, width, a0, a1, slope,
                    values, totals, own, own_extra, dots, sums, extras
                )  # fmt: skip
