"""Tensors as kernels take them: an address, or a flat array, and strides; without Numba, so that caches can use it."""

from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor

from qkv.errors import DtypeError, ShapeError
from qkv.shapes import show


class StridedArray(NamedTuple):
    """A tensor's memory from its first to its last number, as a flat array, and strides into it."""

    numbers: NDArray[Any]
    strides: tuple[int, ...]


def as_strided_array(x: Tensor) -> StridedArray:
    """Return a tensor's memory (for bfloat16, its bits as uint16) and the strides of all dimensions but the last."""
    last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    flat = x.detach().as_strided((last + 1,), (1,)).resolve_neg()
    return StridedArray((flat.view(torch.uint16) if x.dtype == torch.bfloat16 else flat).numpy(), x.stride()[:-1])


def memory_of(x: Tensor, name: str, dtype: torch.dtype, shape: torch.Size | None = None) -> Tensor:
    """Return a tensor whose memory a kernel may read by its address and strides.

    Args:
        x: any tensor; it is copied only if its memory holds other numbers than it shows.
        name: of the tensor, in messages.
        dtype: the type that the kernel reads.
        shape: the shape that the kernel reads; None if the strides alone decide.

    Raises:
        DtypeError, ShapeError: it has another type, device or shape, so that its address must not be read.

    Example:
        >>> memory_of(torch._neg_view(torch.ones(1)), "query", torch.float32, torch.Size((1,)))
        tensor([-1.])
    """
    if x.dtype is not dtype or not x.is_cpu:
        expected, got = f"{dtype} on the CPU", f"{x.dtype} on {x.device}"
        raise DtypeError(name, expected, got, "Kernels read tensors of the type that they were planned for.")
    if shape is not None and x.shape != shape:
        got, hint = show(tuple(x.shape)), "Kernels read tensors of the shape that they were planned for."
        raise ShapeError(name, f"the shape {show(tuple(shape))}", got, hint)
    return x.clone() if x.is_neg() or x._is_zerotensor() else x
