"""Equivalent evaluations of one equation: its sums in other orders.

Two programs that compute the same equation differ by the order of their sums. `EVALUATIONS` orders stand for all of
them: every combination of a permutation of items, queries, keys, features and columns (`Order.of`) with a size of the
blocks that sums are added up in (`SumsInBlocks`): one term at a time, or 8, 16 or 32 as a vector unit does.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import numpy as np
import torch
from tests.seed import generator
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

BLOCKS = (32, 16, 8, 1)
PERMUTATIONS = 4
EVALUATIONS = PERMUTATIONS * len(BLOCKS)


@dataclass(frozen=True)
class Order:
    """One of the orders: large blocks first, which take less time; the first permutation changes nothing."""

    place: int

    def of(self, axis: str, size: int) -> Tensor:
        """The permutation of an axis: the same for every tensor that has it."""
        return _permutation(self.place % PERMUTATIONS, axis, size)

    def permuted(self, x: Tensor, **axes: int) -> Tensor:
        """A tensor with some axes permuted, by their names; an axis of size 1 is broadcast and stays."""
        if self.place % PERMUTATIONS == 0:
            return x
        for name, axis in axes.items():
            if -axis <= x.ndim and x.shape[axis] > 1:
                x = x.index_select(axis, self.of(name, x.shape[axis]))
        return x

    def restored(self, x: Tensor, **axes: int) -> Tensor:
        """The inverse of `permuted`."""
        if self.place % PERMUTATIONS == 0:
            return x
        for name, axis in axes.items():
            if -axis <= x.ndim and x.shape[axis] > 1:
                x = x.index_select(axis, self.of(name, x.shape[axis]).argsort())
        return x

    @contextmanager
    def summing(self) -> Iterator[None]:
        """Add up the sums of PyTorch's operations in blocks, forward and backward."""
        with SumsInBlocks(BLOCKS[self.place // PERMUTATIONS]):
            yield


ORDERS = tuple(map(Order, range(EVALUATIONS)))


@cache
def _permutation(turn: int, axis: str, size: int) -> Tensor:
    return torch.randperm(size, generator=generator("order", turn, axis, size)) if turn else torch.arange(size)


class SumsInBlocks(TorchDispatchMode):
    """Products, sums and softmax whose terms are added up block by block; half precision adds up in float32."""

    def __init__(self, block: int) -> None:
        super().__init__()
        self.block = block

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        own = _OWN.get(function)
        first = args[0] if args else None
        if own is None or not isinstance(first, Tensor) or not first.is_floating_point():
            return function(*args, **(kwargs or {}))
        wide = first.dtype if first.dtype.itemsize > 2 else torch.float32
        result = own(self.block, *(_wide(x, wide) for x in args), **(kwargs or {}))
        return result.to(first.dtype)


def _wide(x: Any, dtype: torch.dtype) -> Any:
    return x.to(dtype) if isinstance(x, Tensor) else x


def product(block: int, left: Tensor, right: Tensor) -> Tensor:
    """(N, P, n) × (N, n, R), one block of n after the other."""
    if min(left.shape[1], right.shape[2]) == 1:
        return total(block, left * right.mT).view(left.shape[0], left.shape[1], right.shape[2])
    out = left.new_zeros(left.shape[0], left.shape[1], right.shape[2])
    for one, other in zip(left.split(block, 2), right.split(block, 1), strict=True):
        out.baddbmm_(one.contiguous(), other)
    return out


def total(block: int, x: Tensor) -> Tensor:
    """The sum over the last dimension."""
    size = x.shape[-1]
    if size == 0:
        return x.new_zeros(x.shape[:-1])
    whole = size - size % block
    parts = [x[..., :whole].unflatten(-1, (-1, block)).sum(-1)] if whole else []
    parts += [x[..., whole:].sum(-1, keepdim=True)] if whole < size else []
    # NumPy accumulates in the type of the numbers, one after the other; PyTorch's cumsum in float64.
    with np.errstate(over="ignore", invalid="ignore"):
        sums = np.add.accumulate(torch.cat(parts, -1).numpy(), axis=-1)
    return torch.from_numpy(np.ascontiguousarray(sums[..., -1]))


def _sum(block: int, x: Tensor, dims: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    axes = sorted(d % max(x.ndim, 1) for d in (dims or range(x.ndim)))
    rest = [axis for axis in range(x.ndim) if axis not in axes]
    shape = [x.shape[axis] for axis in rest]
    out = total(block, x.permute(*rest, *axes).reshape(*shape, prod(x.shape[axis] for axis in axes)))
    return out.reshape([1 if axis in axes else size for axis, size in enumerate(x.shape)]) if keepdim else out


def _mean(block: int, x: Tensor, dims: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    out = _sum(block, x, dims, keepdim)
    return out * (out.numel() / max(x.numel(), 1))


def _norm(block: int, x: Tensor, order: float = 2, dims: Any = None, keepdim: bool = False, **_: Any) -> Tensor:
    assert order == 2, order
    return _sum(block, x * x, dims, keepdim).sqrt()


def _softmax(block: int, x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    e = torch.exp(x - x.amax(dim, keepdim=True))
    return e / _sum(block, e, [dim], True)


def _softmax_backward(block: int, grad: Tensor, y: Tensor, dim: int, dtype: Any) -> Tensor:
    return y * (grad - _sum(block, grad * y, [dim], True))


def _logsumexp(block: int, x: Tensor, dims: Any, keepdim: bool = False) -> Tensor:
    top = x.amax(dims, keepdim=True)
    top = torch.where(top.isinf(), 0.0, top)
    sums = _sum(block, torch.exp(x - top), dims, True).log() + top
    return sums if keepdim else sums.squeeze(tuple(dims))


_ATEN = torch.ops.aten
_OWN: dict[Any, Callable[..., Tensor]] = {
    _ATEN.bmm.default: product,
    _ATEN.mm.default: lambda block, x, y: product(block, x[None], y[None])[0],
    _ATEN.mv.default: lambda block, x, y: product(block, x[None], y[None, :, None])[0, :, 0],
    _ATEN.dot.default: lambda block, x, y: product(block, x[None, None], y[None, :, None])[0, 0, 0],
    _ATEN.sum.dim_IntList: _sum,
    _ATEN.sum.default: _sum,
    _ATEN.mean.dim: _mean,
    _ATEN.mean.default: _mean,
    _ATEN.linalg_vector_norm.default: _norm,
    _ATEN._softmax.default: _softmax,
    _ATEN._softmax_backward_data.default: _softmax_backward,
    _ATEN.logsumexp.default: _logsumexp,
}
"""PyTorch's operations that add up, as it calls them."""
