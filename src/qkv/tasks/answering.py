"""Answering standard input part by part, so that memory does not grow with its length and answers come early."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import TypeVar

from qkv.data.parts import in_parts
from qkv.tasks.notes import working
from qkv.tasks.streams import stream_stdin

Part = TypeVar("Part", bound=Sized)
Answers = TypeVar("Answers", bound=Sized)


def parts_of_stdin(*, line_buffered: bool = False) -> Iterator[list[str]]:
    """Split standard input into parts, see `qkv.data.parts`; each line that is typed in a terminal is a part.

    Raises:
        DataError: a line is not UTF-8, or standard input cannot be read.
    """
    return in_parts(stream_stdin(), size=len, line_buffered=line_buffered or typed())


def typed() -> bool:
    """Whether standard input is a terminal."""
    return sys.stdin is not None and sys.stdin.isatty()


def answered(what: str, parts: Iterable[Part], answer: Callable[[Part, int], Answers]) -> Iterator[tuple[int, Answers]]:
    """Answer parts one after another, and report progress every ten seconds.

    Args:
        what: what is done, such as "translating".
        parts: the parts, each of some lines.
        answer: returns the answers to a part and takes the number of its first line.

    Returns:
        An iterator over the number of a part's first line, from 1, and its answers.

    Example:
        >>> list(answered("counting", ["a", "bc"], lambda part, first: [first + len(part)]))
        [(1, [2]), (2, [4])]
    """
    first = 1
    with working(what, endless=True) as work:
        remaining = iter(parts)
        while True:
            with work.waiting():
                part = next(remaining, None)
            if part is None:
                return
            yield first, answer(part, first)
            first += len(part)
