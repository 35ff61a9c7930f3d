"""Memory that glibc keeps after it was freed: an aligned block that a small one lies behind fits no later request.

Tiles whose graph PyTorch records leave such small blocks between large ones, and the heap then grows by about a tile's
size with each tile, although nothing large is alive: 0.9 MiB a tile of 0.3 MiB, 2.9 GiB at 16,384 × 16,384. The places
that a mask is asked about do the same: 0.4 to 1 GiB there.
"""

import ctypes
from collections.abc import Callable
from functools import lru_cache
from typing import Any

RELEASE_EVERY = 1 << 22
"""After so many numbers of tiles, free pages are given back: 16 MiB of float32."""


class Release:
    """Gives free pages of the heap back to the system now and then.

    Example:
        >>> release = Release()
        >>> release.after(100)
        >>> release.passed
        100
    """

    def __init__(self) -> None:
        """Begin to count."""
        self.passed = 0

    def after(self, numbers: int) -> None:
        """Count a tile; give pages back where enough has passed.

        Args:
            numbers: how many pairs the tile holds.
        """
        self.passed += numbers
        if self.passed >= RELEASE_EVERY:
            self.passed = 0
            _trim()(0)


@lru_cache(maxsize=1)
def _trim() -> Callable[[int], Any]:
    """Give glibc's malloc_trim, or nothing where another allocator serves."""
    try:
        trim: Callable[[int], Any] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return lambda _: None
    return trim
