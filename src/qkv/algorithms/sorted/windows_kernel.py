"""Sums over the keys near each query, for kernels of bounded support in one dimension: one multi-pointer pass.

If queries and keys are sorted, the keys within a kernel's support of a query begin and end no earlier than those of the
previous query. So pointers advance along the keys, each with the sum of all keys before it, and the sum between two
pointers is a difference. A polynomial of the distance is a polynomial of the key's coordinate, whose powers are summed.
Coordinates are measured from the centers of cells as wide as the support, so that no far key enters with a large
factor. The sums at the start of each cell are stored for the few cells that a support can touch.

The sum of all keys before a pointer grows with their number, and so does its rounding, which the difference of two such
sums keeps. Coordinates in float32 leave 29 bits of a float64 sum to it. For those in float64 the rounding of every
addition is summed as well (Knuth's two-sum), so that a difference is as accurate as if only the keys between the
pointers had been added.
"""

# mypy: ignore-errors
# Numba's signatures are the types here.

import numpy as np

from qkv.compiled.hints import wide_registers
from qkv.compiled.kernels import inlined, kernel, reduction

# Unsigned, because Numba checks each signed index for being negative.
N0, N1, N2, N3, N4 = np.uint64(0), np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)
BOX, PARABOLA, TRIANGLE = 0, 1, 2
FLAT, LEFT, RIGHT = 3, 4, 5
"""Pieces of kernels besides the parabola: the constant 1, and the triangle's sides."""
UNRESOLVED = 2.0**54
"""The distance from 0, in bandwidths, from which on neighboring float64 numbers are at least two bandwidths apart."""
PREFIX_ROWS = 8
"""Rows of prefix sums: of the pointers first, at, after and last, then of the starts of four cells.

A support touches two cells, or three because of rounding.
"""


@inlined
def _add_twice(prefix, at, low, x):
    """Add x to a sum, and what that rounds off to the sum of roundings, which lies `low` numbers behind."""
    old = prefix[at]
    new = old + x
    added = new - old
    prefix[at] = new
    prefix[at + low] += (old - (new - added)) + (x - added)


@inlined
def _add_exactly(prefix, to, low, stride, y, start, width, factor, weight, u, moments):
    """As `_add`, with sums of roundings."""
    wide_registers()
    for c in range(width):
        _add_twice(prefix, to + c, low, factor * y[start + c])
    _add_twice(prefix, to + width, low, weight)
    if moments > N1:
        first = to + stride
        for c in range(width):
            _add_twice(prefix, first + c, low, factor * u * y[start + c])
        _add_twice(prefix, first + width, low, weight * u)
    if moments > N2:
        second = to + N2 * stride
        for c in range(width):
            _add_twice(prefix, second + c, low, factor * u * u * y[start + c])
        _add_twice(prefix, second + width, low, weight * u * u)


@inlined
def _add(prefix, to, stride, y, start, width, factor, weight, u, moments):
    """Add a key's row, and the row times the coordinate u and u²; the extra number follows the columns."""
    wide_registers()
    for c in range(width):
        prefix[to + c] += factor * y[start + c]
    prefix[to + width] += weight
    if moments > N1:
        first = to + stride
        for c in range(width):
            prefix[first + c] += factor * u * y[start + c]
        prefix[first + width] += weight * u
    if moments > N2:
        second = to + N2 * stride
        for c in range(width):
            prefix[second + c] += factor * u * u * y[start + c]
        prefix[second + width] += weight * u * u


@inlined
def _copy(prefix, to, row, count):
    wide_registers()
    for c in range(count):
        prefix[to + c] = prefix[row + c]


@inlined
def _clear(x, count):
    for c in range(count):
        x[c] = 0.0


@inlined
def _collect(result, to, prefix, low, above, below, count, factor):
    """result += factor·(above − below); `low` is the distance to the sums of roundings, 0 if there are none."""
    wide_registers()
    if low == N0:
        for c in range(count):
            result[to + c] += factor * (prefix[above + c] - prefix[below + c])
    else:
        for c in range(count):
            rounded = prefix[above + low + c] - prefix[below + low + c]
            result[to + c] += factor * ((prefix[above + c] - prefix[below + c]) + rounded)


@inlined
def _write(values, at, result, width, factor):
    wide_registers()
    for c in range(width):
        values[at + c] = factor * result[c]


@reduction
def _dot(result, start, x, at, width):
    wide_registers()
    total = 0.0
    for c in range(width):
        total += result[start + c] * x[at + c]
    return total


