"""Sums over the keys near each query, for kernels of bounded support on a line: one multi-pointer pass.

Where queries and keys are sorted, the keys within a kernel's support of a query begin and end no earlier than those of
the query before it. So pointers walk along the keys, each with the sum of what lies behind it, and what lies between
two pointers is a difference. A polynomial of the distance is one of the key's coordinate, whose powers are summed;
coordinates are counted from the centers of cells as wide as the support, so that no far key enters with a large factor.
What pointers hold at the beginning of each cell is kept for the few cells that a support can touch.
"""

# mypy: ignore-errors
# Numba's signatures are the types here.

import numpy as np

from qkv.compiled.hints import wide_registers
from qkv.compiled.kernels import inlined, kernel, reduction

# Unsigned: for signed indices Numba would check each time whether they count from the end.
N0, N1, N2, N3, N4 = np.uint64(0), np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)
BOX, PARABOLA, TRIANGLE = 0, 1, 2
FLAT, LEFT, RIGHT = 3, 4, 5
"""Pieces of kernels besides the parabola: 1, and the triangle's sides."""
FAR = 2.0**54
"""In units of the support: from there on neighboring numbers of 53 bits lie two of them apart, or more."""
HELD = 8
"""Rows of sums: those of the pointers first, at, after and last, then those of the beginnings of four cells: a support
touches two cells, three where their edges round."""


@inlined
def _add(held, to, stride, y, start, width, factor, weight, u, moments):
    """Add a key's row, and its row times its coordinate once and twice; its extra number stands behind the columns."""
    wide_registers()
    for c in range(width):
        held[to + c] += factor * y[start + c]
    held[to + width] += weight
    if moments > N1:
        first = to + stride
        for c in range(width):
            held[first + c] += factor * u * y[start + c]
        held[first + width] += weight * u
    if moments > N2:
        second = to + N2 * stride
        for c in range(width):
            held[second + c] += factor * u * u * y[start + c]
        held[second + width] += weight * u * u


@inlined
def _copy(held, to, row, count):
    wide_registers()
    for c in range(count):
        held[to + c] = held[row + c]


@inlined
def _clear(x, count):
    for c in range(count):
        x[c] = 0.0


@inlined
def _collect(found, to, held, above, below, count, factor):
    """found += factor·(above − below)."""
    wide_registers()
    for c in range(count):
        found[to + c] += factor * (held[above + c] - held[below + c])


@inlined
def _write(values, at, found, width, share):
    wide_registers()
    for c in range(width):
        values[at + c] = share * found[c]


@reduction
def _dot(found, start, own, at, width):
    wide_registers()
    total = 0.0
    for c in range(width):
        total += found[start + c] * own[at + c]
    return total


@inlined
def _passes(pointer, inside, t, s):
    """Whether a pointer goes on past a key."""
    if pointer == N0:
        return s < t and not inside
    if pointer == N1:
        return s < t
    if pointer == N2:
        return s <= t
    return s <= t or inside


@inlined
def _between(piece, sloped, one, two, place, cell, t, per_width, stride, held, centers, found):
    """Sum the keys between two pointers: the piece of the kernel; where `sloped`, its slope along t, and 1."""
    begin, end = place[one], place[two]
    if begin >= end:
        return
    opening, closing = cell[begin], cell[end - N1]
    for number in range(opening, closing + N1):
        below = one if number == opening else N4 + number % N4
        above = two if number == closing else N4 + (number + N1) % N4
        d0, b0 = above * N3 * stride, below * N3 * stride
        d1, b1 = d0 + stride, b0 + stride
        u = (t - centers[number % N4]) * per_width if abs(t) * per_width < FAR else 0.0
        if piece == FLAT:
            _collect(found, N0, held, d0, b0, stride, 1.0)
        elif piece == PARABOLA:
            _collect(found, N0, held, d0, b0, stride, 1 - u * u)
            _collect(found, N0, held, d1, b1, stride, 2 * u)
            _collect(found, N0, held, d1 + stride, b1 + stride, stride, -1.0)
            if sloped:
                _collect(found, stride, held, d0, b0, stride, -2 * u * per_width)
                _collect(found, stride, held, d1, b1, stride, 2 * per_width)
        else:
            sign = 1.0 if piece == LEFT else -1.0
            _collect(found, N0, held, d0, b0, stride, 1 - sign * u)
            _collect(found, N0, held, d1, b1, stride, sign)
            if sloped:
                _collect(found, stride, held, d0, b0, stride, -sign * per_width)
        if sloped:
            _collect(found, N2 * stride, held, d0, b0, stride, 1.0)


@inlined
def _advance(
    pointer, kind, scale, begin, end, stride, row_width, start, width, t, s, s_order, u, center, cell, y, factor, extra,
    held, place, centers
):  # fmt: skip
    """Let a pointer pass all keys that are behind it for a target at t."""
    moments = N1 if kind == BOX else N3 if kind == PARABOLA else N2
    row = N3 * stride
    while place[pointer] < end:
        k = place[pointer]
        j = s_order[k]
        x = scale * ((t - s[j]) * (t - s[j]))
        inside = x <= 1 if kind == BOX else x < 1
        if not _passes(pointer, inside, t, s[j]):
            break
        if pointer == N3 and (k == begin or cell[k] != cell[k - N1]):
            _copy(held, (N4 + cell[k] % N4) * row, N3 * row, row)
            centers[cell[k] % N4] = center[k]
        weight = factor[j] * extra[j]
        _add(held, pointer * row, stride, y, j * row_width + start, width, factor[j], weight, u[k], moments)
        place[pointer] = k + N1


