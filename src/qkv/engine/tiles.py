"""Cut a problem into tiles of whole rows: small enough for the cache, or on a GPU as large as its memory allows."""

from collections.abc import Iterator
from itertools import product
from math import isqrt, prod
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.engine.mechanism import full_rank
from qkv.linalg.heap import Release
from qkv.masks.base import Bounds
from qkv.masks.lower import Visibility
from qkv.shapes import Shape
from qkv.values.execution import on_host


class TileSize(NamedTuple):
    """The size of a tile.

    Attributes:
        scores: how many scores a tile of short rows holds.
        min_rows: the fewest rows of a tile below `MAX_SCORES` scores, since keys are read once per tile.
        all_items: whether a tile covers all leading indices, so that `scores` is divided among them.
    """

    scores: int
    min_rows: int
    all_items: bool = False


CACHED = TileSize(1 << 18, 32)
"""One MiB of float32, which stays in the cache."""
RESIDENT = TileSize(1 << 23, 256)
"""The size on a GPU, where small tiles would spend the time on launches: 32 MiB of float32.

About ten tensors of this size exist at a time.
"""

MAX_SCORES = 1 << 22
"""The most scores of a tile of more than one row."""


WIDTHS = 256
"""Tiles wider than this have a multiple of it as their width, and wide tiles a multiple of an eighth of theirs.

Products of every other width would leave their plan in oneDNN's cache, half a MiB each, and holes in the heap: hundreds
of MiB under a causal mask. So there are eight widths for each doubling of the keys.
"""


class TileSlices(NamedTuple):
    """What a tile covers of the scores: slices of the leading dimensions, of rows and of columns."""

    items: tuple[slice, ...]
    rows: slice
    columns: slice


class Tile(NamedTuple):
    """A tile and what its rows may see; None where nothing is hidden.

    Attributes:
        slices: what it covers.
        first, last: the keys that each row may see, (..., h or 1).
        mask: bool (..., h, c), besides the bounds.
    """

    slices: TileSlices
    first: Tensor | None
    last: Tensor | None
    mask: Tensor | None


def take(x: Tensor, items: tuple[slice, ...], *parts: slice) -> Tensor:
    """Return a view of a part; dimensions of size 1, which broadcast, stay whole."""
    index = (*items, *parts)
    return x[tuple(slice(None) if size == 1 else part for size, part in zip(x.shape, index, strict=False))]


def _cut(size: int, step: int) -> list[slice]:
    return [slice(start, min(start + step, size)) for start in range(0, size, step)]


