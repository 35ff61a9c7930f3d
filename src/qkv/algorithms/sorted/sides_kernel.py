"""Sums over the keys on one side of a kink, for scores whose slope changes at query + key = 0: a two-pointer pass.

With sorted queries and keys, the keys on one side of a query's kink are those of the previous query and a few more. So
one two-pointer pass, which adds each key once, computes the sums of all queries. Each key has one or two factors that
multiply its row, and each query has factors that multiply the sums.
"""

# mypy: ignore-errors
# Numba's signatures are the types here.

import numpy as np

from qkv.compiled.hints import wide_registers
from qkv.compiled.kernels import inlined, kernel, reduction

# Unsigned, because Numba checks each signed index for being negative.
N0, N1, N2 = np.uint64(0), np.uint64(1), np.uint64(2)


@inlined
def _add(sums, to, y, start, width, factor):
    wide_registers()
    for c in range(width):
        sums[to + c] += factor * y[start + c]


@inlined
def _write(values, at, sums, width, factor0, factor1):
    wide_registers()
    for c in range(width):
        values[at + c] = factor0 * sums[c] + factor1 * sums[width + c]


@inlined
def _add_to(values, at, sums, width, factor0, factor1):
    wide_registers()
    for c in range(width):
        values[at + c] += factor0 * sums[c] + factor1 * sums[width + c]


@reduction
def _dot(sums, x, at, width):
    wide_registers()
    total = 0.0
    for c in range(width):
        total += sums[c] * x[at + c]
    return total


@inlined
def _add_source(sums, width, y, start, side, j, p0, p1, extra, extras):
    """Add one source's row and extra number to the sums."""
    _add(sums, N0, y, start, width, p0[side, j])
    extras[0] += p0[side, j] * extra[j]
    if p1.size > 0:
        _add(sums, width, y, start, width, p1[side, j])
        extras[1] += p1[side, j] * extra[j]


@inlined
def _write_or_add(first, values, at, sums, width, factor0, factor1):
    if first:
        _write(values, at, sums, width, factor0, factor1)
    else:
        _add_to(values, at, sums, width, factor0, factor1)


@inlined
def _accumulate(first, totals, at, x):
    totals[at] = x if first else totals[at] + x


@inlined
def _write_target(
    normalized, first, side, first_block, i, to, at, width, a0, a1, slope, values, totals, x, x_extra, dots, sums,
    extras,
):  # fmt: skip
    """Write the results of one target."""
    factor0, factor1 = a0[side, i], a1[side, i] if a1.size > 0 else 0.0
    if normalized:
        factor0 = factor0 / totals[to] if totals[to] != 0 else 0.0
    else:
        _accumulate(first, totals, to, factor0 * extras[0] + factor1 * extras[1])
    if values.size > 0:
        _write_or_add(first, values, at, sums, width, factor0, factor1)
    if dots.size > 0:
        row_extra = x_extra[i] * extras[0] if first_block else 0.0
        _accumulate(first, dots, to, slope[side, i] * (_dot(sums, x, at, width) + row_extra))


@inlined
def _side_totals(side, targets, sources, order, t, s, t_order, s_order, p0, extra, a0, totals, to):
    """Compute the totals alone, for one side."""
    upper, total, passed = side == 0, 0.0, N0
    for step in range(targets):
        i = t_order[order[0] + (step if upper else targets - N1 - step)]
        while passed < sources:
            j = s_order[order[1] + (sources - N1 - passed if upper else passed)]
            if (t[i] + s[j] > 0) != upper:
                break
            total += p0[side, j] * extra[j]
            passed += N1
        _accumulate(upper, totals, to + i, a0[side, i] * total)


@kernel(
    "void(u8, u8, u8, u8, b1, u8, F[::1], u8[::1], u8[::1], F[::1], u8[::1], u8[::1], F[::1], f8[:,::1], f8[:,::1],"
    "f8[::1], f8[:,::1], f8[:,::1], f8[:,::1], F[::1], f8[::1], F[::1], f8[::1], f8[::1], f8[::1], f8[::1])",
    scratch=2,
)
def sides(
    begin, end, blocks, block_width, normalized, row_width, t, t_order, t_count, s, s_order, s_count, y, p0, p1, extra,
    a0, a1, slope, values, totals, x, x_extra, dots, sums, extras
):  # fmt: skip
    """Sum the sources with t + s > 0 for each target in a two-pointer pass; in a second pass sum the others.

    With S₀ = Σ p0_j (y_j, extra_j) and S₁ = Σ p1_j (y_j, extra_j) over the sources of target i, the results, summed
    over the sides, are values_i = a0_i S₀ + a1_i S₁, totals_i the same of the extra numbers, and dots_i = slope_i (x_i,
    x_extra_i)·S₀.

    Args:
        begin, end: the range of passes, counted over (items, blocks of columns). All arrays are flat, item after item,
            with the same number of targets and of sources in each.
        blocks, block_width: the number of blocks of columns, and their width except for the last; the first block also
            has the extra numbers.
        normalized: whether values are divided by the totals, and 0 where those are 0; then there is no S₁.
        row_width: of the rows of y, values and own.
        t, s: coordinates of targets and sources.
        t_order, s_order: their indices, those of each item in ascending order of its coordinates.
        t_count, s_count: how many of each item are visible; these come first in the order.
        y: rows of the sources.
        p0, p1: factors of each source for each side, (1 or 2, sources); p1 of size 0 if there is no S₁.
        extra: an extra number of each source.
        a0, a1, slope: factors of each target for each side; a1 of size 0 with p1, slope of size 0 with dots.
        values: rows of the targets; size 0 for none.
        totals: sums of the extra numbers, by block, (blocks, targets), flat.
        x, x_extra: rows and extra numbers of the targets; size 0 for none.
        dots: by block, (blocks, targets), flat; size 0 for none.
        sums, extras: scratch, 2 · block_width and two numbers.
    """
    targets_per_item, sources_per_item = np.uint64(t.size) // t_count.size, np.uint64(s.size) // s_count.size
    for index in range(begin, end):
        r, block = index // blocks, index % blocks
        start, to = block * block_width, block * t.size
        width = min(block_width, row_width - start)
        targets, sources, order = t_count[r], s_count[r], (r * targets_per_item, r * sources_per_item)
        for side in range(p0.shape[0] if normalized else 0):
            _side_totals(side, targets, sources, order, t, s, t_order, s_order, p0, extra, a0, totals, to)
        for side in range(p0.shape[0]):
            upper = side == 0
            for c in range(N2 * width):
                sums[c] = 0.0
            extras[0], extras[1] = 0.0, 0.0
            passed = N0
            for step in range(targets):
                i = t_order[order[0] + (step if upper else targets - N1 - step)]
                while passed < sources:
                    j = s_order[order[1] + (sources - N1 - passed if upper else passed)]
                    if (t[i] + s[j] > 0) != upper:
                        break
                    _add_source(sums, width, y, j * row_width + start, side, j, p0, p1, extra, extras)
                    passed += N1
                _write_target(
                    normalized, upper, side, block == N0, i, to + i, i * row_width + start, width, a0, a1, slope,
                    values, totals, x, x_extra, dots, sums, extras
                )  # fmt: skip
