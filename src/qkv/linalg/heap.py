"""Return freed memory to the system, because glibc's heap fragments when small blocks lie between large aligned ones.

A freed aligned block with a small block behind it fits no later request. Tiles whose graph PyTorch records leave such
small blocks, and the heap grows by about a tile with each tile, although nothing large is alive: 0.9 MiB per tile of
0.3 MiB, 2.9 GiB at 16,384 × 16,384. The index tensors that a mask is evaluated on do the same: 0.4 to 1 GiB there.
"""

import ctypes
from collections.abc import Callable
from functools import lru_cache
from typing import Any

RELEASE_EVERY = 1 << 22
"""Elements of tiles after which free pages are returned: 16 MiB of float32."""


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


@lru_cache(maxsize=1)
def _trim() -> Callable[[int], Any]:
    """Return glibc's malloc_trim, or a function that does nothing if the C library has none."""
    try:
        trim: Callable[[int], Any] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return lambda _: None
    return trim
