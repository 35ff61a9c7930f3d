"""The matrix of one head at coarse levels, as mean and maximum, first sampled, then exact."""

import threading
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple, final

import torch
from torch import Tensor

from qkv.view.answers.byte_lru import ByteLRU
from qkv.view.answers.pooling import SIDE, extents, fine, information, levels, pooled, pooled_columns, pooled_rows
from qkv.view.answers.weights import GivenWeights, HeadWeights, MeanWeights

STORED = 1 << 24
"""Maximum cells of the finest stored level: 128 MiB for mean and maximum, and a third of it for the others."""
_CHUNK = 1 << 20
_HEIGHT = 256
_SAMPLE = 1 << 23
"""Maximum weights computed for a sampled tile of rows whose states are known: some 50 ms."""
_SAMPLE_WITH_PASSES = 3 << 23
"""The same where each row takes a pass over all of its keys first, which counts as so many weights."""
_SAMPLES = 8 << 20
_CHEAP = 1 << 22
Pooling = Literal["mean", "max"]
Statistic = Literal["entropy", "received", "peak"]


class TileIndex(NamedTuple):
    """A tile: its level, 0 for single weights, and the number of tiles above and to the left of it."""

    level: int
    row: int
    column: int


class _Stripe(NamedTuple):
    """The contribution of some rows: cells of the finest stored level, and statistics."""

    totals: Tensor
    tops: Tensor
    peak: Tensor
    entropy: Tensor
    received: Tensor


