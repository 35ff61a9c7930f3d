"""The parts of a score, normalizer, mask and bias that belong to one head and some of its rows."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar, final

import torch
from torch import Tensor

from qkv.biases import Bias
from qkv.masks.base import Bounds, Grid, Mask
from qkv.normalizers.base import Normalizer
from qkv.scores.base import Score
from qkv.scores.free import Learned

Owner = TypeVar("Owner", Score, Normalizer, Bias)


@final
@dataclass(frozen=True, eq=False)
class HeadRows:
    """A part of a layer: one head, with all or some of its rows.

    Args:
        heads: H of the layer.
        groups: G, the heads of its keys.
        head: index of the head.
        queries: Q of the layer.
        rows: positions of the selected queries, int64; None for all.
    """

    heads: int
    groups: int
    head: int
    queries: int
    rows: Tensor | None = None

    def place(self, rows_Q1: Tensor) -> Tensor:
        """Return the positions of the part's rows in the layer."""
        return rows_Q1 if self.rows is None else self.rows[rows_Q1[:, 0]][:, None]

    def pick(self, table: Tensor, own: int) -> Tensor:
        """Select the head's part of a tensor whose own dimensions follow the head dimension."""
        if table.ndim <= own:
            return table
        return table.select(-own - 1, self.head if table.shape[-own - 1] > 1 else 0)


@final
@dataclass(frozen=True, eq=False)
class MaskPart(Mask):
    """A layer's mask for one head and some rows."""

    whole: Mask
    cut: HeadRows

    def visible(self, grid: Grid, rows_Q1: Tensor, columns_K: Tensor) -> Tensor:
        """Evaluate the whole mask at the rows' positions."""
        return self.cut.pick(self.whole.visible(self._grid(grid), self.cut.place(rows_Q1), columns_K), 2)

    def bounds(self, grid: Grid) -> Bounds | None:
        """Return the same intervals, for fewer rows."""
        bounds = self.whole.bounds(self._grid(grid))
        return None if bounds is None else Bounds(self._bound(bounds.first), self._bound(bounds.last))

    def inside(self, grid: Grid) -> list[tuple[Mask, Grid]]:
        """Return the whole mask, which applies to all rows."""
        return [(self.whole, self._grid(grid))]

    def _grid(self, grid: Grid) -> Grid:
        return Grid((self.cut.heads,), self.cut.queries, grid.keys, grid.device)

    def _bound(self, bound: Tensor | None) -> Tensor | None:
        if bound is None:
            return None
        bound = self.cut.pick(bound, 1)
        return bound if self.cut.rows is None or bound.shape[-1] == 1 else bound[self.cut.rows]


@final
@dataclass(frozen=True, eq=False)
class BiasPart(Bias):
    """A layer's bias for one head and some rows."""

    whole: Bias
    cut: HeadRows

    def tile(self, rows_Q1: Tensor, columns_K: Tensor) -> Tensor:
        """Evaluate the whole bias at the rows' positions."""
        return self.whole.tile(self.cut.place(rows_Q1), columns_K)


@final
@dataclass(frozen=True, eq=False)
class _OneHead:
    """Evaluate a function that expects all heads for one of them."""

    function: Callable[[Tensor, Tensor], Tensor]
    cut: HeadRows

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        all_heads = (x.expand(self.cut.heads, *x.shape[-2:]) for x in (query, key))
        scores = self.function(*all_heads)
        return self.cut.pick(scores, 2)


def part_of(owner: Owner, cut: HeadRows) -> Owner:
    """Return a score, normalizer or bias with the parameters of one head."""
    if isinstance(owner, Learned):
        return replace(owner, module=_OneHead(owner.module, cut))
    heads = {
        name: _of_head(parameter, own, replace(cut, head=cut.head * cut.groups // cut.heads) if of_key else cut)
        for name, own, of_key in owner.parameters
        if isinstance(parameter := getattr(owner, name), Tensor)
    }
    return replace(owner, **heads) if heads else owner  # type: ignore[type-var]


def _of_head(parameter: Tensor, own: int, cut: HeadRows) -> Tensor:
    return cut.pick(parameter, own) if parameter.ndim > own else parameter


def bias_of(bias: Tensor | Bias | None, cut: HeadRows) -> Tensor | Bias | None:
    """Return a layer's bias for one head and some rows."""
    if bias is None:
        return None
    if isinstance(bias, Bias):
        return BiasPart(part_of(bias, cut), cut)
    bias = cut.pick(bias, 2)
    rows = bias.ndim > 1 and bias.shape[-2] > 1 and cut.rows is not None
    return bias.index_select(-2, torch.as_tensor(cut.rows, device=bias.device)) if rows else bias
