"""Tiles of a position bias that is not a function of j − i, and the gradients of its parameters.

The bias of some rows is evaluated once for all leading indices. The gradients of all their tiles are summed before one
backward pass of autograd per stripe of rows computes those of the parameters.
"""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from qkv.engine.mechanism import full_rank
from qkv.engine.position_bias import PositionBias
from qkv.engine.tiles import TileSize, TileSlices, take
from qkv.engine.unchanged import Reads

SIZE = TileSize(1 << 18, 8)
"""The size of stripes with such a bias, which is stored for all leading indices of their rows at once."""


@final
class PositionTiles:
    """The tiles of a position bias, requested stripe by stripe.

    Args:
        positions: the bias.
        rank: of the leading shape.
        reads: records the tensors that the bias function reads.
        learns: whether to compute gradients of its parameters.
    """

    def __init__(self, positions: PositionBias, rank: int, reads: Reads, learns: bool) -> None:
        self.positions, self.rank, self.reads, self.learns = positions, rank, reads, learns
        self.rows: slice | None = None
        self.bias: Tensor
        self.gradient: Tensor
        self.parameter_gradients = [torch.zeros_like(x) for x in positions.learned] if learns else []

    def tile(self, slices: TileSlices) -> Tensor:
        """Return the bias of a tile's scores."""
        if slices.rows != self.rows:
            self._finish_rows()
            with torch.set_grad_enabled(self.learns), self.reads:
                self.bias = full_rank(self.positions.tile(slices.rows), self.rank + 2)
            self.rows = slices.rows
            if self.learns:
                self.gradient = torch.zeros_like(self.bias)
        return take(self.bias.detach(), slices.items, slice(None), slices.columns)

    def computed_from(self, slices: TileSlices, learned: Sequence[Tensor]) -> Tensor:
        """Return the bias of a tile's scores, computed from other tensors in place of those that learn."""
        if not learned:
            return self.tile(slices)
        with self.reads:
            bias = full_rank(self.positions.replaced(learned).tile(slices.rows, slices.columns), self.rank + 2)
        return take(bias, slices.items)

    def add_gradient(self, slices: TileSlices, g_scores: Tensor) -> None:
        """Add the gradient of a tile's scores to that of the bias."""
        part = take(self.gradient, slices.items, slice(None), slices.columns)
        part += g_scores.sum_to_size(part.shape)

    def gradients(self) -> list[Tensor]:
        """Return the gradients of the parameters, summed over all rows."""
        self._finish_rows()
        return self.parameter_gradients

    def _finish_rows(self) -> None:
        if self.rows is None or not self.learns or not self.bias.requires_grad:
            return
        gradients = torch.autograd.grad(self.bias, self.positions.learned, self.gradient, allow_unused=True)
        for total, g in zip(self.parameter_gradients, gradients, strict=True):
            if g is not None:
                total.add_(g)
        self.rows = None
