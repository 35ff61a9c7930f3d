"""Two-pointer passes over sorted queries and keys, with items and columns divided among threads."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qkv.algorithms.sorted import sides_kernel
from qkv.algorithms.sorted.windows_kernel import BOX, FAR, HELD, window
from qkv.compiled import thread_pool

Numbers = NDArray[Any]
Doubles = NDArray[np.float64]
NONE = np.empty(0)
NO_MORE = np.empty((0, 0))
_TOGETHER = 32
"""Columns of a walk where items are few: blocks of columns are shared among threads."""
_FEW = 8
"""Fewer items than this are few. Threads do not decide it, so that the additions do not depend on them."""
_STEP, _EACH = 1e-2, 4e-4
"""Microseconds of one thread for a query or key, and for each of its columns."""


class Line(NamedTuple):
    """Queries or keys of all items, flat, item after item.

    Attributes:
        numbers: one for each, (R·N,).
        order: their places, those of each item ascending by their numbers, (R·N,).
        members: how many of each item take part, the first in order, (R,).
    """

    numbers: Numbers
    order: NDArray[np.uint64]
    members: NDArray[np.uint64]


class Rows(NamedTuple):
    """Rows that belong to a line, and a number beside each.

    Attributes:
        rows: (R·N·V,), flat.
        extra: (R·N,).
    """

    rows: Numbers
    extra: Doubles


class Sums(NamedTuple):
    """The results of a two-pointer pass, per target.

    Attributes:
        values: sums of rows, (R·N·V,), in the rows' type; empty where not wanted.
        totals: sums of extra numbers, (R·N,).
        dots: own rows times sums of slopes, (R·N,); empty where not wanted.
        bends: own rows times sums of 1 − f, (R·N,), of a window; as many as dots.
    """

    values: Numbers
    totals: Doubles
    dots: Doubles
    bends: Doubles


class Weights(NamedTuple):
    """Numbers that multiply each source on its side of the bend, (1 or 2, R·M): above it, and where that counts below.

    Attributes:
        p0, p1: two numbers of each; p1 is `NO_MORE` where one is enough.
    """

    p0: Doubles
    p1: Doubles


class Factors(NamedTuple):
    """Numbers of each target that multiply the sums of a side, (1 or 2, R·N); `NO_MORE` where there is none."""

    a0: Doubles
    a1: Doubles
    slope: Doubles


def sides(
    targets: Line,
    sources: Line,
    given: Rows,
    weights: Weights,
    factors: Factors,
    own: Rows | None,
    valued: bool,
    normalized: bool = False,
) -> Sums:
    """Sum the sources above each target's bend, t + s > 0, and where they count those below.

    Args:
        targets, sources: their numbers.
        given: rows of the sources.
        weights: of the sources on each side, see `sides_kernel.sides`.
        factors: of the targets, for each side.
        own: rows of the targets, for dots; None for none.
        valued: whether values are wanted.
        normalized: whether they are divided by the totals.

    Returns:
        The sums over both sides; bends are empty.

    Example:
        >>> a, b = Line(np.zeros(1), np.zeros(1, np.uint64), np.ones(1, np.uint64)), np.array([-1.0, 2.0])
        >>> keys = Line(b, np.array([0, 1], np.uint64), np.array([2], np.uint64))
        >>> rows, weights = Rows(np.array([5.0, 7.0]), np.ones(2)), Weights(np.ones((1, 2)), b[None])
        >>> sides(a, keys, rows, weights, Factors(np.zeros((1, 1)), np.ones((1, 1)), NO_MORE), None, True).values
        array([14.])
    """
    columns = given.rows.size // sources.numbers.size
    dtype, n = targets.numbers.dtype, targets.numbers.size
    blocks, broad = _blocks(columns, targets.members.size)
    values, totals = _room(targets, n * columns if valued else 0, dtype), np.empty(blocks * n)
    dots = _room(targets, blocks * n if own is not None else 0)
    rows, extra = (np.empty(0, dtype), NONE) if own is None else own
    line = blocks, broad, normalized, columns, *targets, *sources, given.rows, *weights, given.extra
    scratch = ((2 * broad,), np.float64), ((thread_pool.APART,), np.float64)
    time = _time(targets, sources, columns) * len(weights.p0)
    outcome = *factors, values, totals, rows, extra, dots
    thread_pool.run_in_chunks(
        sides_kernel.sides, dtype, blocks * targets.members.size, time, (*line, *outcome), scratch
    )
    return Sums(values, totals[:n], dots.reshape(blocks, -1).sum(0), NONE)


class Support(NamedTuple):
    """A kernel of bounded support.

    Attributes:
        kind: `BOX`, `PARABOLA` or `TRIANGLE` of `windows_kernel`.
        scale: 1/h² of each item, in the type of the numbers.
        per_width: 1/h of each item.
    """

    kind: int
    scale: Numbers
    per_width: Doubles


def windows(
    support: Support,
    targets: Line,
    sources: Line,
    given: Rows,
    factor: Doubles,
    own: Rows | None,
    valued: bool,
    normalized: bool = False,
) -> Sums:
    """Sum the sources within the support around each target.

    Args:
        support: the kernel.
        targets, sources: their numbers.
        given: rows of the sources.
        factor: of each source, (R·M,).
        own: rows of the targets, for dots and bends; None for none.
        valued: whether values are wanted.
        normalized: whether they are divided by the totals.

    Returns:
        The sums.

    Example:
        >>> a, b = Line(np.zeros(1), np.zeros(1, np.uint64), np.ones(1, np.uint64)), np.array([-0.5, 2.0])
        >>> keys = Line(b, np.array([0, 1], np.uint64), np.array([2], np.uint64))
        >>> support, rows = Support(1, np.ones(1), np.ones(1)), Rows(np.array([5.0, 7.0]), np.ones(2))
        >>> windows(support, a, keys, rows, np.ones(2), None, True).values
        array([3.75])
    """
    columns = given.rows.size // sources.numbers.size
    dtype, n = targets.numbers.dtype, targets.numbers.size
    values, totals = _room(targets, n * columns if valued else 0, dtype), np.empty(n)
    blocks, broad = _blocks(columns, targets.members.size)
    dots, bends = _room(targets, 2 * blocks * n if own is not None else 0).reshape(2, -1)
    rows, extra = (np.empty(0, dtype), NONE) if own is None else own
    line = blocks, broad, support.kind, normalized, columns, support.scale, support.per_width, *targets, *sources
    numbers = *_cells(support, sources), given.rows, factor, given.extra, values, totals, rows, extra, dots, bends
    row, wide = 3 * (broad + 1), np.float64
    scratch = ((HELD * row,), wide), ((row,), wide), ((thread_pool.APART,), np.uint64), ((thread_pool.APART,), wide)
    walks, time = blocks * targets.members.size, _time(targets, sources, columns) * (support.kind + 1)
    thread_pool.run_in_chunks(window, dtype, walks, time, (*line, *numbers), scratch)
    return Sums(values, totals, dots.reshape(blocks, -1).sum(0), bends.reshape(blocks, -1).sum(0))


def _cells(support: Support, sources: Line) -> tuple[Doubles, Doubles, NDArray[np.uint64]]:
    """Of each source in its order: its coordinate in its cell, the cell's center, and the cell's number."""
    items = sources.members.size
    ordered = sources.numbers[sources.order].astype(np.float64).reshape(items, -1)
    if support.kind == BOX:
        nothing = np.zeros(ordered.size)
        return nothing, nothing, np.zeros(ordered.size, np.uint64)
    per_width = support.per_width[:, None]
    place = np.floor(ordered * (per_width / 2))
    # Beyond FAR only equal numbers are within each other's support: their coordinate is 0, that of the query as well.
    center = np.where(np.abs(ordered) * per_width < FAR, (2 * place + 1) / per_width, ordered)
    number = np.zeros(place.shape, np.uint64)
    np.cumsum(place[:, 1:] != place[:, :-1], -1, out=number[:, 1:], dtype=np.uint64)
    return ((ordered - center) * per_width).reshape(-1), center.reshape(-1), number.reshape(-1)


def _room(targets: Line, size: int, dtype: Any = np.float64) -> Numbers:
    """Allocate a buffer of `size` numbers; zeros where no pass writes."""
    everywhere = int(targets.members.sum()) == targets.numbers.size
    return np.empty(size, dtype) if everywhere else np.zeros(size, dtype)


def _blocks(columns: int, items: int) -> tuple[int, int]:
    """How many blocks of columns there are, and how broad: one where there are no columns."""
    broad = min(_TOGETHER, columns) if items < _FEW else columns
    return max(1, -(-columns // max(broad, 1))), broad


def _time(targets: Line, sources: Line, columns: int) -> float:
    """Microseconds of one thread, roughly."""
    return (targets.numbers.size + sources.numbers.size) * (_STEP + columns * _EACH)
