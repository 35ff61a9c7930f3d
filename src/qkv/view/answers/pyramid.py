"""The whole matrix of one head seen from afar: levels of mean and maximum, first sampled, then exact."""

import threading
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple, final

import torch
from torch import Tensor

from qkv.view.answers.weights import Weights

SIDE = 256
"""Cells along a side of a tile."""
STORED = 1 << 24
"""The most cells of the finest level that is kept: 128 MiB for mean and maximum, and a third of it for the others."""
_CHUNK = 1 << 20
_HEIGHT = 256
_SAMPLE = 1 << 25
_CHEAP = 1 << 24
How = Literal["mean", "max"]


class Place(NamedTuple):
    """Which tile: its level, 0 for single weights, and how many tiles lie above and left of it."""

    level: int
    row: int
    column: int


@final
class Pyramid:
    """Levels of one matrix: a cell of level L stands for 2^L × 2^L weights.

    Levels below `base` are computed when they are asked for, exactly. Those from `base` on are kept; `advance` computes
    them from the first row to the last, and until a row is done a sample of its weights stands for it.

    Args:
        weights: the matrix.

    Attributes:
        levels: how many there are; the last fits into one tile.
        base: the first that is kept.
        done: how many rows are exact.
        entropy, peak: by row, (Q,), of the rows that are done.
        received: by key, (K,), float64: the sum over the rows that are done.
    """

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self.shape = rows, columns = weights.head.shape
        self.levels = levels(rows, columns)
        self.base = next(level for level in range(self.levels) if self._keeps(level))
        self.done = 0
        self.entropy = torch.zeros(rows)
        self.peak = torch.zeros(rows)
        self.received = torch.zeros(columns, dtype=torch.float64)
        self._lock = threading.Lock()
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def bytes(self) -> int:
        """Memory that it takes when it is done."""
        cells = sum(high * wide for high, wide in map(self.size, range(self.base, self.levels)))
        return 8 * cells + 8 * self.shape[0] + 8 * self.shape[1] + self.weights.bytes

    @property
    def exact(self) -> bool:
        """Whether every row is done."""
        return self.done == self.shape[0]

    @property
    def small(self) -> bool:
        """Whether all of it takes no longer than a tile."""
        return self.shape[0] * self.shape[1] * self.weights.head.depth <= _CHEAP

    def size(self, level: int) -> tuple[int, int]:
        """Cells of a level, down and across."""
        return -(-self.shape[0] >> level), -(-self.shape[1] >> level)

    def tile(self, place: Place, how: How) -> tuple[Tensor, bool]:
        """A tile of at most 256 × 256 cells, and whether it is exact.

        Args:
            place: which.
            how: what a cell shows of the weights it stands for.
        """
        level, row, column = place
        high, wide = self.size(level)
        rows = range(row * SIDE, min((row + 1) * SIDE, high))
        columns = range(column * SIDE, min((column + 1) * SIDE, wide))
        if level < self.base:
            return self._computed(level, rows, columns, how), True
        ready = self._ready(level, rows)
        kept = self._read(level, rows[:ready], columns, how)
        if ready == len(rows):
            return kept, True
        return torch.cat([kept, self._sampled(level, rows[ready:], columns, how)]), False

    def track(self, what: Literal["entropy", "received", "peak"]) -> tuple[Tensor, bool]:
        """A statistic of every row, or of every column (received), and whether it is exact.

        Rows that are not done yet are drawn between those of a sample; what columns received is scaled up from it.
        """
        if self.exact:
            return self.received if what == "received" else getattr(self, what), True
        places = torch.linspace(0, self.shape[0] - 1, min(SIDE, self.shape[0])).long()
        sample, columns = self.weights.rows(places), slice(0, self.shape[1])
        tiles = (sample(some).float() for some in self._chunks(columns, len(places), 1))
        if what == "received":
            return torch.cat([tile.sum(0, dtype=torch.float64) for tile in tiles]) * (
                self.shape[0] / len(places)
            ), False
        if what == "peak":
            of_rows = torch.stack([tile.amax(1) for tile in tiles]).amax(0)
        else:
            of_rows = -torch.stack([torch.special.xlogy(tile, tile).sum(1) for tile in tiles]).sum(0)
        nearest = torch.searchsorted(places, torch.arange(self.shape[0])).clamp(max=len(places) - 1)
        done = self.done
        return torch.cat([getattr(self, what)[:done], of_rows[nearest][done:]]), False

    def advance(self, goes_on: Callable[[], bool]) -> bool:
        """Make some more rows exact.

        Args:
            goes_on: asked between pieces of a few milliseconds; may wait.

        Returns:
            Whether rows were added; False where it was told to stop, which loses the rows at hand, or all are done.
        """
        if self.exact:
            return False
        height = max(_HEIGHT, 1 << self.base)
        rows = slice(self.done, min(self.done + height, self.shape[0]))
        found = self._stripe(rows, goes_on)
        if found is not None:
            self._add(rows, *found)
        return found is not None

    def finish(self) -> None:
        """Make all rows exact."""
        while self.advance(lambda: True):
            pass

    def _keeps(self, level: int) -> bool:
        high, wide = self.size(level)
        return level == self.levels - 1 or (level >= 2 and high * wide <= STORED)

    def _ready(self, level: int, rows: range) -> int:
        """How many of a level's rows are exact."""
        done = self.size(level)[0] if self.exact else self.done >> level
        return max(0, min(done - rows.start, len(rows)))

    def _computed(self, level: int, rows: range, columns: range, how: How) -> Tensor:
        down, across = _fine(rows, level, self.shape[0]), _fine(columns, level, self.shape[1])
        step = max(1, _CHUNK // (across.stop - across.start) >> level) << level
        parts = []
        for start in range(down.start, down.stop, step):
            tile = self.weights.tile(slice(start, min(start + step, down.stop)), across).float()
            parts.append(pooled(tile, 1 << level)[how == "max"])
        joined = torch.cat(parts)
        return joined if how == "max" else joined / self._counts(level, rows, columns)

    def _counts(self, level: int, rows: range, columns: range) -> Tensor:
        """How many weights a cell stands for; fewer at the edges."""
        down, across = (_extents(cells, level, size) for cells, size in zip((rows, columns), self.shape, strict=True))
        return down[:, None] * across[None, :]

    def _read(self, level: int, rows: range, columns: range, how: How) -> Tensor:
        if not len(rows):
            return torch.zeros(0, len(columns))
        with self._lock:
            totals, tops = self._kept[level]
            part = (tops if how == "max" else totals)[rows.start : rows.stop, columns.start : columns.stop].clone()
        return part if how == "max" else part / self._counts(level, rows, columns)

    def _sampled(self, level: int, rows: range, columns: range, how: How) -> Tensor:
        """A few whole rows of weights stand for each row of cells."""
        across = _fine(columns, level, self.shape[1])
        wide = across.stop - across.start
        each = max(1, min(1 << level, _SAMPLE // (len(rows) * wide * self.weights.head.depth)))
        places = _places(rows, level, each, self.shape[0])
        part, merged = self.weights.rows(places.flatten()), []
        for some in self._chunks(across, places.numel(), 1 << level):
            sample = part(some).float().view(len(rows), each, -1)
            across_rows = sample.amax(1) if how == "max" else sample.mean(1)
            merged.append(pooled_columns(across_rows, 1 << level)[how == "max"])
        joined = torch.cat(merged, 1)
        return joined if how == "max" else joined / _extents(columns, level, self.shape[1])

    def _chunks(self, across: slice, rows: int, block: int) -> Iterator[slice]:
        """Columns a few at a time, so that a piece of so many rows stays small."""
        step = max(1, _CHUNK // (max(1, rows) * self.weights.head.depth) // block) * block
        for start in range(across.start, across.stop, step):
            yield slice(start, min(start + step, across.stop))

    def _stripe(self, rows: slice, goes_on: Callable[[], bool]) -> tuple[Tensor, ...] | None:
        count = rows.stop - rows.start
        tops, totals, peak, entropy = [], [], torch.full((count,), -torch.inf), torch.zeros(count)
        received = torch.zeros_like(self.received)
        stripe = self.weights.rows(rows)
        for columns in self._chunks(slice(0, self.shape[1]), count, 1 << self.base):
            if not goes_on():
                return None
            tile = stripe(columns).float()
            total, top = pooled(tile, 1 << self.base)
            totals.append(total)
            tops.append(top)
            received[columns] = tile.sum(0, dtype=torch.float64)
            peak = torch.maximum(peak, tile.amax(1))
            if self.weights.head.non_negative:
                entropy -= torch.special.xlogy(tile, tile).sum(1)
        return torch.cat(totals, 1), torch.cat(tops, 1), peak, entropy, received

    def _add(self, rows: slice, totals: Tensor, tops: Tensor, peak: Tensor, entropy: Tensor, received: Tensor) -> None:
        with self._lock:
            if not self._kept:
                self._kept = {
                    level: (torch.zeros(size), torch.full(size, -torch.inf))
                    for level, size in ((level, self.size(level)) for level in range(self.base, self.levels))
                }
            first = rows.start >> self.base
            for kept, new in zip(self._kept[self.base], (totals, tops), strict=True):
                kept[first : first + len(new)] = new
            self._lift(first, first + len(totals))
            self.peak[rows], self.entropy[rows] = peak, entropy
            self.received += received
            self.done = rows.stop

    def _lift(self, first: int, last: int) -> None:
        """Bring new rows of the finest level up through the others."""
        for level in range(self.base + 1, self.levels):
            first, last = first // 2, -(-last // 2)
            (totals, tops), (below, below_tops) = self._kept[level], self._kept[level - 1]
            totals[first:last] = pooled(below[2 * first : 2 * last], 2)[0]
            tops[first:last] = pooled(below_tops[2 * first : 2 * last], 2)[1]


def pooled(tile: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """Sums and maxima of blocks, those at the edges smaller.

    Example:
        >>> pooled(torch.tensor([[1.0, 2.0, 3.0]]), 2)
        (tensor([[3., 3.]]), tensor([[2., 3.]]))
    """
    if block == 1:
        return tile, tile
    total, top = pooled_columns(tile, block)
    return pooled_columns(total.mT, block)[0].mT, pooled_columns(top.mT, block)[1].mT


def pooled_columns(tile: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """Sums and maxima of blocks of columns."""
    rows, columns = tile.shape
    whole = columns // block * block
    inner = tile[:, :whole].reshape(rows, whole // block, block)
    total, top = inner.sum(-1), inner.amax(-1)
    if whole == columns:
        return total, top
    rest = tile[:, whole:]
    return torch.cat([total, rest.sum(-1, keepdim=True)], 1), torch.cat([top, rest.amax(-1, keepdim=True)], 1)


def levels(rows: int, columns: int) -> int:
    """How many levels a matrix has: the last fits into one tile.

    Example:
        >>> levels(256, 10), levels(131_072, 131_072)
        (1, 10)
    """
    level = 0
    while max(rows, columns) > SIDE << level:
        level += 1
    return level + 1


def _fine(cells: range, level: int, size: int) -> slice:
    """The weights that cells stand for."""
    return slice(cells.start << level, min(cells.stop << level, size))


def _extents(cells: range, level: int, size: int) -> Tensor:
    places = torch.arange(cells.start, cells.stop + 1) << level
    return places.clamp(max=size).diff().float()


def _places(rows: range, level: int, each: int, size: int) -> Tensor:
    """Which rows are drawn for each row of cells: as many strata, one row of each by a fixed draw."""
    generator = torch.Generator().manual_seed(level)
    strata = (torch.arange(each) + torch.rand(len(rows), each, generator=generator)) * (1 << level) / each
    starts = torch.arange(rows.start, rows.stop)[:, None] << level
    return (starts + strata.long()).clamp(max=size - 1)
