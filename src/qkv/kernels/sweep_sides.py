"""Sums over the keys on one side of a bend, for scores that bend where query plus key is zero: one sweep over both.

Where queries and keys are sorted, the keys on one side of a query's bend are those of the query before it and a few
more. So one walk along both, which adds each key once, gives every query its sum. What a key adds is its row times one
or two numbers of its own; a query multiplies the sums by numbers of its own.
"""

# mypy: ignore-errors
# Numba's signatures are the types here.

import numpy as np

from qkv.kernels.compiled import kernel, reduction, stage, wide_registers

# Unsigned: a place that may count from the end would have to be looked at each time.
N0, N1, N2 = np.uint64(0), np.uint64(1), np.uint64(2)


@stage
def _add(sums, to, y, start, width, factor):
    wide_registers()
    for c in range(width):
        sums[to + c] += factor * y[start + c]


@stage
def _write(values, at, sums, width, one, other):
    wide_registers()
    for c in range(width):
        values[at + c] = one * sums[c] + other * sums[width + c]


@stage
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


@stage
def _take(sums, width, y, start, j, p0, p1, extra, extras):
    """Add one source to the sums, and its extra number to theirs."""
    _add(sums, N0, y, start, width, p0[j])
    extras[0] += p0[j] * extra[j]
    if p1.size > 0:
        _add(sums, width, y, start, width, p1[j])
        extras[1] += p1[j] * extra[j]


@stage
def _give(first, values, totals, own, own_extra, dots, i, at, sums, width, one, other, slope, extras):
    """What a target gets of the sums."""
    if values.size > 0:
        if first:
            _write(values, at, sums, width, one, other)
        else:
            _write_more(values, at, sums, width, one, other)
    if totals.size > 0:
        share = one * extras[0] + other * extras[1]
        totals[i] = share if first else totals[i] + share
    if dots.size > 0:
        found = slope[i] * (_dot(sums, own, at, width) + own_extra[i] * extras[0])
        dots[i] = found if first else dots[i] + found


@kernel(
    "void(u8, u8, b1, b1, u8, u8, u8, F[::1], u8[::1], u8[::1], F[::1], u8[::1], u8[::1], F[::1], f8[::1], f8[::1],"
    "f8[::1], f8[::1], f8[::1], f8[::1], F[::1], f8[::1], F[::1], f8[::1], f8[::1], f8[::1], f8[::1])"
)
def side(
    r0, r1, upper, first, row_width, start, width, t, t_order, t_count, s, s_order, s_count, y, p0, p1, extra,
    a0, a1, slope, values, totals, own, own_extra, dots, sums, extras
):  # fmt: skip
    """Walk along targets t and sources s, and add up the sources with t + s > 0 (`upper`), or the others.

    Each target i gets, with S₀ = Σ p0_j (y_j, extra_j) and S₁ = Σ p1_j (y_j, extra_j) over its sources:
    values_i = a0_i S₀ + a1_i S₁, totals_i the same of the extra numbers, dots_i = slope_i (own_i, own_extra_i)·S₀.

    Args:
        r0, r1: the items; everything else lies flat, item after item, as many targets and sources in each.
        upper: which side.
        first: whether values, totals and dots are written; else they are added to.
        row_width, start, width: of the rows of y, values and own; their columns from `start` on that are summed.
        t, s: numbers of targets and sources.
        t_order, s_order: places of those of each item, ascending by their numbers.
        t_count, s_count: how many of each item take part, the first in order.
        y: rows of the sources.
        p0, p1, extra: numbers of each source; p1 of size 0 where there is no S₁.
        a0, a1, slope: numbers of each target; a1 of size 0 with p1, slope of size 0 with dots.
        values: rows of the targets; size 0 for none.
        totals: of the extra numbers; size 0 for none.
        own, own_extra, dots: rows and numbers of the targets; size 0 for none.
        sums, extras: scratch, twice the width, and two numbers.
    """
    each_t, each_s = np.uint64(t.size) // t_count.size, np.uint64(s.size) // s_count.size
    for r in range(r0, r1):
        targets, sources = t_count[r], s_count[r]
        for c in range(N2 * width):
            sums[c] = 0.0
        extras[0], extras[1] = 0.0, 0.0
        taken = N0
        for step in range(targets):
            i = t_order[r * each_t + (step if upper else targets - N1 - step)]
            while taken < sources:
                j = s_order[r * each_s + (sources - N1 - taken if upper else taken)]
                if (t[i] + s[j] > 0) != upper:
                    break
                _take(sums, width, y, j * row_width + start, j, p0, p1, extra, extras)
                taken += N1
            at, other = i * row_width + start, a1[i] if a1.size > 0 else 0.0
            _give(first, values, totals, own, own_extra, dots, i, at, sums, width, a0[i], other, slope, extras)
