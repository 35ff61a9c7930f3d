"""Walks along sorted queries and keys: shares items and columns among threads."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qkv.kernels import pool
from qkv.kernels.sweep_sides import side as _side
from qkv.kernels.sweep_windows import BOX, HELD
from qkv.kernels.sweep_windows import window as _window

Numbers = NDArray[Any]
Doubles = NDArray[np.float64]
NONE = np.empty(0)
_TOGETHER = 32
"""Columns of a walk where items are few: blocks of columns are shared among threads."""
_FEW = 8
"""Fewer items than this are few. Threads do not decide it, so that the additions do not depend on them."""
_EACH = 4e-4
"""Microseconds of one thread for one column of one query or key."""


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
    """What a walk gives its targets.

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


class Factors(NamedTuple):
    """Numbers of each target that multiply the sums of a side; empty where there is nothing to multiply."""

    a0: Doubles
    a1: Doubles
    slope: Doubles


def sides(
    bends: tuple[bool, ...],
    targets: Line,
    sources: Line,
    given: Rows,
    weights: tuple[tuple[Doubles, Doubles], ...],
    factors: tuple[Factors, ...],
    own: Rows | None,
    valued: bool,
) -> Sums:
    """Sum the sources on either side of each target's bend, one walk for each side that counts.

    Args:
        bends: for each walk, whether it sums the sources with t + s > 0, or the others.
        targets, sources: their numbers.
        given: rows of the sources.
        weights: for each walk, p0 and p1 of each source (R·M,), p1 perhaps empty, see `sweep_sides.side`.
        factors: for each walk, of each target.
        own: rows of the targets, for dots; None for none.
        valued: whether values are wanted.

    Returns:
        The sums over all walks; bends are empty.

    Example:
        >>> a, b = Line(np.zeros(1), np.zeros(1, np.uint64), np.ones(1, np.uint64)), np.array([-1.0, 2.0])
        >>> keys = Line(b, np.array([0, 1], np.uint64), np.array([2], np.uint64))
        >>> rows, ones = Rows(np.array([5.0, 7.0]), np.ones(2)), np.ones(2)
        >>> sides((True,), a, keys, rows, ((ones, b),), (Factors(np.zeros(1), np.ones(1), NONE),), None, True).values
        array([14.])
    """
    columns = given.rows.size // sources.numbers.size
    dtype, n = targets.numbers.dtype, targets.numbers.size
    values, totals = _room(targets, n * columns if valued else 0, dtype), np.empty(n)
    blocks = _blocks(columns, targets.members.size)
    dots = _room(targets, len(blocks) * (n if own is not None else 0)).reshape(len(blocks), -1)
    rows, nothing = (np.empty(0, dtype) if own is None else own.rows), np.zeros(n if own is not None else 0)
    code = _side.at(dtype)

    def work(r0: int, r1: int, block: int) -> None:
        start, width = blocks[block]
        total, extra = (totals, NONE if own is None else own.extra) if block == 0 else (NONE, nothing)
        line, scratch = (columns, start, width), (np.empty(2 * width), np.empty(2))
        for k, upper in enumerate(bends):
            p0, p1 = weights[k]
            outcome = values, total, rows, extra, dots[block], *scratch
            code(
                r0, r1, upper, k == 0, *line, *targets, *sources, given.rows, p0, p1, given.extra, *factors[k], *outcome
            )

    _share(work, targets, sources, len(blocks), columns * len(bends))
    return Sums(values, totals, dots.sum(0), NONE)


class Support(NamedTuple):
    """A kernel of bounded support.

    Attributes:
        kind: `BOX`, `PARABOLA` or `TRIANGLE` of `sweep_windows`.
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
    blocks = _blocks(columns, targets.members.size)
    dots, bends = _room(targets, 2 * len(blocks) * (n if own is not None else 0)).reshape(2, len(blocks), -1)
    rows, nothing = (np.empty(0, dtype) if own is None else own.rows), np.zeros(n if own is not None else 0)
    cells, code = _cells(support, sources), _window.at(dtype)

    def work(r0: int, r1: int, block: int) -> None:
        start, width = blocks[block]
        extra = NONE if own is None else own.extra if block == 0 else nothing
        kernel = support.kind, normalized, columns, start, width, support.scale, support.per_width
        # Every block divides by the totals, and the first one writes them.
        outcome = values, totals if block == 0 else NONE, rows, extra, dots[block], bends[block]
        scratch = np.empty(HELD * 3 * (width + 1)), np.empty(3 * (width + 1)), np.empty(4, np.uint64), np.empty(4)
        code(r0, r1, *kernel, *targets, *sources, *cells, given.rows, factor, given.extra, *outcome, *scratch)

    _share(work, targets, sources, len(blocks), columns * (support.kind + 1))
    return Sums(values, totals, dots.sum(0), bends.sum(0))


def _cells(support: Support, sources: Line) -> tuple[Doubles, Doubles, NDArray[np.uint64]]:
    """Of each source in its order: its coordinate in its cell, the cell's center, and the cell's number."""
    items = sources.members.size
    ordered = sources.numbers[sources.order].astype(np.float64).reshape(items, -1)
    if support.kind == BOX:
        nothing = np.zeros(ordered.size)
        return nothing, nothing, np.zeros(ordered.size, np.uint64)
    per_width = support.per_width[:, None]
    place = np.floor(ordered * (per_width / 2))
    center = (2 * place + 1) / per_width
    number = np.zeros(place.shape, np.uint64)
    np.cumsum(place[:, 1:] != place[:, :-1], -1, out=number[:, 1:], dtype=np.uint64)
    return ((ordered - center) * per_width).reshape(-1), center.reshape(-1), number.reshape(-1)


def _room(targets: Line, size: int, dtype: Any = np.float64) -> Numbers:
    """Memory for a number of numbers: 0 where no walk comes by."""
    everywhere = int(targets.members.sum()) == targets.numbers.size
    return np.empty(size, dtype) if everywhere else np.zeros(size, dtype)


def _blocks(columns: int, items: int) -> list[tuple[int, int]]:
    """First column and how many, of each block; one of no columns where there are none."""
    width = _TOGETHER if items < _FEW else max(columns, 1)
    return [(start, min(width, columns - start)) for start in range(0, max(columns, 1), width)]


def _share(work: Callable[[int, int, int], None], targets: Line, sources: Line, blocks: int, columns: int) -> None:
    items = targets.members.size
    time = pool.between_products((targets.numbers.size + sources.numbers.size) * (columns + 8) * _EACH)
    parts = items if blocks > 1 else pool.chunks(time, items)

    def task(chunk: int) -> None:
        part, block = divmod(chunk, blocks)
        work(*pool.share(part, parts, items), block)

    pool.run(task, parts * blocks, time)