@final
class Pyramid:
    """Levels of one matrix: a cell of level L covers 2^L × 2^L weights.

    Levels below `base` are computed exactly on request. Those from `base` on are stored; `advance` computes them from
    the first row to the last, and until a row is done, a sample of its weights replaces it.

    Args:
        weights: the matrix.

    Attributes:
        levels: number of levels; the last fits in one tile.
        base: the first stored level.
        done: number of exact rows.
    """

    def __init__(self, weights: HeadWeights | MeanWeights | GivenWeights) -> None:
        self.weights = weights
        self.shape = rows, columns = weights.head.shape
        self.levels = levels(rows, columns)
        self.base = next(level for level in range(self.levels) if self._is_stored(level))
        self.done = 0
        self._entropy, self._peak = torch.zeros(rows, device="cpu"), torch.zeros(rows, device="cpu")
        self._received = torch.zeros(columns, dtype=torch.float64, device="cpu")
        self._lock = threading.Lock()
        self._sums: dict[int, tuple[Tensor, Tensor]] = {}
        self._samples = ByteLRU[Tensor](_SAMPLES, lambda sample: sample.nbytes)

    @property
    def bytes(self) -> int:
        """Memory of the finished pyramid."""
        cells = sum(high * wide for high, wide in map(self.size, range(self.base, self.levels)))
        return 8 * cells + 8 * self.shape[0] + 8 * self.shape[1] + _SAMPLES + self.weights.bytes

    @property
    def exact(self) -> bool:
        """Whether every row is done."""
        return self.done == self.shape[0]

    @property
    def small(self) -> bool:
        """Whether computing everything takes about as long as computing one tile."""
        return self.shape[0] * self.shape[1] * self.weights.depth <= _CHEAP

    def size(self, level: int) -> tuple[int, int]:
        """Return the number of cells of a level, vertically and horizontally."""
        return -(-self.shape[0] >> level), -(-self.shape[1] >> level)

    def tile(self, position: TileIndex, pooling: Pooling) -> tuple[Tensor, bool]:
        """Return a tile of at most 256 × 256 cells, and whether it is exact.

        Args:
            position: the tile.
            pooling: mean or maximum of the weights a cell covers.
        """
        level, row, column = position
        high, wide = self.size(level)
        rows = range(row * SIDE, min((row + 1) * SIDE, high))
        columns = range(column * SIDE, min((column + 1) * SIDE, wide))
        return self._part(level, rows, columns, pooling)

    def table(self, level: int) -> tuple[Tensor, bool]:
        """Return the means of a whole level, and whether they are exact; a small matrix needs no other level."""
        rows, columns = map(range, self.size(level))
        if self.small and not self.exact:
            return self._computed(level, rows, columns, "mean"), True
        return self._part(level, rows, columns, "mean")

    def _part(self, level: int, rows: range, columns: range, pooling: Pooling) -> tuple[Tensor, bool]:
        if level < self.base:
            return self._computed(level, rows, columns, pooling), True
        ready = self._ready(level, rows)
        ready_part = self._read(level, rows[:ready], columns, pooling)
        if ready == len(rows):
            return ready_part, True
        name = (level, rows, columns, pooling)
        sample = self._samples.get(name, lambda: self._sampled(level, rows, columns, pooling))
        return torch.cat([ready_part, sample[ready:]]), False

    def track(self, statistic: Statistic) -> tuple[Tensor, bool]:
        """Return a statistic of every row, or of every column (received), and whether it is exact.

        Unfinished rows take the value of the nearest sampled row; for columns, the sample is scaled up.
        """
        of_rows = self._peak if statistic == "peak" else self._entropy
        if self.exact:
            return self._received if statistic == "received" else of_rows, True
        rows = torch.linspace(0, self.shape[0] - 1, min(SIDE, self.shape[0]), device="cpu").long()
        sample, columns = self.weights.rows(rows), slice(0, self.shape[1])
        tiles = (sample(chunk).float() for chunk in self._chunks(columns, len(rows), 1))
        if statistic == "received":
            total = torch.cat([tile.sum(0, dtype=torch.float64) for tile in tiles])
            return total * (self.shape[0] / len(rows)), False
        if statistic == "peak":
            track = torch.stack([tile.amax(1) for tile in tiles]).amax(0)
        else:
            track = torch.stack([information(tile) for tile in tiles]).sum(0)
        nearest = torch.searchsorted(rows, torch.arange(self.shape[0], device="cpu")).clamp(max=len(rows) - 1)
        first_row = self.done
        return torch.cat([of_rows[:first_row], track[nearest][first_row:]]), False

    def advance(self, keep_going: Callable[[], bool]) -> bool:
        """Compute some more rows exactly.

        Args:
            keep_going: called every few milliseconds, and can block; returns whether to continue.

        Returns:
            Whether rows were added; False if it was stopped, which loses the rows in progress, or all are done.
        """
        if self.exact:
            return False
        height = max(_HEIGHT, 1 << self.base)
        rows = slice(self.done, min(self.done + height, self.shape[0]))
        stripe = self._stripe(rows, keep_going)
        if stripe is not None:
            self._add(rows, stripe)
        return stripe is not None

    def finish(self) -> None:
        """Compute all rows exactly."""
        while self.advance(lambda: True):
            pass

    def _is_stored(self, level: int) -> bool:
        high, wide = self.size(level)
        return level == self.levels - 1 or (level >= 2 and high * wide <= STORED)

    def _ready(self, level: int, rows: range) -> int:
        """Return how many of a level's rows are exact."""
        exact_rows = self.size(level)[0] if self.exact else self.done >> level
        return max(0, min(exact_rows - rows.start, len(rows)))

    def _computed(self, level: int, rows: range, columns: range, pooling: Pooling) -> Tensor:
        down, across = fine(rows, level, self.shape[0]), fine(columns, level, self.shape[1])
        step = max(1, _CHUNK // max(1, across.stop - across.start) >> level) << level
        parts = []
        for start in range(down.start, down.stop, step):
            tile = self.weights.tile(slice(start, min(start + step, down.stop)), across).float()
            parts.append(pooled(tile, 1 << level)[pooling == "max"])
        joined = torch.cat(parts)
        return joined if pooling == "max" else joined / self._counts(level, rows, columns)

    def _counts(self, level: int, rows: range, columns: range) -> Tensor:
        """Return how many weights each cell covers."""
        return extents(rows, level, self.shape[0])[:, None] * extents(columns, level, self.shape[1])

    def _read(self, level: int, rows: range, columns: range, pooling: Pooling) -> Tensor:
        if not len(rows):
            return torch.zeros(0, len(columns), device="cpu")
        with self._lock:
            cells = self._sums[level][pooling == "max"][rows.start : rows.stop, columns.start : columns.stop].clone()
        return cells if pooling == "max" else cells / self._counts(level, rows, columns)

    def _sampled(self, level: int, rows: range, columns: range, pooling: Pooling) -> Tensor:
        """Sample a few whole rows of weights for each row of cells."""
        across = fine(columns, level, self.shape[1])
        wide = max(1, across.stop - across.start)
        ready = self.weights.ready
        budget, passed = (_SAMPLE, wide) if ready else (_SAMPLE_WITH_PASSES, wide + self.shape[1])
        per_cell = max(1, min(1 << level, budget // (len(rows) * passed * self.weights.depth)))
        samples = _sampled_rows(rows, level, per_cell, self.shape[0])
        part, cells = self.weights.rows(samples.flatten()), []
        for chunk in self._chunks(across, samples.numel(), 1 << level):
            sample = part(chunk).float().view(len(rows), per_cell, -1)
            merged = sample.amax(1) if pooling == "max" else sample.mean(1)
            cells.append(pooled_columns(merged, 1 << level)[pooling == "max"])
        joined = torch.cat(cells, 1)
        return joined if pooling == "max" else joined / extents(columns, level, self.shape[1])

    def _chunks(self, across: slice, rows: int, block: int) -> Iterator[slice]:
        """Iterate over columns in groups small enough that a block of rows stays in the cache."""
        step = max(1, _CHUNK // (max(1, rows) * self.weights.depth) // block) * block
        for start in range(across.start, across.stop, step):
            yield slice(start, min(start + step, across.stop))

    def _stripe(self, rows: slice, keep_going: Callable[[], bool]) -> _Stripe | None:
        block, stripe = 1 << self.base, self.weights.rows(rows)
        entropy, received = torch.zeros(rows.stop - rows.start, device="cpu"), torch.zeros_like(self._received)
        totals, tops, peaks = [], [], []
        for columns in self._chunks(slice(0, self.shape[1]), rows.stop - rows.start, block):
            if not keep_going():
                return None
            if self.weights.any_visible(rows, columns):
                tile = stripe(columns).float()
                entropy += information(tile) if self.weights.head.non_negative else 0
            else:
                tile = torch.zeros(1, 1, device="cpu").expand(len(entropy), columns.stop - columns.start)
            total, top = pooled_rows(tile, block)
            received[columns] = total.sum(0, dtype=torch.float64)
            totals.append(pooled_columns(total, block)[0])
            tops.append(pooled_columns(top, block)[1])
            peaks.append(tile.amax(1))
        return _Stripe(torch.cat(totals, 1), torch.cat(tops, 1), torch.stack(peaks).amax(0), entropy, received)

    def _add(self, rows: slice, stripe: _Stripe) -> None:
        with self._lock:
            for level in range(self.base, self.levels) if not self._sums else ():
                size = self.size(level)
                self._sums[level] = torch.zeros(size, device="cpu"), torch.full(size, -torch.inf, device="cpu")
            first = rows.start >> self.base
            last = first + len(stripe.totals)
            for former, new in zip(self._sums[self.base], (stripe.totals, stripe.tops), strict=True):
                former[first:last] = new
            self._propagate(first, last)
            self._peak[rows], self._entropy[rows] = stripe.peak, stripe.entropy
            self._received += stripe.received
            self.done = rows.stop

    def _propagate(self, first: int, last: int) -> None:
        """Propagate new rows of the finest level to the coarser ones."""
        for level in range(self.base + 1, self.levels):
            first, last = first // 2, -(-last // 2)
            below = slice(2 * first, 2 * last)
            for kind in range(2):
                self._sums[level][kind][first:last] = pooled(self._sums[level - 1][kind][below], 2)[kind]


def _sampled_rows(rows: range, level: int, per_cell: int, size: int) -> Tensor:
    """Choose the sampled rows of each row of cells: one row per stratum, with a fixed seed."""
    generator = torch.Generator().manual_seed(level)
    strata = (
        (torch.arange(per_cell, device="cpu") + torch.rand(len(rows), per_cell, generator=generator, device="cpu"))
        * (1 << level)
        / per_cell
    )
    starts = torch.arange(rows.start, rows.stop, device="cpu")[:, None] << level
    return (starts + strata.long()).clamp(max=size - 1)
