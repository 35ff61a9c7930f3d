"""Lines of text that are read as they stand, though few people mean to train on them."""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from qkv.data.choices import LineKind
from qkv.data.report import collecting, leaves_out, say
from qkv.errors import brief

T = TypeVar("T")
_ENTITY = re.compile(r"&(#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z]{2,8}\d{0,2});")
_FEW = 20
"""With fewer lines there is no usual script and no usual ratio of lengths."""
_SAMPLE = 2000
"""Texts from which the usual scripts are found, at equal distances."""
_RARE = 0.05
"""A script is unusual if it occurs in a smaller share of the texts."""
_RATIO = np.log(3.0)
"""The least deviation of a ratio of lengths from the usual one, and how many times the usual deviation: Hampel 1974."""
_DEVIATIONS = 6 * 1.4826
_SHORT = 10
"""Characters that are added to both lengths, so that a word more in a short line is nothing unusual."""
_LONGEST = 3


def without_odd_lines(
    name: str,
    items: Sequence[T],
    lines: Sequence[int],
    *columns: Sequence[str],
    paired: bool = False,
    repeats: bool = True,
) -> list[T]:
    """Report odd lines, and return the items without those that are to be left out.

    Args:
        name: where they come from, for the report.
        items: an item for each line.
        lines: its number.
        columns: its texts, by column.
        paired: whether the two columns are a text and its counterpart.
        repeats: whether repeated lines are odd.

    Example:
        >>> from qkv.data.report import Report
        >>> with Report(["duplicates"]) as report:
        ...     without_odd_lines("a.txt", "abc", [1, 2, 3], ["x", "b", "x"], ["y", "R&amp;D", "y"])
        ['a', 'b']
        >>> [(finding.kind, finding.lines, finding.example) for finding in report.findings]
        [('duplicates', (3,), '"x"'), ('entities', (2,), '"R&amp;D"')]
    """
    if not collecting():
        return list(items)
    dropped: set[int] = set()
    lengths = [np.fromiter(map(len, column), np.int64, len(items)) for column in columns]
    for kind, indices, shown in _odd(columns, lengths, paired, repeats):
        example = next((column[indices[0]] for column in shown if column[indices[0]].strip()), "") if indices else ""
        if leaves_out(kind, name, [lines[index] for index in indices], f'"{brief(example)}"'):
            dropped.update(indices)
    if len(items) > 1:
        total: NDArray[np.int64] = np.sum(lengths, axis=0)
        longest = np.argsort(-total, kind="stable")[:_LONGEST].tolist()
        listed = ", ".join(f"line {lines[index]:,} ({total[index]:,} characters)" for index in longest)
        say(f"{name}: {len(items):,} texts; the longest: {listed}")
    return [item for index, item in enumerate(items) if index not in dropped] if dropped else list(items)


def _odd(
    columns: Sequence[Sequence[str]], lengths: Sequence[NDArray[np.int64]], paired: bool, repeats: bool
) -> Iterator[tuple[LineKind, list[int], Sequence[Sequence[str]]]]:
    """Yield kinds, the indices of their lines, and the columns that show why the first one is odd."""
    if repeats:
        yield "duplicates", _duplicates(columns), columns
    if paired:
        source, target = columns
        same = [index for index, text in enumerate(source) if text == target[index]]
        yield "identical", same if 2 * len(same) <= len(source) else [], columns  # more of them are meant: copying
        yield "ratio", _of_unusual_ratio(*lengths), columns
    yield "entities", *_any_of(columns, _with_entity)
    yield "script", *_any_of(columns, _of_unusual_script)


def _any_of(
    columns: Sequence[Sequence[str]], find: Callable[[Sequence[str]], list[int]]
) -> tuple[list[int], list[Sequence[str]]]:
    """Return the indices of the lines that have such a text in any column, and the columns that the first has it in."""
    found = [find(column) for column in columns]
    indices = sorted({index for column in found for index in column})
    return indices, [text for text, column in zip(columns, found, strict=True) if column[:1] == indices[:1]]


def _duplicates(columns: Sequence[Sequence[str]]) -> list[int]:
    """Return the lines that are equal to an earlier one; few of them are compared, because hashes differ."""
    hashes = np.fromiter(map(hash, zip(*columns, strict=True)), np.int64, len(columns[0]))
    ordered = np.sort(hashes)
    several = ordered[1:][ordered[1:] == ordered[:-1]]
    seen, repeated = set[tuple[str, ...]](), []
    for index in np.flatnonzero(np.isin(hashes, several)).tolist():
        key = tuple(column[index] for column in columns)
        if key in seen:
            repeated.append(index)
        seen.add(key)
    return repeated


def _of_unusual_ratio(source: NDArray[np.int64], target: NDArray[np.int64]) -> list[int]:
    if len(source) < _FEW:
        return []
    ratio: NDArray[Any] = np.log((target + _SHORT) / (source + _SHORT))
    deviation = np.abs(ratio - np.median(ratio))
    odd: list[int] = np.flatnonzero(deviation > max(_RATIO, _DEVIATIONS * np.median(deviation))).tolist()
    return odd


def _with_entity(texts: Sequence[str]) -> list[int]:
    return [index for index, text in enumerate(texts) if "&" in text and _ENTITY.search(text) is not None]


@cache
def _script(letter: str) -> str:
    """Return the script of a letter, by the first word of its name in Unicode.

    Example:
        >>> _script("ж"), _script("東"), _script("s")
        ('CYRILLIC', 'CJK', 'LATIN')
    """
    return unicodedata.name(letter, "").partition(" ")[0]


def _of_unusual_script(texts: Sequence[str]) -> list[int]:
    """Return the texts that have letters, but none of a script that many texts have."""
    if len(texts) < _FEW:
        return []
    sample = texts[:: -(-len(texts) // _SAMPLE)]
    counts = Counter(script for text in sample for script in {_script(letter) for letter in text if letter.isalpha()})
    usual = {script for script, count in counts.items() if count >= _RARE * len(sample)}
    plain = "LATIN" in usual
    return [
        index
        for index, text in enumerate(texts)
        if not (plain and text.isascii()) and _first_script(text, usual) is not None
    ]


def _first_script(text: str, usual: set[str]) -> str | None:
    """Return the script of a text's first letter, or None if it has a letter of a usual script, or no letter."""
    first = None
    for letter in text:
        if letter.isalpha():
            script = _script(letter)
            if script in usual:
                return None
            first = first or script
    return first
