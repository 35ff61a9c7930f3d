"""Memory that is used again, because the first access to a new page is slow.

glibc gives large blocks back to the system as soon as they are freed. A beam of 5 hypotheses spent a tenth of its time
on new pages for keys and scores, and a decoder's training step two thirds of it on new pages for gradients: a
`MemoryPool` keeps such blocks for other tensors.

glibc also returns the top of its heap when more than twice the largest block ever freed is free there. The tiles of a
call, a few tensors of one size, exceed that each time, 512 page faults for 2 MiB: a `Workspace` keeps them for the next
call of the thread.
"""

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
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
        >>> address = pool.tensor((2, 3)).data_ptr()  # nobody holds the tensor
        >>> pool.tensor((3, 2)).data_ptr() == address
        True
    """

    def __init__(self, most: int = 1 << 29) -> None:
        """Begin without any memory."""
        self._most = most
        self._idle: list[_Piece] = []
        self._in_use: dict[int, tuple[weakref.ref[Any], _Piece]] = {}
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
        self._in_use[id(reference)] = reference, piece
        return torch.from_numpy(array)

    def _take(self, size: int) -> _Piece:
        """Return the smallest idle piece that fits, or a new one."""
        with self._lock:
            fitting = [
                (piece.size, index)
                for index, piece in enumerate(self._idle)
                if size <= piece.size <= _MAX_SIZE_RATIO * size
            ]
            if fitting:
                return self._idle.pop(min(fitting)[1])
        memory = np.empty(size + _CACHE_LINE, np.uint8)
        start = -memory.ctypes.data % _CACHE_LINE
        return memory[start : start + size]

    def _give_back(self, reference: "weakref.ref[Any]") -> None:
        with self._lock:
            piece = self._in_use.pop(id(reference))[1]
            if sum(idle.size for idle in self._idle) + piece.size <= self._most:
                self._idle.append(piece)


MAX_RETAINED = 1 << 23
"""The most bytes that a thread retains between calls."""

_thread_local = threading.local()


class Workspace:
    """Named buffers, each for one use at a time.

    Example:
        >>> workspace = Workspace()
        >>> workspace.take("weights", (2, 3), torch.float32).shape, workspace.bytes
        (torch.Size([2, 3]), 24)
    """

    def __init__(self) -> None:
        """Create an empty workspace."""
        self._buffers: dict[tuple[str, torch.dtype], Tensor] = {}

    @property
    def bytes(self) -> int:
        """The total size of the buffers."""
        return sum(buffer.nbytes for buffer in self._buffers.values())

    def take(self, name: str, shape: Shape, dtype: torch.dtype) -> Tensor:
        """Return a tensor whose content is arbitrary.

        Args:
            name: what it is for; the same name and type give the same memory again.
            shape: any.
            dtype: its element type.

        Returns:
            A view of the buffer, valid until the buffer is taken again.
        """
        size = prod(shape)
        buffer = self._buffers.get((name, dtype))
        if buffer is None or buffer.numel() < size:
            # A tensor made in inference mode could not be written outside of it.
            with torch.inference_mode(False):
                buffer = self._buffers[name, dtype] = torch.empty(size, dtype=dtype, device="cpu")
        return buffer[:size].view(shape)


@contextmanager
def borrow_workspace() -> Iterator[Workspace]:
    """Lend the workspace of this thread for a block. A nested call, as from a finalizer, gets a new one.

    Example:
        >>> with borrow_workspace() as workspace:
        ...     with borrow_workspace() as other:
        ...         other is workspace
        False
    """
    workspace: Workspace | None = getattr(_thread_local, "workspace", None)
    _thread_local.workspace = None
    workspace = Workspace() if workspace is None else workspace
    yield workspace
    if workspace.bytes <= MAX_RETAINED:
        _thread_local.workspace = workspace
