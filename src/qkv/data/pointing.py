"""Sequences of elements with target positions: numbers, vectors or words, and which of them to point at.

A line has elements separated by spaces: numbers (`0.3`), vectors of one width (`0.3,0.7`), or words. A target has the
positions of elements of its line, counted from 1, separated by spaces.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from qkv.data.corpus import Pair
from qkv.errors import DataError, error_message

Elements = Literal["numbers", "words"]
Vectors = np.ndarray[Any, np.dtype[np.float64]]
_LARGEST = 1e30
"""Larger numbers, and their squares, do not fit into the model's float32."""


class Pointed(NamedTuple):
    """A line of elements and the positions to point at.

    Attributes:
        elements: a vector per element (S, F), or a word.
        target: positions, from 1.
        line: line number in the file, from 1.
    """

    elements: Vectors | tuple[str, ...]
    target: tuple[int, ...]
    line: int


def kind_of(text: str) -> Elements:
    """Return what the elements of a line are: numbers if all of them are numbers or vectors.

    Example:
        >>> kind_of("0.3,0.7 1,2"), kind_of("3 blind mice")
        ('numbers', 'words')
    """
    try:
        for part in text.replace(",", " ").split():
            float(part)
    except ValueError:
        return "words"
    return "numbers"


def read_elements(text: str, kind: Elements, where: str, width: int | None = None) -> Vectors | tuple[str, ...]:
    """Read the elements of a line.

    Args:
        text: the line.
        kind: what its elements are.
        where: file and line, for messages.
        width: the numbers that each vector must have; None for those of the first.

    Returns:
        Vectors (S, F), or words.

    Raises:
        DataError: the line is empty, an element is not a finite number, or a vector has another width.

    Example:
        >>> read_elements("0.5,1 2,3", "numbers", "f:1").tolist()
        [[0.5, 1.0], [2.0, 3.0]]
    """
    parts = text.split()
    if not parts:
        raise DataError(error_message(where, "at least one element", "an empty line", "Fill it or delete the line."))
    if kind == "words":
        return tuple(parts)
    vectors = tuple(_vector(part, place, where) for place, part in enumerate(parts, start=1))
    expected = len(vectors[0]) if width is None else width
    for place, vector in enumerate(vectors, start=1):
        if len(vector) != expected:
            wanted = "a number" if expected == 1 else f"a vector of {expected} numbers"
            got = f"{len(vector)} in {parts[place - 1]!r}"
            hint = "All elements of all lines have the same width."
            raise DataError(error_message(where, f"{wanted} as element {place}", got, hint))
    return np.array(vectors)


def read_target(text: str, count: int, where: str) -> tuple[int, ...]:
    """Read the positions of a target.

    Args:
        text: positions separated by spaces.
        count: number of elements.
        where: file and line, for messages.

    Returns:
        Positions from 1.

    Raises:
        DataError: a position is not an integer, or is not that of an element.

    Example:
        >>> read_target("2 1", 2, "f:1")
        (2, 1)
    """
    positions = []
    for part in text.split():
        if not (part.isascii() and part.isdecimal() and 1 <= int(part[:12]) <= count):
            hint = "Positions count from 1." + (" Is this file counted from 0?" if part == "0" else "")
            expected = f"positions from 1 to {count}, the number of elements"
            raise DataError(error_message(where, expected, f'"{part[:40]}"', hint))
        positions.append(int(part))
    return tuple(positions)


def parse_pairs(
    pairs: Sequence[Pair], names: tuple[str, str], kind: Elements | None = None, width: int | None = None
) -> tuple[list[Pointed], Elements]:
    """Read elements and positions of all lines.

    Args:
        pairs: elements and target of each line.
        names: the files they come from, for messages.
        kind: what elements are; None for what those of the first line are.
        width: numbers per vector; None for that of the first line.

    Returns:
        The lines, and what their elements are.

    Raises:
        DataError: an element or a position is wrong; the message gives file and line.

    Example:
        >>> parse_pairs([Pair("big small", "2 1", 1)], ("f", "f"))
        ([Pointed(elements=('big', 'small'), target=(2, 1), line=1)], 'words')
    """
    known = kind_of(pairs[0].source) if kind is None else kind
    found = []
    for pair in pairs:
        elements = read_elements(pair.source, known, f"{names[0]}:{pair.line}", width)
        if width is None and known == "numbers":
            width = len(elements[0])
        found.append(Pointed(elements, read_target(pair.target, len(elements), f"{names[1]}:{pair.line}"), pair.line))
    return found, known


def _vector(part: str, place: int, where: str) -> tuple[float, ...]:
    try:
        numbers = tuple(float(number) for number in part.split(","))
    except ValueError:
        numbers = (math.nan,)
    if not all(abs(number) < _LARGEST for number in numbers) or "_" in part:
        hint = "Write vectors as 0.3,0.7 without spaces; if elements are words, say so with --elements words."
        raise DataError(error_message(where, f"a finite number as element {place}", f'"{part[:60]}"', hint))
    return numbers
