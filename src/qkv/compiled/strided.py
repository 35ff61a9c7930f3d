"""Where the numbers of a tensor lie, as compiled kernels are told; without Numba, because what is kept says it too."""

from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor


class StridedArray(NamedTuple):
    """Numbers from the first of a tensor to its last, and how far its dimensions are apart there."""

    numbers: NDArray[Any]
    strides: tuple[int, ...]


def as_strided_array(x: Tensor) -> StridedArray:
    """Where the numbers of a tensor lie, of bfloat16 their bits, with the strides of all dimensions but the last."""
    last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    flat = x.detach().as_strided((last + 1,), (1,))
    return StridedArray((flat.view(torch.uint16) if x.dtype == torch.bfloat16 else flat).numpy(), x.stride()[:-1])
