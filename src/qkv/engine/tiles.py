"""Iterate over tiles: stripes of whole rows, small enough for the cache."""

from collections.abc import Iterator
from itertools import product
from math import isqrt, prod
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.engine.dropout import keep_mask
from qkv.engine.mechanism import full_rank
from qkv.linalg.heap import Release
from qkv.masks.base import Bounds
from qkv.masks.lower import Visibility
from qkv.shapes import Shape


class Size(NamedTuple):
    """How large a stripe is.

    Attributes:
        pairs: how many scores it holds where its rows are short.
        tall: its fewest rows while it stays under `LONG` scores: keys are read once per stripe.
        whole: whether it holds all leading indices, so that `pairs` is divided among them.
    """

    pairs: int
    tall: int
    whole: bool = False


CACHED = Size(1 << 18, 32)
"""One MiB of float32, which stays in the cache."""


LONG = 1 << 22
"""The most scores of a stripe of more than one row."""


class Place(NamedTuple):
    """The position of a tile: slices of the leading dimensions, rows and columns."""

    lead: tuple[slice, ...]
    rows: slice
    columns: slice


class Span(NamedTuple):
    """A tile: its place, bounds (..., h or 1) of its rows and a mask (..., h, c) beside them, None for all."""

    place: Place
    first: Tensor | None
    last: Tensor | None
    seen: Tensor | None


def take(x: Tensor, lead: tuple[slice, ...], *own: slice) -> Tensor:
    """A view of a part; dimensions of size 1 stay."""
    index = (*lead, *own)
    return x[tuple(slice(None) if size == 1 else part for size, part in zip(x.shape, index, strict=False))]


def _cut(size: int, step: int) -> list[slice]:
    return [slice(start, min(start + step, size)) for start in range(0, size, step)]


def _lead_parts(leading: Shape, count: int) -> list[list[slice]]:
    """Cut the leading dimensions into boxes of about `count` indices: trailing ones whole, one cut, others single."""
    inner, steps = 1, []
    for size in reversed(leading):
        step = max(1, min(size, count // inner))
        steps.append(_cut(size, step))
        inner *= step
        count = inner if step < size else count
    return steps[::-1]


def _widest(visibility: Visibility, keys: int) -> int:
    """The most columns that a row may see."""
    first, last = visibility.bounds or (None, None)
    if first is None and last is None:
        return keys
    widths = (keys if last is None else last) - (0 if first is None else first)
    assert isinstance(widths, Tensor)
    return int(widths.max()) if widths.numel() else 0


def _height(queries: int, keys: int, widest: int, pairs: int, tall: int) -> int:
    columns = max(1, min(keys, widest + isqrt(pairs)))
    return max(1, min(queries, max(pairs // columns, min(tall, LONG // columns))))


class TileWalk:
    """The tiles of a problem, each with its place and what its rows may see.

    Tiles of a `whole` size cut rows alone: a user-defined score may close over parameters for each head, so it
    must receive all heads at once.
    """

    def __init__(
        self, leading: Shape, queries: int, keys: int, visibility: Visibility, size: Size | None = None
    ) -> None:
        size = CACHED if size is None else size
        items = prod(leading) if size.whole else 1
        pairs = max(1, size.pairs // max(1, items))
        self.keys = keys
        self.visibility = visibility
        self.release = Release()
        self.rank = len(leading)
        bounds = visibility.bounds or Bounds(None, None)
        self.bounds = Bounds(*(None if x is None else full_rank(x, self.rank + 1) for x in bounds))
        self.dense = None if visibility.dense is None else full_rank(visibility.dense, self.rank + 2)
        height = _height(queries, keys, _widest(visibility, keys), pairs, size.tall)
        # No list of slices: the rows of a problem that no memory holds must not fill it before the output is refused.
        self.starts, self.queries = range(0, queries, height), queries
        count = items if size.whole else max(1, pairs // max(1, height * keys))
        self.parts = _lead_parts(leading, max(1, count))
        self.lead = list(product(*self.parts))

    def __iter__(self) -> Iterator[tuple[Place, Tensor | None]]:
        return ((span.place, self._visible(span)) for span in self.spans())

    def spans(self) -> Iterator[Span]:
        """The tiles with their bounds as they are."""
        for start in self.starts:
            rows = slice(start, min(start + self.starts.step, self.queries))
            whole = self._predicate(rows)
            for lead in self.lead:
                if whole is not None:
                    yield Span(Place(lead, rows, slice(0, self.keys)), None, None, take(whole, lead))
                else:
                    yield self._span(lead, rows)

    def _predicate(self, rows: slice) -> Tensor | None:
        """A mask that is asked about tiles is asked once for all leading indices."""
        if self.visibility.mask is None:
            return None
        seen = self.visibility.tile(rows, slice(None))
        assert seen is not None
        if not torch.compiler.is_compiling():
            self.release.after(seen.numel())
        return full_rank(seen, self.rank + 2)

    def _span(self, lead: tuple[slice, ...], rows: slice) -> Span:
        first, last = (None if x is None else take(x, lead, rows) for x in self.bounds)
        start = 0 if first is None else _ends(first)[0]
        stop = self.keys if last is None else _ends(last)[1]
        if self.keys == 1:
            # A single key stays where a part is taken, seen or not: so it belongs to every tile.
            start, stop = 0, 1
        place = Place(lead, rows, slice(start, max(start, stop)))
        return Span(place, first, last, None if self.dense is None else take(self.dense, lead, rows, place.columns))

    def _visible(self, span: Span) -> Tensor | None:
        """The bounds and the mask of a tile as one table; None where all is seen."""
        place, first, last, seen = span
        latest = 0 if first is None else _ends(first)[1]
        earliest = self.keys if last is None else _ends(last)[0]
        if latest > place.columns.start or earliest < place.columns.stop:
            inside = self._between(first, last, place.columns)
            seen = inside if seen is None else seen & inside
        return seen

    def _between(self, first: Tensor | None, last: Tensor | None, columns: slice) -> Tensor:
        device = self.visibility.grid.device
        j = torch.arange(columns.start, columns.stop, device=device, dtype=torch.int32)
        after = None if first is None else j >= first.unsqueeze(-1)
        if last is None:
            assert after is not None
            return after
        before = j < last.unsqueeze(-1)
        return before if after is None else after & before


def _ends(bound: Tensor) -> tuple[int, int]:
    low, high = bound.aminmax()
    return int(low), int(high)


def dropout_factors(
    seed: Tensor, place: Place, leading: Shape, queries: int, dropout: float, dtype: torch.dtype
) -> Tensor:
    """Return the factor of each weight of a tile under dropout: 0, or 1/(1 − dropout)."""
    lead, rows, columns = place
    problems = torch.arange(prod(leading), device=seed.device).view(leading)[lead]
    row_numbers = problems.unsqueeze(-1) * queries + torch.arange(rows.start, rows.stop, device=seed.device)
    keep = keep_mask(seed, row_numbers, torch.arange(columns.start, columns.stop, device=seed.device), dropout)
    return keep.to(dtype).div_(1 - dropout)
