"""Return freed memory to the system, because glibc's heap fragments when small blocks lie between large aligned ones.

A freed aligned block with a small block behind it fits no later request. Tiles whose graph PyTorch records leave such
small blocks, and the heap grows by about a tile with each tile, although nothing large is alive: 0.9 MiB per tile of
0.3 MiB, 2.9 GiB at 16,384 × 16,384. The index tensors that a mask is evaluated on do the same: 0.4 to 1 GiB there.
"""

import ctypes
import mmap
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, final

RELEASE_EVERY = 1 << 22
"""Elements of tiles after which free pages are returned: 16 MiB of float32."""
GROWTH = 1 << 27
"""Bytes by which memory may grow before free pages are returned, which the next update touches again."""
_PAGES = Path("/proc/self/statm")


class Release:
    """Returns the free pages of the heap to the system after every `RELEASE_EVERY` elements.

    Example:
        >>> release = Release()
        >>> release.after(100)
        >>> release.passed
        100
    """

    def __init__(self) -> None:
        """Start counting at zero."""
        self.passed = 0

    def after(self, numbers: int) -> None:
        """Count a tile, and return free pages if it is time.

        Args:
            numbers: the number of pairs in the tile.
        """
        self.passed += numbers
        if self.passed >= RELEASE_EVERY:
            self.passed = 0
            _trim()(0)


@final
class GrowthLimit:
    """Returns the free pages of the heap to the system when a loop's memory has grown by `GROWTH`.

    Batches of ever new sizes leave free blocks that no later tensor fits: what oneDNN and PyTorch remember of each size
    lies between them. Training a model of 3.5 million parameters grew the process from 1.5 to 4.4 GiB in 200 updates.

    Args:
        resident: returns the bytes of this process in memory; None where the system does not say.

    Example:
        >>> limit = GrowthLimit()
        >>> for _ in range(3):
        ...     limit.after_pass()
    """

    def __init__(self, resident: "Callable[[], int | None] | None" = None) -> None:
        """Start without a pass."""
        self._resident = resident or resident_bytes
        self._least: int | None = None

    def after_pass(self) -> None:
        """Compare with the least memory after any pass since pages were returned, and return them if it is time."""
        now = self._resident()
        if now is None:
            return
        if self._least is not None and now > self._least + GROWTH:
            self.release()
        else:
            self._least = now if self._least is None else min(now, self._least)

    def release(self) -> None:
        """Return free pages now; the next pass shows how much memory a pass takes."""
        _trim()(0)
        self._least = None


def resident_bytes() -> int | None:
    """Return the bytes of this process in memory, without what is swapped out; None where the system does not say.

    Example:
        >>> (resident_bytes() or 2**24) > 2**20
        True
    """
    try:
        return int(_PAGES.read_text(encoding="ascii").split()[1]) * mmap.PAGESIZE
    except (OSError, ValueError, IndexError):
        return None


@lru_cache(maxsize=1)
def _trim() -> Callable[[int], Any]:
    """Return glibc's malloc_trim, or a function that does nothing if the C library has none."""
    try:
        trim: Callable[[int], Any] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return lambda _: None
    return trim
