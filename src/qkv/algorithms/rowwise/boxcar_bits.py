"""Weights of a boxcar as bits, kept from the forward pass for the gradient of the values: 0, or one number per row.

They take a thirty-second of the weights, and no more than queries, keys and values together: memory stays linear in
both lengths. Of what finds no room the tiles are made again.
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
"""Microseconds of one thread for a weight, either way."""


def serves(recipe: Mechanism, inputs: Inputs) -> bool:
    """Whether all weights of a row are zero or one number, and only values have a gradient."""
    even = isinstance(recipe.pointwise, BoxcarShape) and recipe.normalizer == "sum"
    return even and inputs.bias is None and inputs.seed is None


@final
class Bits:
    """What the tiles of a problem leave, in the order of the walk over them.

    Args:
        inputs: of the problem.
    """

    def __init__(self, inputs: Inputs) -> None:
        """Begin without any."""
        self._left = sum(x.nbytes for x in (inputs.query, inputs.key, inputs.value))
        self._kept: list[tuple[Any, Tensor] | None] = []

    def keep(self, weights: Tensor, state: "Array") -> None:
        """Keep a tile, where there is room.

        Args:
            weights: (..., h, c).
            state: the sum of each row, (L, h).
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
        """A tile again, or None where it found no room.

        Args:
            number: of the tile.
            shape: (..., h, c).
            rooms: where it may lie.
            dtype: of the weights.

        Returns:
            Ones and zeros of that shape, and what each row's ones are to be multiplied by (..., h, 1).
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
