"""A bias from positions on tiles, where it is no function of j − i alone: made for a stripe's rows, and differentiated.

As a mask that is asked about tiles, it is asked once for all leading indices of the rows. Its gradient waits until all
of them have added theirs: one backward pass of PyTorch's autograd for each stripe of rows then serves all parameters.
"""

from typing import final

import torch
from torch import Tensor

from qkv.engine.mechanism import full_rank
from qkv.engine.position_bias import PositionBias
from qkv.engine.tiles import Place, Size, take
from qkv.engine.unchanged import Reads

SIZE = Size(1 << 18, 8)
"""Of stripes, in place of `tiles.CACHED`: the bias of their rows is held for all leading indices at once."""


@final
class PositionTiles:
    """The tiles of a bias from positions, asked for row by row.

    Args:
        positions: the bias.
        rank: of the leading shape.
        reads: notes what its function reads.
        learns: whether gradients of its parameters are added up.
    """

    def __init__(self, positions: PositionBias, rank: int, reads: Reads, learns: bool) -> None:
        self.positions, self.rank, self.reads, self.learns = positions, rank, reads, learns
        self.rows: slice | None = None
        self.whole: Tensor
        self.gradient: Tensor
        self.found = [torch.zeros_like(x) for x in positions.learned] if learns else []

    def tile(self, place: Place) -> Tensor:
        """What is added to the scores of a tile."""
        if place.rows != self.rows:
            self._finish_rows()
            with torch.set_grad_enabled(self.learns), self.reads:
                self.whole = full_rank(self.positions.tile(place.rows), self.rank + 2)
            self.rows = place.rows
            if self.learns:
                self.gradient = torch.zeros_like(self.whole)
        return take(self.whole.detach(), place.lead, slice(None), place.columns)

    def add_gradient(self, place: Place, g_scores: Tensor) -> None:
        """Add the gradient of a tile's scores."""
        part = take(self.gradient, place.lead, slice(None), place.columns)
        part += g_scores.sum_to_size(part.shape)

    def gradients(self) -> list[Tensor]:
        """Those of the parameters, all rows together."""
        self._finish_rows()
        return self.found

    def _finish_rows(self) -> None:
        if self.rows is None or not self.learns or not self.whole.requires_grad:
            return
        given = torch.autograd.grad(self.whole, self.positions.learned, self.gradient, allow_unused=True)
        for place, g in enumerate(given):
            if g is not None:
                self.found[place] += g
        self.rows = None
