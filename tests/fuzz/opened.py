"""Detects which files in a folder are opened, by any library: the kernel's own notification (inotify)."""

import ctypes
import os
import struct
from pathlib import Path

_OPEN = 0x20
_HEADER = struct.Struct("iIII")


class Watch:
    """Reports every file opened in a folder, and the folder itself.

    Args:
        folder: the folder; its own files, not subfolders.
    """

    def __init__(self, folder: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._handle = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._handle < 0 or libc.inotify_add_watch(self._handle, os.fsencode(folder), _OPEN) < 0:
            raise OSError(ctypes.get_errno(), "inotify")

    def seen(self) -> list[str]:
        """Names opened since the last call."""
        try:
            data = os.read(self._handle, 65536)
        except BlockingIOError:
            return []
        names = []
        while data:
            length = _HEADER.unpack_from(data)[3]
            names.append(data[_HEADER.size : _HEADER.size + length].rstrip(b"\0").decode(errors="replace"))
            data = data[_HEADER.size + length :]
        return names
