"""Boxcar weights stored as bits by the forward pass, for the gradient of the values.

All weights of a row are 0 or one common number, so one bit per weight is exact. The bits take a thirty-second of the
memory of the weights, and at most as much as queries, keys and values together: memory stays linear in both lengths.
Tiles beyond this limit are recomputed.
"""

from math import prod
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

from qkv.engine.mechanism import Inputs, Mechanism
from qkv.linalg.buffers import Workspace
from qkv.scores.pointwise import BoxcarShape

if TYPE_CHECKING:
    from qkv.engine.key_ranges import Array

_EACH = 1e-4
"""Microseconds of one thread to pack or unpack a weight."""


def serves(recipe: Mechanism, inputs: Inputs) -> bool:
    """Return whether all weights of a row are zero or one common number, and only values have a gradient."""
    even = isinstance(recipe.pointwise, BoxcarShape) and recipe.normalizer == "sum"
    return even and inputs.bias is None and inputs.seed is None


@final
class Bits:
    """The packed weights of the tiles of a problem, in the order of iteration.

    Args:
        inputs: the inputs of the problem, whose size limits the memory.
    """

    def __init__(self, inputs: Inputs) -> None:
        """Start without any stored tile."""
        self._left = sum(x.nbytes for x in (inputs.query, inputs.key, inputs.value))
        self._kept: list[tuple[Any, Tensor] | None] = []

    def keep(self, weights: Tensor, state: "Array") -> None:
        """Store a tile if it fits in the memory limit.

        Args:
            weights: (..., h, c).
            state: the row sums, (L, h).
        """
        import numpy as np

        from qkv.algorithms.rowwise import boxcar_bits_kernel
        from qkv.compiled import thread_pool

        rows, columns = prod(weights.shape[:-1]), weights.shape[-1]
        size = rows * (columns // 8 + 1 + 4)
        if size > self._left:
            self._kept.append(None)
            return
        self._left -= size
        flat = weights.view(rows, columns).numpy()
        packed = np.empty((rows, columns // 8 + 1), np.uint8)
        thread_pool.run_in_chunks(boxcar_bits_kernel.pack, flat.dtype, rows, flat.size * _EACH, (flat, packed))
        total = torch.from_numpy(state).view(*weights.shape[:-1], 1)
        self._kept.append((packed, torch.where(total == 0, 0, 1 / total).to(weights.dtype)))

    def give(
        self, number: int, shape: tuple[int, ...], rooms: Workspace, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor] | None:
        """Return a stored tile, or None if it was not stored.

        Args:
            number: index of the tile.
            shape: (..., h, c).
            rooms: workspace that provides the buffer.
            dtype: type of the weights.

        Returns:
            Ones and zeros of that shape, and the factor of each row's ones (..., h, 1).
        """
        from qkv.algorithms.rowwise import boxcar_bits_kernel
        from qkv.compiled import thread_pool

        known = self._kept[number]
        if known is None:
            return None
        packed, share = known
        ones = rooms.take("weights", shape, dtype)
        flat = ones.view(len(packed), shape[-1]).numpy()
        thread_pool.run_in_chunks(boxcar_bits_kernel.unpack, flat.dtype, len(flat), flat.size * _EACH, (packed, flat))
        return ones, share
