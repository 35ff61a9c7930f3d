"""Weights packed in the layout of `qkv.linalg.packed_kernel`, and products with them by several threads."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qkv.compiled import thread_pool
from qkv.linalg import packed_kernel
from qkv.linalg.memory_pool import MemoryPool

_MICROSECONDS = 1e-5
"""Microseconds of one thread per multiplication."""
_NOTHING_ADDED = np.empty(0, np.float32)


class Affine(NamedTuple):
    """The parameters of x·Wᵀ + b: W (N, M), and b (N,) or None."""

    weight: Tensor
    bias: Tensor | None


class Norm(NamedTuple):
    """The parameters of a layer norm: gain and bias (M,), and the number added to the variance."""

    gain: Tensor
    bias: Tensor
    epsilon: float


def pack(parts: Sequence[Affine | Norm]) -> tuple[packed_kernel.Floats, NDArray[np.uint64]]:
    """Copy parameters into one array, in the layout that `product` and `norm` read.

    Args:
        parts: in the order of their use, because a kernel prefetches what follows the panel that it multiplies.

    Returns:
        The array, and the index where each part begins. The bias of a product follows its panels.

    Example:
        >>> packed, offsets = pack([Norm(torch.ones(2), torch.zeros(2), 1e-5)])
        >>> packed[:5], offsets
        (array([1.e+00, 1.e+00, 0.e+00, 0.e+00, 1.e-05], dtype=float32), array([0], dtype=uint64))
    """
    sizes = [_size(part) for part in parts]
    offsets = [0, *itertools.accumulate(-(-size // packed_kernel.LINE) * packed_kernel.LINE for size in sizes)]
    packed = torch.zeros(offsets[-1], dtype=torch.float32, device="cpu")
    for part, offset, size in zip(parts, offsets, sizes, strict=False):
        destination = packed[offset : offset + size]
        if isinstance(part, Norm):
            torch.cat([part.gain, part.bias, part.gain.new_full((1,), part.epsilon)], out=destination)
        else:
            _pack_affine(part, destination)
    return packed.numpy(), np.array(offsets[:-1], np.uint64)


def _size(part: Affine | Norm) -> int:
    if isinstance(part, Norm):
        return 2 * part.gain.numel() + 1
    columns, terms = part.weight.shape
    return -(-columns // packed_kernel.WIDE) * packed_kernel.WIDE * terms + columns


def _pack_affine(part: Affine, destination: Tensor) -> None:
    """Write a weight as panels of WIDE columns, each (M, WIDE), then the bias; zeros fill the last panel."""
    columns, terms = part.weight.shape
    width = packed_kernel.WIDE
    full, rest = divmod(columns, width)
    panels = destination[: destination.numel() - columns].view(-1, terms, width)
    panels[:full] = part.weight[: full * width].view(full, width, terms).mT
    if rest:
        panels[full, :, :rest] = part.weight[full * width :].mT
    if part.bias is not None:
        destination[destination.numel() - columns :] = part.bias


@final
class PackedWeight:
    """A copy of a weight W (N, M) as panels of columns.

    Args:
        weight: W, float32, on the CPU.

    Example:
        >>> PackedWeight(torch.ones(4, 3)).times(torch.ones(2, 3), torch.ones(4))
        tensor([[4., 4., 4., 4.],
                [4., 4., 4., 4.]])
    """

    def __init__(self, weight: Tensor) -> None:
        """Copy the weight."""
        self._columns, self._terms = weight.shape
        self._packed, _ = pack([Affine(weight, None)])
        self._panels = -(-self._columns // packed_kernel.WIDE)

    def times(self, x: Tensor, bias: Tensor | None, memory: MemoryPool | None = None) -> Tensor:
        """Compute x·Wᵀ + b without gradients.

        Args:
            x: (..., M).
            bias: b (N,), or None for zeros.
            memory: the pool in which the result is allocated; None for new memory.

        Returns:
            (..., N).
        """
        rows, shape = x.numel() // self._terms, (*x.shape[:-1], self._columns)
        out = torch.empty(shape, dtype=torch.float32, device="cpu") if memory is None else memory.tensor(shape)
        # `pack` wrote zeros after the panels, in place of a bias.
        zeros = self._packed, self._panels * packed_kernel.WIDE * self._terms
        added = zeros if bias is None else (_flat(bias), 0)
        sizes = rows, self._terms, self._columns
        arguments = (*sizes, _flat(x), self._packed, 0, *added, False, _NOTHING_ADDED, _flat(out))
        scratch = (((packed_kernel.ROWS * packed_kernel.WIDE,), np.float32),)
        time = rows * self._terms * self._columns * _MICROSECONDS
        # One chunk per thread, of consecutive panels: each is prefetched while the one before it is multiplied.
        thread_pool.run_in_chunks(
            packed_kernel.product_alone, np.float32, self._panels, time, arguments, scratch, each=1
        )
        return out


def _flat(x: Tensor) -> packed_kernel.Floats:
    array: packed_kernel.Floats = x.detach().contiguous().view(-1).numpy()
    return array
