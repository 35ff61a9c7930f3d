"""Sequences of elements with target positions: numbers, vectors or words, and which of them to point at.

A line has elements separated by spaces: numbers (`0.3`), vectors of one width (`0.3,0.7`), or words. A target has the
positions of elements of its line, counted from 1, separated by spaces.
"""

import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from qkv.data.choices import Elements
from qkv.data.corpus import Pair
from qkv.data.hints import number_hint, seems
from qkv.data.report import expect_some_left, refuse
from qkv.data.words import split_words
from qkv.errors import DataError, Place, brief, setting

Vectors = np.ndarray[Any, np.dtype[np.float64]]
_NUMERIC = re.compile(r"[-+\d.,;:()\[\]{}| ]*\d[-+\d.,;:()\[\]{}| ]*")
"""Lines of digits and punctuation."""
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
        for part in split_words(text.replace(",", " ")):
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
    parts = split_words(text)
    if not parts:
        raise DataError(where, "at least one element", "an empty line", "Fill it or delete the line.")
    if kind == "words":
        return tuple(parts)
    vectors = tuple(_vector(part, number, where) for number, part in enumerate(parts, start=1))
    expected = len(vectors[0]) if width is None else width
    for number, vector in enumerate(vectors, start=1):
        if len(vector) != expected:
            width_text = "a number" if expected == 1 else f"a vector of {expected} numbers"
            got = f"{len(vector)} in {parts[number - 1]!r}"
            hint = "All elements of all lines have the same width."
            raise DataError(where, f"{width_text} as element {number}", got, hint)
    return np.array(vectors)


def read_target(text: str, count: int, where: str, elements: str | None = None) -> tuple[int, ...]:
    """Read the positions of a target.

    Args:
        text: positions separated by spaces.
        count: number of elements.
        where: file and line, for messages.
        elements: the line of elements, for messages.

    Returns:
        Positions from 1.

    Raises:
        DataError: a position is not an integer, or is not that of an element.

    Example:
        >>> read_target("2 1", 2, "f:1")
        (2, 1)
    """
    positions = []
    for part in split_words(text):
        if not (part.isascii() and part.isdecimal() and 1 <= int(part[:12]) <= count):
            is_element = elements is not None and part in split_words(elements)
            known = seems(part, "position") if part == "0" or not is_element else None
            hint = "Positions count from 1." + ("" if known is None else f" {known[1]}")
            if is_element:
                hint += " The target seems to hold elements: write their positions."
            expected = f"positions from 1 to {count}, the number of elements"
            raise DataError(where, expected, f'"{part[:40]}"', hint)
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
    elements_kind = kind_of(pairs[0].source) if kind is None else kind
    items = []
    _expect_elements(pairs, names, kind)
    for pair in pairs:
        try:
            elements = read_elements(pair.source, elements_kind, Place(names[0], pair.line), width)
            target = read_target(pair.target, len(elements), Place(names[1], pair.line), pair.source)
        except DataError as error:
            refuse("invalid", error)
            continue
        if width is None and elements_kind == "numbers":
            width = len(elements[0])
        items.append(Pointed(elements, target, pair.line))
    if not items:
        expect_some_left()
    return items, elements_kind


def coordinates_message(items: Sequence[Pointed]) -> str | None:
    """Say that numbers seem to be coordinates x y x y …: positions name half of them at most, and return to the first.

    Example:
        >>> triangle = Pointed(np.arange(6.0)[:, None], (1, 2, 3, 1), 1)
        >>> coordinates_message([triangle])[:40], coordinates_message([triangle._replace(target=(1, 6, 1))])
        ('numbers seem to be coordinates x y x y …', None)
    """
    for elements, target, _ in items:
        scalar = isinstance(elements, np.ndarray) and elements.shape[1] == 1
        closes = len(target) > 2 and target[0] == target[-1]
        if not scalar or len(elements) % 2 or not closes or 2 * max(target) > len(elements):
            return None
    return (
        "numbers seem to be coordinates x y x y …, each of which is an element: write vectors as x,y, and omit the "
        "position that closes the path."
    )


def _expect_elements(pairs: Sequence[Pair], names: tuple[str, str], kind: Elements | None) -> None:
    """Refuse files whose elements and positions are exchanged, or whose numbers would be words.

    Raises:
        DataError: they are.
    """
    first = pairs[0]
    exchanged = all(_is_target(pair.source, pair.target) for pair in pairs)
    if exchanged and not all(_is_target(pair.target, pair.source) for pair in pairs):
        got = f'"{brief(first.source)}", positions of "{brief(first.target)}", and so in every line'
        hint = "Exchange the two columns, or " + setting("source") + " and " + setting("target")
        hint += ". Positions count from 1."
        raise DataError(Place(names[0]), "the elements first and the positions second", got, hint)
    if kind is None and kind_of(first.source) == "words" and _NUMERIC.fullmatch(first.source):
        hint = "Write numbers as 0.3 1.5, vectors as 0.3,0.7 1,2; if elements are words, say so with "
        hint += setting("elements", "words") + "."
        raise DataError(Place(names[0], first.line), "numbers or words", f'"{brief(first.source)}"', hint)


def _is_target(positions: str, elements: str) -> bool:
    """Whether a text has positions of the elements of another."""
    count, parts = len(split_words(elements)), split_words(positions)
    return bool(parts) and all(part.isascii() and part.isdecimal() and 1 <= int(part[:12]) <= count for part in parts)


def _vector(part: str, position: int, where: str) -> tuple[float, ...]:
    try:
        numbers = tuple(float(number) for number in part.split(","))
    except ValueError:
        numbers = (math.nan,)
    if not all(abs(number) < _LARGEST for number in numbers) or "_" in part:
        words = "if elements are words, say so with " + setting("elements", "words") + "."
        advice = next(
            (hint for number in part.split(",") if (hint := number_hint(number, _LARGEST)) and not _is_number(number)),
            None,
        )
        hint = (f"{advice} Or " if advice else "Write vectors as 0.3,0.7 without spaces; ") + words
        raise DataError(where, f"a finite number as element {position}", f'"{part[:60]}"', hint)
    return numbers


def _is_number(text: str) -> bool:
    try:
        return abs(float(text)) < _LARGEST
    except ValueError:
        return False
