"""Parameters as `qkv.linalg.packed_kernel` reads them, and products with them, whose panels threads share."""

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

_EACH = 1e-5
"""Microseconds of one thread for a multiplication."""
_NOTHING = np.empty(0, np.float32)


class Affine(NamedTuple):
    """W (N, M) and b (N,), None for zeros."""

    weight: Tensor
    bias: Tensor | None


class Norm(NamedTuple):
    """Gain and bias (M,), and what is added to the variance."""

    gain: Tensor
    bias: Tensor
    epsilon: float


def pack(parts: Sequence[Affine | Norm]) -> tuple[packed_kernel.Floats, NDArray[np.uint64]]:
    """Copy parameters as `product` and `norm` read them, one behind the other.

    Args:
        parts: in the order of their use, so that what is fetched ahead of the last panel is the next part's first.

    Returns:
        All numbers, and where each part begins; the bias of a product follows its panels.

    Example:
        >>> numbers, places = pack([Norm(torch.ones(2), torch.zeros(2), 1e-5)])
        >>> numbers[:5], places
        (array([1.e+00, 1.e+00, 0.e+00, 0.e+00, 1.e-05], dtype=float32), array([0], dtype=uint64))
    """
    sizes = [_size(part) for part in parts]
    places = [0, *itertools.accumulate(-(-size // packed_kernel.LINE) * packed_kernel.LINE for size in sizes)]
    numbers = torch.zeros(places[-1], dtype=torch.float32, device="cpu")
    for part, place, size in zip(parts, places, sizes, strict=False):
        room = numbers[place : place + size]
        if isinstance(part, Norm):
            torch.cat([part.gain, part.bias, part.gain.new_full((1,), part.epsilon)], out=room)
        else:
            _lay_out_affine(part, room)
    return numbers.numpy(), np.array(places[:-1], np.uint64)


def _size(part: Affine | Norm) -> int:
    if isinstance(part, Norm):
        return 2 * part.gain.numel() + 1
    columns, terms = part.weight.shape
    return -(-columns // packed_kernel.WIDE) * packed_kernel.WIDE * terms + columns


def _lay_out_affine(part: Affine, room: Tensor) -> None:
    columns, terms = part.weight.shape
    wide = packed_kernel.WIDE
    whole, rest = divmod(columns, wide)
    found = room[: room.numel() - columns].view(-1, terms, wide)
    found[:whole] = part.weight[: whole * wide].view(whole, wide, terms).mT
    if rest:
        found[whole, :, :rest] = part.weight[whole * wide :].mT
    if part.bias is not None:
        room[room.numel() - columns :] = part.bias


@final
class PackedWeight:
    """A weight W (N, M), by panels.

    Args:
        weight: float32, on the CPU.

    Example:
        >>> PackedWeight(torch.ones(4, 3)).times(torch.ones(2, 3), torch.ones(4))
        tensor([[4., 4., 4., 4.],
                [4., 4., 4., 4.]])
    """

    def __init__(self, weight: Tensor) -> None:
        """Copy it."""
        self._columns, self._terms = weight.shape
        self._numbers, _ = pack([Affine(weight, None)])
        self._panels = -(-self._columns // packed_kernel.WIDE)

    def times(self, x: Tensor, bias: Tensor | None, memory: MemoryPool | None = None) -> Tensor:
        """x·Wᵀ + b, without a gradient.

        Args:
            x: (..., M).
            bias: b (N,); None for zeros, which are what lies behind the panels.
            memory: where the result lies; None for new memory.

        Returns:
            (..., N).
        """
        rows, shape = x.numel() // self._terms, (*x.shape[:-1], self._columns)
        out = torch.empty(shape, dtype=torch.float32, device="cpu") if memory is None else memory.tensor(shape)
        behind = self._numbers, self._panels * packed_kernel.WIDE * self._terms
        added = behind if bias is None else (_flat(bias), 0)
        given = (rows, self._terms, self._columns, _flat(x), self._numbers, 0, *added, False, _NOTHING, _flat(out))
        scratch = (((packed_kernel.ROWS * packed_kernel.WIDE,), np.float32),)
        time = rows * self._terms * self._columns * _EACH
        # One chunk for each thread: a panel is fetched while the one before it is multiplied.
        thread_pool.run_in_chunks(packed_kernel.product_alone, np.float32, self._panels, time, given, scratch, each=1)
        return out


def _flat(x: Tensor) -> packed_kernel.Floats:
    found: packed_kernel.Floats = x.detach().contiguous().view(-1).numpy()
    return found
