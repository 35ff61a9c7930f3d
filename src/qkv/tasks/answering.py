"""Answering standard input part by part, so that memory does not grow with its length and answers come early."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from qkv.data.corpus import in_parts
from qkv.errors import DataError
from qkv.settings import as_dict
from qkv.system import stdin_is_terminal
from qkv.tasks.drawing import Drawable, Drawing, alignments
from qkv.tasks.notes import as_json, note, working
from qkv.tasks.streams import fields_of, format_lines, format_results, stream_stdin
from qkv.tasks.tokenizing import UnknownCounter

Part = TypeVar("Part", bound=Sized)
Results = TypeVar("Results", bound=Sized)
A = TypeVar("A", bound=Drawable)
Lines = list[str]
STDIN = "standard input"


class Texts(Protocol):
    """Answers parts of lines, and returns what is written, piece by piece."""

    def __call__(self, parts: Iterable[Lines], file: Path | None = None, /) -> Iterator[str]:
        """Answer.

        Args:
            parts: the lines of a file or of standard input, in parts; not read by tasks that answer something else.
            file: where they come from; None for standard input.

        Raises:
            DataError: a line cannot be answered; the message names the file and the line.
        """


class Answers(NamedTuple):
    """A trained model with the settings of a command that answers; each task's `open_answers` returns one.

    Attributes:
        texts: answers.
        drawing: draws the attention.
        tabs: whether lines may have columns; otherwise the first tab is reported.
        examples: what is answered if nothing is given.
        requested: answers the inputs of a request, each as the command with --json does; takes them and the table
            `requests` of the task's settings. None for a task that is not served.
        streamed: answers one input of a request piece by piece; None for a task whose answers come whole.
    """

    texts: Texts
    drawing: Drawing
    tabs: bool = False
    examples: Sequence[str] = ()
    requested: Callable[[Sequence[Any], Any], Sequence[Mapping[str, object]]] | None = None
    streamed: Callable[[str, Any], Iterator[str]] | None = None


def parts_of_stdin(*, line_buffered: bool = False, tabs: bool = False) -> Iterator[list[str]]:
    """Split standard input into parts, see `qkv.data.corpus`; each line that is typed in a terminal is a part.

    Args:
        line_buffered: whether each line is a part.
        tabs: whether lines may have columns; otherwise the first tab is reported.

    Raises:
        DataError: a line is not UTF-8, or standard input cannot be read.
    """
    lines = stream_stdin() if tabs else reporting_tabs(stream_stdin(), STDIN)
    return in_parts(lines, size=len, line_buffered=line_buffered or stdin_is_terminal())


def reporting_tabs(lines: Iterable[str], name: str) -> Iterator[str]:
    """Yield lines, and report the first tab: training files have columns, but here a whole line is one text.

    Args:
        lines: the lines.
        name: where they come from.

    Example:
        >>> list(reporting_tabs(["good a film"], "films.txt"))
        ['good a film']
    """
    is_reported = False
    for number, line in enumerate(lines, start=1):
        if not is_reported and "\t" in line.strip():
            note(f"qkv: {name}:{number}: a tab, read as a space: `cut -f1`, or -f2, takes one column of a table.")
            is_reported = True
        yield line


def line_answers(
    what: str,
    answer: Callable[..., Sequence[A]],
    as_lines: Callable[[A], Iterable[str]],
    drawing: Drawing,
    unknown: Callable[[], UnknownCounter],
    tokens: Callable[[A], Sequence[int] | Sequence[str]],
) -> Answers:
    """Return what answers the lines of files, draws the attention, and reports unknown tokens.

    Args:
        what: what is done, such as "translating".
        answer: returns the answers to some lines; it also takes `attention`, whether they are to have their weights,
            `first`, the number of the first line, and the settings of a request.
        as_lines: writes an answer as lines; if the user asked for JSON, its fields are written instead.
        drawing: draws the answers.
        unknown: returns a counter, for each file.
        tokens: returns the tokens of an answer that are counted.
    """

    def texts(parts: Iterable[Lines], file: Path | None = None) -> Iterator[str]:
        counter = unknown()
        attend = partial(answer, attention=drawing.active)
        for first, answers in answered(what, parts, lambda lines, first: attend(lines, first=first), file):
            counter.add(map(tokens, answers))
            if as_json():
                yield from format_results(answers, first)
            else:
                yield format_lines(line for result in answers for line in as_lines(result))
            drawing.add(alignments(answers))
        counter.report(file)

    def requested(lines: Sequence[str], request: Any) -> list[Mapping[str, object]]:
        return list(map(fields_of, answer(lines, **as_dict(request))))

    return Answers(texts, drawing, requested=requested)


def answered(
    what: str, parts: Iterable[Part], answer: Callable[[Part, int], Results], file: Path | None = None
) -> Iterator[tuple[int, Results]]:
    """Answer parts one after another, and report progress every ten seconds.

    Args:
        what: what is done, such as "translating".
        parts: the parts, each of some lines.
        answer: returns the answers to a part and takes the number of its first line.
        file: where the parts come from; None for standard input.

    Returns:
        An iterator over the number of a part's first line, from 1, and its answers.

    Raises:
        DataError: a line cannot be answered; the message names the file and the line.

    Example:
        >>> list(answered("counting", ["a", "bc"], lambda part, first: [first + len(part)]))
        [(1, [2]), (2, [4])]
    """
    first = 1
    with working(what if file is None else f"{what} {file}", endless=True) as work:
        remaining = iter(parts)
        while True:
            with work.waiting():
                part = next(remaining, None)
            if part is None:
                return
            try:
                answers = answer(part, first)
            except DataError as error:
                raise error if error.line is None else error.in_file(file or STDIN) from None
            yield first, answers
            first += len(part)
