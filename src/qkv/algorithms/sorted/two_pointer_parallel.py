"""Two-pointer passes over sorted queries and keys, with items and columns divided among threads."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qkv.algorithms.sorted import sides_kernel
from qkv.algorithms.sorted.windows_kernel import BOX, PREFIX_ROWS, UNRESOLVED, window
from qkv.compiled import thread_pool

Numbers = NDArray[Any]
Doubles = NDArray[np.float64]
Indices = NDArray[np.uint64]
NONE = np.empty(0)
NO_INDEX = np.empty(0, np.uint64)
NONE_2D = np.empty((0, 0))
_BLOCK_WIDTH = 32
"""Columns of a block, if items are few: blocks of columns are then divided among threads."""
_FEW_ITEMS = 8
"""Fewer items than this are few. This does not depend on the threads, nor then does the order of additions."""
_POINT_MICROSECONDS, _COLUMN_MICROSECONDS = 1e-2, 4e-4
"""Time of one thread per query or key, and per column of one."""


class Points(NamedTuple):
    """The coordinates of queries or keys of all items, flat, item after item, and their order.

    Attributes:
        coordinates: (R·N,).
        order: indices into the coordinates, those of each item in ascending order of its coordinates, (R·N,).
        counts: how many points of each item are visible; these come first in the order, (R,).
    """

    coordinates: Numbers
    order: NDArray[np.uint64]
    counts: NDArray[np.uint64]


class PointRows(NamedTuple):
    """Rows of numbers that belong to points, and one extra number for each.

    Attributes:
        rows: (R·N·V,), flat.
        extra: (R·N,).
    """

    rows: Numbers
    extra: Doubles


class SideSums(NamedTuple):
    """The results of a two-pointer pass for each target.

    Attributes:
        values: sums of rows, (R·N·V,), in the rows' dtype; empty if not requested.
        totals: sums of extra numbers, (R·N,).
        dots: dot products of the targets' rows with sums of slopes, (R·N,); empty if not requested.
        complements: the same with sums of 1 − f in place of slopes, for `windows`; empty if dots are.
        begins, ends: the range, in their order, of the sources within each target's support, for `windows` of
            normalized sums, (R·N,); else empty.
    """

    values: Numbers
    totals: Doubles
    dots: Doubles
    complements: Doubles
    begins: Indices
    ends: Indices


class SourceFactors(NamedTuple):
    """Factors of each source above the kink and, if needed, below it, (1 or 2, R·M).

    Attributes:
        p0, p1: two factors; p1 is `NONE_2D` if one is enough.
    """

    p0: Doubles
    p1: Doubles


class TargetFactors(NamedTuple):
    """Factors of each target, for the sums of each side, (1 or 2, R·N); `NONE_2D` if not needed."""

    a0: Doubles
    a1: Doubles
    slope: Doubles


def sides(
    targets: Points,
    sources: Points,
    source_rows: PointRows,
    weights: SourceFactors,
    factors: TargetFactors,
    target_rows: PointRows | None,
    needs_values: bool,
    normalized: bool = False,
) -> SideSums:
    """Sum the sources above each target's kink, t + s > 0, and if needed those below.

    Args:
        targets, sources: their coordinates.
        source_rows: rows of the sources.
        weights: of the sources on each side, see `sides_kernel.sides`.
        factors: of the targets, for each side.
        target_rows: rows of the targets, for dots; None for no dots.
        needs_values: whether to compute values.
        normalized: whether values are divided by the totals.

    Returns:
        The sums over both sides; complements and ranges are empty.

    Example:
        >>> a, b = Points(np.zeros(1), np.zeros(1, np.uint64), np.ones(1, np.uint64)), np.array([-1.0, 2.0])
        >>> keys = Points(b, np.array([0, 1], np.uint64), np.array([2], np.uint64))
        >>> rows, weights = PointRows(np.array([5.0, 7.0]), np.ones(2)), SourceFactors(np.ones((1, 2)), b[None])
        >>> sides(a, keys, rows, weights, TargetFactors(np.zeros((1, 1)), np.ones((1, 1)), NONE_2D), None, True).values
        array([14.])
    """
    columns = source_rows.rows.size // sources.coordinates.size
    dtype, n = targets.coordinates.dtype, targets.coordinates.size
    blocks, width = _blocks(columns, targets.counts.size)
    values, totals = _allocate(targets, n * columns if needs_values else 0, dtype), np.empty(blocks * n)
    dots = _allocate(targets, blocks * n if target_rows is not None else 0)
    rows, extra = (np.empty(0, dtype), NONE) if target_rows is None else target_rows
    arguments = blocks, width, normalized, columns, *targets, *sources, source_rows.rows, *weights, source_rows.extra
    scratch = ((2 * width,), np.float64), ((thread_pool.APART,), np.float64)
    time = _time(targets, sources, columns) * len(weights.p0)
    results = *factors, values, totals, rows, extra, dots
    thread_pool.run_in_chunks(
        sides_kernel.sides, dtype, blocks * targets.counts.size, time, (*arguments, *results), scratch
    )
    return SideSums(values, totals[:n], dots.reshape(blocks, -1).sum(0), NONE, NO_INDEX, NO_INDEX)


class Support(NamedTuple):
    """A kernel of bounded support.

    Attributes:
        kind: `BOX`, `PARABOLA` or `TRIANGLE` of `windows_kernel`.
        scale: 1/h² of each item.
    """

    kind: int
    scale: Doubles

    @property
    def per_width(self) -> Doubles:
        """1/h of each item."""
        return np.sqrt(self.scale)


def windows(
    support: Support,
    targets: Points,
    sources: Points,
    source_rows: PointRows,
    factor: Doubles,
    target_rows: PointRows | None,
    needs_values: bool,
    normalized: bool = False,
) -> SideSums:
    """Sum the sources within the support around each target.

    Args:
        support: the kernel.
        targets, sources: their coordinates.
        source_rows: rows of the sources.
        factor: of each source, (R·M,).
        target_rows: rows of the targets, for dots and complements; None for neither.
        needs_values: whether to compute values.
        normalized: whether values are divided by the totals.

    Returns:
        The sums.

    Example:
        >>> a, b = Points(np.zeros(1), np.zeros(1, np.uint64), np.ones(1, np.uint64)), np.array([-0.5, 2.0])
        >>> keys = Points(b, np.array([0, 1], np.uint64), np.array([2], np.uint64))
        >>> support, rows = Support(1, np.ones(1)), PointRows(np.array([5.0, 7.0]), np.ones(2))
        >>> windows(support, a, keys, rows, np.ones(2), None, True).values
        array([3.75])
    """
    columns = source_rows.rows.size // sources.coordinates.size
    dtype, n = targets.coordinates.dtype, targets.coordinates.size
    values, totals = _allocate(targets, n * columns if needs_values else 0, dtype), np.empty(n)
    blocks, width = _blocks(columns, targets.counts.size)
    dots, complements = _allocate(targets, 2 * blocks * n if target_rows is not None else 0).reshape(2, -1)
    rows, extra = (np.empty(0, dtype), NONE) if target_rows is None else target_rows
    # No source is in reach of a target that is not visible.
    begins, ends = (np.zeros(n if normalized else 0, np.uint64) for _ in range(2))
    exactly = np.dtype(dtype) == np.float64
    settings = blocks, width, support.kind, normalized, exactly, columns
    points = support.scale.astype(dtype), support.per_width, *targets, *sources
    summed = *_cells(support, sources), source_rows.rows, factor, source_rows.extra
    results = values, totals, begins, ends, rows, extra, dots, complements
    row = 3 * (width + 1)
    scratch = (
        ((2 * PREFIX_ROWS * row,), np.float64),
        ((row,), np.float64),
        ((thread_pool.APART,), np.uint64),
        ((thread_pool.APART,), np.float64),
    )
    passes, time = blocks * targets.counts.size, _time(targets, sources, columns) * (support.kind + 1)
    thread_pool.run_in_chunks(window, dtype, passes, time, (*settings, *points, *summed, *results), scratch)
    dots, complements = (x.reshape(blocks, -1).sum(0) for x in (dots, complements))
    return SideSums(values, totals, dots, complements, begins, ends)


def _cells(support: Support, sources: Points) -> tuple[Doubles, Doubles, NDArray[np.uint64]]:
    """Return for each source, in order, its coordinate within its cell, the cell's center, and the cell's number."""
    items = sources.counts.size
    ordered = sources.coordinates[sources.order].astype(np.float64).reshape(items, -1)
    if support.kind == BOX:
        zeros = np.zeros(ordered.size)
        return zeros, zeros, np.zeros(ordered.size, np.uint64)
    per_width = support.per_width[:, None]
    cell = np.floor(ordered * (per_width / 2))
    # Beyond UNRESOLVED only equal coordinates are within each other's support: their position in a cell is 0.
    center = np.where(np.abs(ordered) * per_width < UNRESOLVED, (2 * cell + 1) / per_width, ordered)
    number = np.zeros(cell.shape, np.uint64)
    np.cumsum(cell[:, 1:] != cell[:, :-1], -1, out=number[:, 1:], dtype=np.uint64)
    return ((ordered - center) * per_width).reshape(-1), center.reshape(-1), number.reshape(-1)


def _allocate(targets: Points, size: int, dtype: Any = np.float64) -> Numbers:
    """Allocate a buffer of `size` numbers, zeros if the pass does not write all of them."""
    all_visible = int(targets.counts.sum()) == targets.coordinates.size
    return np.empty(size, dtype) if all_visible else np.zeros(size, dtype)


def _blocks(columns: int, items: int) -> tuple[int, int]:
    """Return the number of blocks of columns, at least one, and their width."""
    width = min(_BLOCK_WIDTH, columns) if items < _FEW_ITEMS else columns
    return max(1, -(-columns // max(width, 1))), width


def _time(targets: Points, sources: Points, columns: int) -> float:
    """Estimate the microseconds of one thread."""
    return (targets.coordinates.size + sources.coordinates.size) * (
        _POINT_MICROSECONDS + columns * _COLUMN_MICROSECONDS
    )
