"""Tensors as kernels take them, a flat array and strides; without Numba, so that key/value caches can use it."""

from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor


class StridedArray(NamedTuple):
    """A tensor's memory from its first to its last number, as a flat array, and strides into it."""

    numbers: NDArray[Any]
    strides: tuple[int, ...]


def as_strided_array(x: Tensor) -> StridedArray:
    """Return a tensor's memory (for bfloat16, its bits as uint16) and the strides of all dimensions but the last."""
    last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    flat = x.detach().as_strided((last + 1,), (1,)).resolve_neg()
    return StridedArray((flat.view(torch.uint16) if x.dtype == torch.bfloat16 else flat).numpy(), x.stride()[:-1])