@inlined
def _give(normalized, i, at, block, stride, width, found, values, totals, own, own_extra, dots, bends):
    """Write the results of one target from the sums."""
    # Every block divides by the total, and the first one writes it.
    total = found[width]
    if values.size > 0:
        share = 1.0
        if normalized:
            share = 1.0 / total if total != 0 else 0.0
        _write(values, at, found, width, share)
    if totals.size > 0 and block == N0:
        totals[i] = total
    if dots.size > 0:
        more = own_extra[i] if block == N0 else 0.0
        place = block * own_extra.size + i
        dots[place] = _dot(found, stride, own, at, width) + more * found[stride + width]
        near = _dot(found, N2 * stride, own, at, width) + more * found[N2 * stride + width]
        bends[place] = near - _dot(found, N0, own, at, width) - more * total


@kernel(
    "void(u8, u8, u8, u8, i8, b1, u8, F[::1], f8[::1], F[::1], u8[::1], u8[::1], F[::1], u8[::1], u8[::1], f8[::1],"
    "f8[::1], u8[::1], F[::1], f8[::1], f8[::1], F[::1], f8[::1], F[::1], f8[::1], f8[::1], f8[::1], f8[::1], f8[::1],"
    "u8[::1], f8[::1])"
)
def window(
    first, last, blocks, broad, kind, normalized, row_width, scale, per_width, t, t_order, t_count, s, s_order,
    s_count, u, center, cell, y, factor, extra, values, totals, own, own_extra, dots, bends, held, found, place, centers
):  # fmt: skip
    """Walk along targets t and sources s, and sum f(t_i, s_j) factor_j (y_j, extra_j) over the sources near each t_i.

    With d = (t − s)·per_width, f is 1 (BOX), 1 − d² (PARABOLA) or 1 − |d| (TRIANGLE) where scale·(t − s)² ≤ 1 (BOX) or
    < 1, decided in the type of t, and 0 elsewhere.

    Args:
        first, last: the range of walks, counted over (items, blocks of columns); everything else lies flat, item after
            item, as many targets and sources in each.
        blocks, broad: how many blocks of columns there are, and how broad they are but for the last; extra numbers go
            with the first.
        kind: which f.
        normalized: whether values are divided by the sum of the extra numbers; then they are 0 where that is 0.
        row_width: of the rows of y, values and own.
        scale, per_width: of each item: 1/h² and 1/h.
        t, s: numbers of targets and sources.
        t_order, s_order: places of those of each item, ascending by their numbers.
        t_count, s_count: how many of each item take part, the first in order.
        u, center, cell: of the sources in their order: the coordinate in the cell, the cell's center, and its number,
            counted from 0 without gaps.
        y, factor, extra: rows and numbers of the sources.
        values: rows of the targets; size 0 for none.
        totals: sums of the extra numbers; size 0 for none.
        own, own_extra: rows and numbers of the targets; size 0 for none.
        dots: (own_i, own_extra_i) · Σ ∂f/∂t of each block, (blocks, targets), flat; size 0 for none.
        bends: (own_i, own_extra_i) · Σ (1 − f) over the support; as many as dots.
        held: scratch, HELD × 3 × (broad + 1).
        found: scratch, 3 × (broad + 1): Σ f, Σ ∂f/∂t and Σ 1.
        place, centers: scratch, four numbers.
    """
    sloped, each_t, each_s = dots.size > 0, np.uint64(t.size) // t_count.size, np.uint64(s.size) // s_count.size
    for walk in range(first, last):
        r, block = walk // blocks, walk % blocks
        start = block * broad
        width = min(broad, row_width - start)
        stride = width + N1
        row = N3 * stride
        begin, end = r * each_s, r * each_s + s_count[r]
        _clear(held, np.uint64(HELD) * row)
        for pointer in range(N4):
            place[pointer] = begin
        for step in range(t_count[r]):
            i = t_order[r * each_t + step]
            for pointer in range(N4):
                if kind == TRIANGLE or pointer % N3 == N0:
                    _advance(
                        pointer, kind, scale[r], begin, end, stride, row_width, start, width, t[i], s, s_order,
                        u, center, cell, y, factor, extra, held, place, centers
                    )  # fmt: skip
            _clear(found, row if sloped else stride)
            if kind == TRIANGLE:
                _between(LEFT, sloped, N0, N1, place, cell, t[i], per_width[r], stride, held, centers, found)
                _between(FLAT, sloped, N1, N2, place, cell, t[i], per_width[r], stride, held, centers, found)
                _between(RIGHT, sloped, N2, N3, place, cell, t[i], per_width[r], stride, held, centers, found)
            else:
                piece = FLAT if kind == BOX else PARABOLA
                _between(piece, sloped, N0, N3, place, cell, t[i], per_width[r], stride, held, centers, found)
            at = i * row_width + start
            _give(normalized, i, at, block, stride, width, found, values, totals, own, own_extra, dots, bends)
