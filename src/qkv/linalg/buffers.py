"""Scratch memory that the calls of one thread reuse, because the first access to a new page is slow.

glibc returns the top of its heap to the system when more than twice the largest block ever freed is free there. The
tiles of a call, a few tensors of one size, exceed that each time: 512 page faults for 2 MiB.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod

import torch
from torch import Tensor

from qkv.shapes import Shape

MAX_RETAINED = 1 << 23
"""The most bytes that a thread retains between calls."""

_of_thread = threading.local()


class Workspace:
    """Named buffers, each for one use at a time.

    Example:
        >>> workspace = Workspace()
        >>> workspace.take("weights", (2, 3), torch.float32).shape, workspace.bytes
        (torch.Size([2, 3]), 24)
    """

    def __init__(self) -> None:
        """Begin without buffers."""
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
    workspace: Workspace | None = getattr(_of_thread, "workspace", None)
    _of_thread.workspace = None
    workspace = Workspace() if workspace is None else workspace
    yield workspace
    if workspace.bytes <= MAX_RETAINED:
        _of_thread.workspace = workspace