@inlined
def _passes(pointer, inside, t, s):
    """Return whether a pointer passes a key."""
    if pointer == N0:
        return s < t and not inside
    if pointer == N1:
        return s < t
    if pointer == N2:
        return s <= t
    return s <= t or inside


@inlined
def _sum_between(piece, sloped, one, two, index, cell, t, per_width, stride, prefix, low, centers, result):
    """Sum a piece of the kernel over the keys between two pointers; if `sloped`, also its derivative by t, and 1."""
    begin, end = index[one], index[two]
    if begin >= end:
        return
    first_cell, last_cell = cell[begin], cell[end - N1]
    for number in range(first_cell, last_cell + N1):
        below = one if number == first_cell else N4 + number % N4
        above = two if number == last_cell else N4 + (number + N1) % N4
        d0, b0 = above * N3 * stride, below * N3 * stride
        d1, b1 = d0 + stride, b0 + stride
        u = (t - centers[number % N4]) * per_width if abs(t) * per_width < UNRESOLVED else 0.0
        if piece == FLAT:
            _collect(result, N0, prefix, low, d0, b0, stride, 1.0)
        elif piece == PARABOLA:
            _collect(result, N0, prefix, low, d0, b0, stride, 1 - u * u)
            _collect(result, N0, prefix, low, d1, b1, stride, 2 * u)
            _collect(result, N0, prefix, low, d1 + stride, b1 + stride, stride, -1.0)
            if sloped:
                _collect(result, stride, prefix, low, d0, b0, stride, -2 * u * per_width)
                _collect(result, stride, prefix, low, d1, b1, stride, 2 * per_width)
        else:
            sign = 1.0 if piece == LEFT else -1.0
            _collect(result, N0, prefix, low, d0, b0, stride, 1 - sign * u)
            _collect(result, N0, prefix, low, d1, b1, stride, sign)
            if sloped:
                _collect(result, stride, prefix, low, d0, b0, stride, -sign * per_width)
        if sloped:
            _collect(result, N2 * stride, prefix, low, d0, b0, stride, 1.0)


@inlined
def _advance(
    pointer, kind, scale, begin, end, stride, row_width, start, width, t, s, s_order, u, center, cell, y, factor, extra,
    prefix, low, index, centers
):  # fmt: skip
    """Advance a pointer past all keys that it passes for a target at t."""
    moments = N1 if kind == BOX else N3 if kind == PARABOLA else N2
    row = N3 * stride
    while index[pointer] < end:
        k = index[pointer]
        j = s_order[k]
        distance = scale * ((t - s[j]) * (t - s[j]))
        inside = distance <= 1 if kind == BOX else distance < 1
        if not _passes(pointer, inside, t, s[j]):
            break
        if pointer == N3 and (k == begin or cell[k] != cell[k - N1]):
            slot = (N4 + cell[k] % N4) * row
            _copy(prefix, slot, N3 * row, row)
            if low > N0:
                _copy(prefix, slot + low, N3 * row + low, row)
            centers[cell[k] % N4] = center[k]
        weight = factor[j] * extra[j]
        at = j * row_width + start
        if low == N0:
            _add(prefix, pointer * row, stride, y, at, width, factor[j], weight, u[k], moments)
        else:
            _add_exactly(prefix, pointer * row, low, stride, y, at, width, factor[j], weight, u[k], moments)
        index[pointer] = k + N1


@inlined
def _write_target(normalized, i, at, block, stride, width, result, values, totals, x, x_extra, dots, complements):
    """Write the results of one target."""
    # Every block of columns divides by the total, and the first one writes it.
    total = result[width]
    if values.size > 0:
        inverse = 1.0
        if normalized:
            inverse = 1.0 / total if total != 0 else 0.0
        _write(values, at, result, width, inverse)
    if totals.size > 0 and block == N0:
        totals[i] = total
    if dots.size > 0:
        row_extra = x_extra[i] if block == N0 else 0.0
        to = block * x_extra.size + i
        dots[to] = _dot(result, stride, x, at, width) + row_extra * result[stride + width]
        ones = _dot(result, N2 * stride, x, at, width) + row_extra * result[N2 * stride + width]
        complements[to] = ones - _dot(result, N0, x, at, width) - row_extra * total


