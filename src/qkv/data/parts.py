"""Splitting what comes one by one into parts, so that memory does not grow with its number and answers come early."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
_LARGEST = 1024
"""Maximum items of a part."""
_CHARACTERS = 1 << 20
"""A part ends once it has so many characters."""


def in_parts(items: Iterable[T], *, size: Callable[[T], int], line_buffered: bool = False) -> Iterator[list[T]]:
    """Split items into parts of 1, 2, 4, … 1,024; how fast they come does not matter.

    Args:
        items: lines or rows; read only as far as a part needs them.
        size: the characters of one; a part ends early once it has a million.
        line_buffered: whether each item is a part.

    Example:
        >>> [len(part) for part in in_parts("abcdefghij", size=len)]
        [1, 2, 4, 3]
    """
    part: list[T] = []
    most, characters = 1, 0
    for item in items:
        part.append(item)
        characters += size(item)
        if len(part) >= most or characters >= _CHARACTERS:
            yield part
            part, characters = [], 0
            most = 1 if line_buffered else min(2 * most, _LARGEST)
    if part:
        yield part
