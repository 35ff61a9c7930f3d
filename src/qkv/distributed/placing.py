"""Masks and biases that speak of positions in the whole sequence, for a block of its rows and columns."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, final

import torch
from torch import Tensor

from qkv.biases import Alibi, Bias, Relative
from qkv.masks.base import Both, Bounds, Dense, Either, Grid, Inverse, Mask
from qkv.masks.patterns import causal
from qkv.shapes import Shape
from qkv.values.parameters import Parameter, of_items, with_items


class Block(NamedTuple):
    """Some rows and columns of the whole matrix of pairs.

    Attributes:
        rows: positions of the queries; int64 (Q,) where they do not follow one another.
        columns: positions of the keys.
        grid: the sizes of the whole matrix.
        items: which of each leading dimension, the last ones at least; empty for all.
    """

    rows: range | Tensor
    columns: range
    grid: Grid
    items: tuple[range, ...] = ()

    @property
    def size(self) -> Grid:
        """The sizes of the block."""
        leading = tuple(map(len, self.items)) or self.grid.leading
        return self.grid._replace(leading=leading, queries=len(self.rows), keys=len(self.columns))

    def places(self, rows_Q1: Tensor, columns_K: Tensor) -> tuple[Tensor, Tensor]:
        """Return the positions of rows and columns of the block."""
        rows = self.rows[rows_Q1] if isinstance(self.rows, Tensor) else rows_Q1 + self.rows.start
        return rows, columns_K + self.columns.start

    def of_rows(self, x: Tensor, dim: int) -> Tensor:
        """Return the rows of the block of a table that broadcasts to those of the whole matrix."""
        if x.ndim < -dim or x.shape[dim] == 1:
            return x
        if isinstance(self.rows, Tensor):
            return x.index_select(dim, self.rows)
        return x.narrow(dim, self.rows.start, len(self.rows))


def visible_part(mask: Mask, block: Block) -> Mask | bool | None:
    """Return the mask of a block; None if all of it is visible, False if none.

    Example:
        >>> grid = Grid((), 6, 6, torch.device("cpu"))
        >>> visible_part(causal(), Block(range(2, 4), range(0, 2), grid)) is None
        True
        >>> visible_part(causal(), Block(range(2, 4), range(4, 6), grid))
        False
        >>> visible_part(causal(), Block(range(2, 4), range(2, 4), grid))
        Causal(offset=0, align='start')
    """
    placed = placed_mask(mask, block)
    bounds = placed.bounds(block.size)
    if bounds is None:
        return placed
    rows, keys = len(block.rows), len(block.columns)
    first = torch.zeros(1, dtype=torch.int32, device=block.grid.device) if bounds.first is None else bounds.first
    last = torch.full_like(first[..., :1], keys) if bounds.last is None else bounds.last
    if bool((last <= first).all()):
        return False
    from_start = bool((first <= 0).all())
    if from_start and bool((last >= keys).all()):
        return None
    diagonal = torch.arange(1, rows + 1, device=last.device)
    if from_start and rows == keys and last.shape[-1] == rows and bool((last == diagonal).all()):
        return causal()
    return placed


def placed_mask(mask: Mask, block: Block) -> Mask:
    """Return the mask of a block: its place is pushed down to the parts of the mask.

    Example:
        >>> grid = Grid((), 6, 6, torch.device("cpu"))
        >>> block = Block(torch.tensor([0, 5]), range(6), grid)
        >>> placed_mask(causal(), block).bounds(block.size).last
        tensor([1, 6], dtype=torch.int32)
    """
    if isinstance(mask, Both):
        return Both(placed_mask(mask.left, block), placed_mask(mask.right, block))
    if isinstance(mask, Either):
        return Either(placed_mask(mask.left, block), placed_mask(mask.right, block))
    if isinstance(mask, Inverse):
        return Inverse(placed_mask(mask.inner, block))
    if isinstance(mask, Dense):
        return Dense(_cut(mask.tensor, block))
    return _Placed(mask, block, mask.name)


def _cut(table: Tensor, block: Block) -> Tensor:
    """Return a block of a table that broadcasts to (..., Q, K)."""
    if table.ndim and table.shape[-1] != 1:
        table = table[..., block.columns.start : block.columns.stop]
    return of_items(block.of_rows(table, -2), block.items, 2)


@final
@dataclass(frozen=True, eq=False)
class _Placed(Mask):
    """A block of a mask."""

    inner: Mask
    block: Block
    name: str

    def visible(self, grid: Grid, rows_Q1: Tensor, columns_K: Tensor) -> Tensor:
        """Evaluate the whole mask at the positions of the block."""
        whole = self._whole(grid)
        return of_items(self.inner.visible(whole, *self.block.places(rows_Q1, columns_K)), self.block.items, 2)

    def bounds(self, grid: Grid) -> Bounds | None:
        """Return the intervals of the rows within the block."""
        bounds = self.inner.bounds(self._whole(grid))
        return None if bounds is None else Bounds(*(None if x is None else self._bound(x) for x in bounds))

    def _bound(self, bound: Tensor) -> Tensor:
        bound, columns = self.block.of_rows(bound, -1), self.block.columns
        return of_items((bound - columns.start).clamp(0, len(columns)).int(), self.block.items, 1)

    def inside(self, grid: Grid) -> Iterable[tuple[Mask, Grid]]:
        """Return the whole mask."""
        return ((self.inner, self._whole(grid)),)

    def _whole(self, grid: Grid) -> Grid:
        whole = grid._replace(queries=self.block.grid.queries, keys=self.block.grid.keys)
        return whole._replace(leading=self.block.grid.leading) if self.block.items else whole


def bias_part(bias: Tensor | Bias | None, block: Block) -> Tensor | Bias | None:
    """Return the bias of a block.

    Example:
        >>> bias_part(Alibi(0.5), Block(range(4, 6), range(0, 2), Grid((), 6, 6, torch.device("cpu"))))
        Alibi(slopes=0.5, offset=4)
    """
    if bias is None:
        return None
    if isinstance(bias, Tensor):
        return _cut(bias, block)
    if isinstance(bias, (Alibi, Relative)) and isinstance(block.rows, range):
        placed = replace(bias, offset=bias.offset + block.rows.start - block.columns.start)
        return with_items(placed, placed.parameters, block.items, block.items)
    return _PlacedBias(bias, block, bias.name)


@final
@dataclass(frozen=True, eq=False)
class _PlacedBias(Bias):
    """A block of a bias."""

    inner: Bias
    block: Block
    name: str

    def tile(self, rows_Q1: Tensor, columns_K: Tensor) -> Tensor:
        """Evaluate the whole bias at the positions of the block."""
        return of_items(self.inner.tile(*self.block.places(rows_Q1, columns_K)), self.block.items, 2)


@final
@dataclass(frozen=True, eq=False)
class ShiftedBias(Bias):
    """A bias, and a number for each row.

    Args:
        inner: the bias of a block.
        shift: (..., Q).
    """

    inner: Bias
    shift: Tensor
    name: str = "bias"
    parameters: ClassVar[tuple[Parameter, ...]] = ()

    def tile(self, rows_Q1: Tensor, columns_K: Tensor) -> Tensor:
        """Add both."""
        return self.inner.tile(rows_Q1, columns_K) + self.shift[..., rows_Q1[:, 0], None]


def shifted_bias(bias: Tensor | Bias | None, shift: Tensor) -> Any:
    """Return a bias plus a number for each row, (..., Q)."""
    if isinstance(bias, Bias):
        return ShiftedBias(bias, shift)
    return shift.unsqueeze(-1) if bias is None else bias + shift.unsqueeze(-1)


def grid_of(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool, queries: int, keys: int) -> Grid:
    """Return the sizes of the whole matrix.

    Args:
        query, key, value: the parts of this process.
        enable_gqa: whether groups of query heads share a key head.
        queries, keys: numbers of queries and keys of all processes.
    """
    drop = 3 if enable_gqa else 2
    shapes = [tuple(x.shape[: x.ndim - drop]) for x in (query, key, value)]
    leading: Shape = tuple(torch.broadcast_shapes(*shapes))
    return Grid((*leading, query.shape[-3]) if enable_gqa else leading, queries, keys, query.device)
