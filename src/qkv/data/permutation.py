"""A random order of numbered items that is computed, not stored: any part of it, at any time, from a key."""

from hashlib import sha256
from typing import final

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.uint64]
_ROUNDS = 8
_BLOCK = 1024
"""Positions that are computed at once, since NumPy takes as long for one of them."""
_GOLDEN, _FIRST, _SECOND = (np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


@final
class Permutation:
    """A keyed permutation of 0 to `size` - 1 in constant memory.

    A Feistel network permutes the numbers of as many bits as `size` - 1 has; a result beyond `size` is permuted again
    until it is within (cycle walking), fewer than two rounds on average.

    Args:
        size: how many items there are, at least 1.
        key: any text; another key gives another order.

    Source: Black and Rogaway 2002, "Ciphers with arbitrary finite domains", section 3; the mixing function is that of
        Steele et al. 2014, "Fast splittable pseudorandom number generators".

    Example:
        >>> order = Permutation(10, "a key")
        >>> sorted(order.at(0, 10).tolist()) == list(range(10)), bool((order.at(3, 5) == order.at(0, 10)[3:5]).all())
        (True, True)
    """

    def __init__(self, size: int, key: str) -> None:
        bits = max(2, (size - 1).bit_length())
        self.size = size
        self._low = np.uint64(bits // 2)
        self._masks = [np.uint64((1 << count) - 1) for count in (bits - bits // 2, bits // 2)]
        digest = b"".join(sha256(f"{key}:{part}".encode()).digest() for part in range(_ROUNDS // 4))
        self._keys = np.frombuffer(digest, "<u8")
        self._block = 0, self._computed(0, 0)

    def at(self, start: int, stop: int) -> Numbers:
        """Return the items at the positions from `start` to before `stop`."""
        first, items = self._block
        if not first <= start <= stop <= first + len(items):
            first, items = start, self._computed(start, max(stop, start + _BLOCK))
            self._block = first, items
        return items[start - first : stop - first].copy()

    def _computed(self, start: int, stop: int) -> Numbers:
        items = self._permuted(np.arange(start, min(stop, self.size), dtype=np.uint64))
        while (outside := np.flatnonzero(items >= self.size)).size:
            items[outside] = self._permuted(items[outside])
        return items

    def _permuted(self, numbers: Numbers) -> Numbers:
        high, low = self._masks
        halves = [numbers >> self._low, numbers & low]
        for number, key in enumerate(self._keys):
            changed = number % 2
            halves[changed] = halves[changed] ^ (_mixed(halves[1 - changed] + key) & (low if changed else high))
        permuted: Numbers = (halves[0] << self._low) | halves[1]
        return permuted


def _mixed(numbers: Numbers) -> Numbers:
    """Spread every bit over all 64; arrays wrap around without a warning."""
    numbers = numbers + _GOLDEN
    numbers = (numbers ^ (numbers >> np.uint64(30))) * _FIRST
    numbers = (numbers ^ (numbers >> np.uint64(27))) * _SECOND
    mixed: Numbers = numbers ^ (numbers >> np.uint64(31))
    return mixed
