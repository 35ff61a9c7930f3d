"""Memory that calls of one thread use one after another: the first touch of a new page costs as much as a pass over it.

glibc gives the top of its heap back to the system whenever more than twice the largest block that was ever freed lies
free there, which tiles of a few equal tensors reach with every call: 512 page faults for 2 MiB.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod

import torch
from torch import Tensor

from qkv.shapes import Shape

KEPT = 1 << 23
"""Bytes that a thread keeps between calls, at most."""

_own = threading.local()


class Workspace:
    """Pieces of memory by name; each is used for one thing at a time.

    Example:
        >>> rooms = Workspace()
        >>> rooms.take("weights", (2, 3), torch.float32).shape, rooms.bytes
        (torch.Size([2, 3]), 24)
    """

    def __init__(self) -> None:
        """Begin without any."""
        self._rooms: dict[tuple[str, torch.dtype], Tensor] = {}

    @property
    def bytes(self) -> int:
        """What all of them hold."""
        return sum(room.nbytes for room in self._rooms.values())

    def take(self, name: str, shape: Shape, dtype: torch.dtype) -> Tensor:
        """Memory of a shape, with whatever it held before.

        Args:
            name: what it is for; the same name and type give the same memory again.
            shape: any.
            dtype: its element type.
        """
        size = prod(shape)
        room = self._rooms.get((name, dtype))
        if room is None or room.numel() < size:
            # What inference mode makes could not be written to outside of it.
            with torch.inference_mode(False):
                room = self._rooms[name, dtype] = torch.empty(size, dtype=dtype, device="cpu")
        return room[:size].view(shape)


@contextmanager
def borrow_workspace() -> Iterator[Workspace]:
    """Lend this thread's rooms; whoever asks meanwhile, such as a finalizer, gets new ones.

    Example:
        >>> with borrow_workspace() as rooms:
        ...     with borrow_workspace() as others:
        ...         others is rooms
        False
    """
    rooms: Workspace | None = getattr(_own, "rooms", None)
    _own.rooms = None
    rooms = Workspace() if rooms is None else rooms
    yield rooms
    if rooms.bytes <= KEPT:
        _own.rooms = rooms