@kernel(
    "void(u8, u8, u8, u8, i8, b1, b1, u8, F[::1], f8[::1], F[::1], u8[::1], u8[::1], F[::1], u8[::1], u8[::1],"
    "f8[::1], f8[::1], u8[::1], F[::1], f8[::1], f8[::1], F[::1], f8[::1], u8[::1], u8[::1], F[::1], f8[::1],"
    "f8[::1], f8[::1], f8[::1], f8[::1], u8[::1], f8[::1])",
    scratch=4,
)
def window(
    first, last, blocks, block_width, kind, normalized, exactly, row_width, scale, per_width, t, t_order, t_count, s,
    s_order, s_count, u, center, cell, y, factor, extra, values, totals, begins, ends, x, x_extra, dots, complements,
    prefix, result, index, centers,
):  # fmt: skip
    """Sum f(t_i, s_j) factor_j (y_j, extra_j) over the sources s_j near each target t_i.

    With d = (t − s)·per_width, f is 1 (BOX), 1 − d² (PARABOLA) or 1 − |d| (TRIANGLE) where scale·(t − s)² ≤ 1 (BOX) or
    < 1, evaluated in the dtype of t, and 0 elsewhere.

    Args:
        first, last: the range of passes, counted over (items, blocks of columns). All arrays are flat, item after item,
            with the same number of targets and of sources in each.
        blocks, block_width: the number of blocks of columns, and their width except for the last; the first block also
            has the extra numbers.
        kind: which f.
        normalized: whether values are divided by the sum of the extra numbers, and 0 if that is 0.
        exactly: whether roundings of the running sums are summed as well.
        row_width: of the rows of y, values and own.
        scale, per_width: of each item: 1/h² and 1/h.
        t, s: coordinates of targets and sources.
        t_order, s_order: their indices, those of each item in ascending order of its coordinates.
        t_count, s_count: how many of each item are visible; these come first in the order.
        u, center, cell: of the sources in order: the coordinate in the cell, the cell's center, and its number, counted
            from 0 without gaps.
        y, factor, extra: rows, factors and extra numbers of the sources.
        values: rows of the targets; size 0 for none.
        totals: sums of the extra numbers; size 0 for none.
        begins, ends: the range, in the order of s, of the sources in each target's support; size 0 for none.
        x, x_extra: rows and extra numbers of the targets; size 0 for none.
        dots: (x_i, x_extra_i) · Σ ∂f/∂t of each block, (blocks, targets), flat; size 0 for none.
        complements: (x_i, x_extra_i) · Σ (1 − f) over the support; as many as dots.
        prefix: scratch, PREFIX_ROWS × 3 × (block_width + 1), and as many for sums of roundings.
        result: scratch, 3 × (block_width + 1): Σ f, Σ ∂f/∂t and Σ 1.
        index, centers: scratch, four numbers.
    """
    sloped, targets_per_item, sources_per_item = (
        dots.size > 0,
        np.uint64(t.size) // t_count.size,
        np.uint64(s.size) // s_count.size,
    )
    for pass_index in range(first, last):
        r, block = pass_index // blocks, pass_index % blocks
        start = block * block_width
        width = min(block_width, row_width - start)
        stride = width + N1
        row = N3 * stride
        begin, end = r * sources_per_item, r * sources_per_item + s_count[r]
        low = np.uint64(PREFIX_ROWS) * row if exactly else N0
        _clear(prefix, N2 * np.uint64(PREFIX_ROWS) * row)
        for pointer in range(N4):
            index[pointer] = begin
        for step in range(t_count[r]):
            i = t_order[r * targets_per_item + step]
            for pointer in range(N4):
                if kind == TRIANGLE or pointer % N3 == N0:
                    _advance(
                        pointer, kind, scale[r], begin, end, stride, row_width, start, width, t[i], s, s_order,
                        u, center, cell, y, factor, extra, prefix, low, index, centers
                    )  # fmt: skip
            _clear(result, row if sloped else stride)
            if kind == TRIANGLE:
                _sum_between(
                    LEFT, sloped, N0, N1, index, cell, t[i], per_width[r], stride, prefix, low, centers, result
                )
                _sum_between(
                    FLAT, sloped, N1, N2, index, cell, t[i], per_width[r], stride, prefix, low, centers, result
                )
                _sum_between(
                    RIGHT, sloped, N2, N3, index, cell, t[i], per_width[r], stride, prefix, low, centers, result
                )
            else:
                piece = FLAT if kind == BOX else PARABOLA
                _sum_between(
                    piece, sloped, N0, N3, index, cell, t[i], per_width[r], stride, prefix, low, centers, result
                )
            if begins.size > 0 and block == N0:
                begins[i], ends[i] = index[N0], index[N3]
            at = i * row_width + start
            _write_target(
                normalized, i, at, block, stride, width, result, values, totals, x, x_extra, dots, complements
            )
