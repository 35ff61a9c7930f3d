"""Where the numbers of a tensor lie, as compiled kernels are told; without Numba, because what is kept says it too."""

from typing import Any, NamedTuple

from numpy.typing import NDArray


class Laid(NamedTuple):
    """Numbers from the first of a tensor to its last, and how far its dimensions are apart there."""

    numbers: NDArray[Any]
    strides: tuple[int, ...]