def _cut_leading(leading: Shape, count: int) -> list[list[slice]]:
    """Cut the leading dimensions into boxes of about `count` indices.

    The last dimensions stay whole, one before them is cut into pieces, and the first ones into single indices.
    """
    inner, steps = 1, []
    for size in reversed(leading):
        step = max(1, min(size, count // inner))
        steps.append(_cut(size, step))
        inner *= step
        count = inner if step < size else count
    return steps[::-1]


def _widest(visibility: Visibility, keys: int) -> int:
    """Return the largest number of columns that any row may see, as far as it is known without waiting for a GPU."""
    if not on_host(visibility.grid.device):
        return keys
    first, last = visibility.bounds or (None, None)
    if first is None and last is None:
        return keys
    widths = (keys if last is None else last) - (0 if first is None else first)
    assert isinstance(widths, Tensor)
    return int(widths.max()) if widths.numel() else 0


def _height(queries: int, keys: int, widest: int, scores: int, min_rows: int) -> int:
    columns = max(1, min(keys, widest + isqrt(scores)))
    return max(1, min(queries, max(scores // columns, min(min_rows, MAX_SCORES // columns))))


class Tiling:
    """The tiles of a problem, each with its slices and what its rows may see.

    With `all_items`, only rows are cut: a user-defined score may close over parameters for each head, so it must
    receive all heads at once.
    """

    def __init__(
        self, leading: Shape, queries: int, keys: int, visibility: Visibility, size: TileSize | None = None
    ) -> None:
        self.on_host = on_host(visibility.grid.device)
        size = (CACHED if self.on_host else RESIDENT) if size is None else size
        item_count = prod(leading) if size.all_items or not self.on_host else 1
        scores = max(1, size.scores // max(1, item_count))
        self.keys = keys
        self.visibility = visibility
        self.release = Release()
        self.rank = len(leading)
        bounds = visibility.bounds or Bounds(None, None)
        self.bounds = Bounds(*(None if x is None else full_rank(x, self.rank + 1) for x in bounds))
        self.dense = None if visibility.dense is None else full_rank(visibility.dense, self.rank + 2)
        height = _height(queries, keys, _widest(visibility, keys), scores, size.min_rows)
        # A range, not a list: a problem too large for memory must fail when its output is allocated, not here.
        self.starts, self.queries = range(0, queries, height), queries
        count = item_count if size.all_items else max(1, scores * item_count // max(1, height * keys))
        self.parts = _cut_leading(leading, max(1, count))
        self.items = list(product(*self.parts))

    def __iter__(self) -> Iterator[tuple[TileSlices, Tensor | None]]:
        """Iterate over (slices, mask with the bounds applied, or None where all is visible)."""
        return ((tile.slices, self.visible(tile)) for tile in self._tiles(self.starts))

    def widest_first(self) -> Iterator[Tile]:
        """Iterate over the tiles, with bounds and mask apart, from the end whose rows may see more keys.

        Then what a tile frees fits the next one. Tiles that grow, as those of a causal mask from its first row on,
        leave holes in the heap that none of their successors fit.
        """
        starts = self.starts
        if len(starts) > 1 and self.visibility.mask is None and self.items:
            first, last = (
                self._tile(self.items[0], self._rows(start)).slices.columns for start in (starts[0], starts[-1])
            )
            if last.stop - last.start > first.stop - first.start:
                starts = starts[::-1]
        return self._tiles(starts)

    def _rows(self, start: int) -> slice:
        return slice(start, min(start + self.starts.step, self.queries))

    def _tiles(self, starts: range) -> Iterator[Tile]:
        for start in starts:
            rows = self._rows(start)
            if self.visibility.mask is None:
                for items in self.items:
                    yield self._tile(items, rows)
                continue
            if not self.items:
                continue
            columns = self._columns(rows, *(None if x is None else _rows_of(x, rows) for x in self.bounds))
            mask = self._predicate(rows, columns)
            for items in self.items:
                yield Tile(TileSlices(items, rows, columns), None, None, take(mask, items))

    def _predicate(self, rows: slice, columns: slice) -> Tensor:
        """Evaluate a mask, for some rows of all leading indices at once."""
        visible = self.visibility.tile(rows, columns)
        assert visible is not None
        if not torch.compiler.is_compiling():
            self.release.after(visible.numel())
        return full_rank(visible, self.rank + 2)

    def _tile(self, items: tuple[slice, ...], rows: slice) -> Tile:
        first, last = (None if x is None else take(x, items, rows) for x in self.bounds)
        slices = TileSlices(items, rows, self._columns(rows, first, last))
        return Tile(slices, first, last, None if self.dense is None else take(self.dense, items, rows, slices.columns))

    def _columns(self, rows: slice, first: Tensor | None, last: Tensor | None) -> slice:
        """Return the columns from the first to the last key that any of some rows may see, or more on a GPU."""
        if self.on_host:
            start = 0 if first is None else _ends(first)[0]
            stop = self.keys if last is None else _ends(last)[1]
        else:
            start, stop = self.visibility.reach(rows)
        if stop - start > WIDTHS:
            step = max(WIDTHS, 1 << (stop - start).bit_length() - 4)
            start, stop = start // step * step, min(-(-stop // step) * step, self.keys)
        if self.keys == 1:
            # `take` keeps a dimension of size 1 whole, so a single key belongs to every tile.
            start, stop = 0, 1
        return slice(start, max(start, stop))

    def visible(self, tile: Tile) -> Tensor | None:
        """Return bounds and mask of a tile as one mask; None where all is visible."""
        slices, first, last, mask = tile
        if self._cut_by(first, last, slices.columns):
            inside = self._between(first, last, slices.columns)
            mask = inside if mask is None else mask & inside
        return mask

    def _cut_by(self, first: Tensor | None, last: Tensor | None, columns: slice) -> bool:
        """Return whether bounds may hide some of these columns from a row."""
        if not self.on_host:
            return first is not None or last is not None
        latest = 0 if first is None else _ends(first)[1]
        earliest = self.keys if last is None else _ends(last)[0]
        return bool(latest > columns.start or earliest < columns.stop)

    def _between(self, first: Tensor | None, last: Tensor | None, columns: slice) -> Tensor:
        device = self.visibility.grid.device
        j = torch.arange(columns.start, columns.stop, device=device, dtype=torch.int32)
        after = None if first is None else j >= first.unsqueeze(-1)
        if last is None:
            assert after is not None
            return after
        before = j < last.unsqueeze(-1)
        return before if after is None else after & before


def _rows_of(bound: Tensor, rows: slice) -> Tensor:
    return bound if bound.shape[-1] == 1 else bound[..., rows]


def _ends(bound: Tensor) -> tuple[int, int]:
    low, high = bound.aminmax()
    return int(low), int(high)
