"""What decodings leave for the steps and batches that follow: made once, used until the end of a block."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import prod
from typing import Any, TypeVar, cast, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

T = TypeVar("T")

_STORE: ContextVar[dict[type, Any] | None] = ContextVar("store", default=None)
_LINE = 64
"""Bytes in a line of the cache, where memory begins."""
_WIDER = 4
"""How many times as large as what is asked for a piece may be."""


@contextmanager
def decoding_session() -> Iterator[None]:
    """Keep what decodings make for themselves until the end of the block: laid out weights, room for keys.

    For a decoding, whose every step takes the same, and for several of them: a block within another one shares what
    that one keeps. Nothing outlives the outermost block.

    Example:
        >>> with decoding_session():
        ...     with decoding_session():
        ...         inner = session_value(list)
        ...     session_value(list) is inner
        True
    """
    if _STORE.get() is not None:
        yield
        return
    before = _STORE.set({})
    try:
        yield
    finally:
        _STORE.reset(before)


def session_value(kind: type[T]) -> T | None:
    """Give the one thing of a kind that is kept here, made when it is first asked for.

    Args:
        kind: a class; it is called without arguments.

    Returns:
        It, or None outside of `decoding_session`.

    Example:
        >>> session_value(dict) is None
        True
    """
    store = _STORE.get()
    if store is None:
        return None
    found = store.get(kind)
    if found is None:
        found = store.setdefault(kind, kind())
    return cast(T, found)


@final
class ReusedMemory:
    """Memory that arrays and tensors lay in, once nothing refers to them any more.

    glibc gives large blocks back to the system when they are freed, and the first touch of each page that comes anew
    takes as long as reading it several times: the keys that a beam of 5 keeps were a tenth of its time so, and the
    gradients of a decoder's step more than half.

    Args:
        most: bytes of all pieces together, from which on idle ones are given back before more is taken.

    Example:
        >>> reused = ReusedMemory()
        >>> place = reused.tensor((2, 3)).data_ptr()  # and lets go of it
        >>> reused.tensor((3, 2)).data_ptr() == place
        True
    """

    def __init__(self, most: int = 1 << 29) -> None:
        """Begin without any."""
        self._most = most
        # What a piece that nothing lies in counts, asked as it will be: how many of them are ours is Python's affair.
        self._pieces = [np.empty(0, np.uint8)]
        self._lock = threading.Lock()
        self._idle = self._holders(0)
        self._pieces.clear()

    def tensor(self, shape: tuple[int, ...]) -> Tensor:
        """Memory for a float32 tensor on the CPU, with whatever it held before.

        Args:
            shape: its own.
        """
        return torch.from_numpy(self.array(shape, np.float32))

    def array(self, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """Memory for an array, with whatever it held before.

        Args:
            shape: its own.
            dtype: its type.
        """
        size = prod(shape) * np.dtype(dtype).itemsize
        if size > self._most // _WIDER:
            return np.empty(shape, dtype)
        with self._lock:
            piece = self._idle_of(size + _LINE)
            first = -piece.ctypes.data % _LINE
            # Every array and tensor that lies in it, views of views among them, holds the piece.
            found: NDArray[Any] = piece[first : first + size].view(dtype).reshape(shape)
            return found

    def _idle_of(self, size: int) -> NDArray[np.uint8]:
        """The smallest idle piece of at least that size, a new one if need be."""
        places = range(len(self._pieces))
        idle = [k for k in places if self._holders(k) == self._idle]
        fitting = [k for k in idle if size <= self._pieces[k].size <= _WIDER * size]
        if fitting:
            return self._pieces[min(fitting, key=lambda k: self._pieces[k].size)]
        if size + sum(piece.size for piece in self._pieces) > self._most:
            self._pieces = [self._pieces[k] for k in places if k not in idle]
        self._pieces.append(np.empty(size, np.uint8))
        return self._pieces[-1]

    def _holders(self, place: int) -> int:
        return sys.getrefcount(self._pieces[place])
