"""Memory that tensors use one after another, because the first access to a new page is slow.

glibc gives large blocks back to the system as soon as they are freed. A beam of 5 hypotheses spent a tenth of its time
on new pages for keys and scores, and a decoder's training step two thirds of it on new pages for gradients.
"""

import threading
import weakref
from math import prod
from typing import Any, final

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from qkv.shapes import Shape

_Piece = NDArray[np.uint8]
_CACHE_LINE = 64
"""Bytes of a cache line, where each tensor begins."""
_MAX_SIZE_RATIO = 4
"""How many times as large as the request a reused piece may be."""


@final
class MemoryPool:
    """Memory for tensors on the CPU, which comes back to the pool when the last tensor in it is gone.

    A tensor owns its memory as usual, together with all views of it, so nothing can be overwritten while anyone can
    still read it. Threads may share a pool.

    Args:
        most: the bytes that the pool keeps for later, at most.

    Example:
        >>> pool = MemoryPool()
        >>> place = pool.tensor((2, 3)).data_ptr()  # nobody holds the tensor
        >>> pool.tensor((3, 2)).data_ptr() == place
        True
    """

    def __init__(self, most: int = 1 << 29) -> None:
        """Begin without any memory."""
        self._most = most
        self._idle: list[_Piece] = []
        self._lent: dict[int, tuple[weakref.ref[Any], _Piece]] = {}
        # A thread that holds it may itself drop the last tensor in a piece.
        self._lock = threading.RLock()

    def tensor(self, shape: Shape, dtype: DTypeLike = np.float32) -> Tensor:
        """Return an uninitialized tensor.

        Args:
            shape: any.
            dtype: its element type, by NumPy's name.
        """
        piece = self._take(prod(shape) * np.dtype(dtype).itemsize)
        array: NDArray[Any] = np.ndarray(shape, dtype, buffer=piece)
        # PyTorch holds this array until the last view of the tensor is gone.
        reference = weakref.ref(array, self._give_back)
        self._lent[id(reference)] = reference, piece
        return torch.from_numpy(array)

    def _take(self, size: int) -> _Piece:
        """Return the smallest idle piece that fits, or a new one."""
        with self._lock:
            fitting = [
                (piece.size, at) for at, piece in enumerate(self._idle) if size <= piece.size <= _MAX_SIZE_RATIO * size
            ]
            if fitting:
                return self._idle.pop(min(fitting)[1])
        memory = np.empty(size + _CACHE_LINE, np.uint8)
        first = -memory.ctypes.data % _CACHE_LINE
        return memory[first : first + size]

    def _give_back(self, reference: "weakref.ref[Any]") -> None:
        with self._lock:
            piece = self._lent.pop(id(reference))[1]
            if sum(each.size for each in self._idle) + piece.size <= self._most:
                self._idle.append(piece)
