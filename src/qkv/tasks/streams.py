"""Lines from standard input and to standard output, UTF-8 in any locale."""

import csv
import dataclasses
import errno
import io
import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from torch import Tensor

from qkv.data.corpus import iterate_lines
from qkv.errors import DataError, Place, harmless
from qkv.system import forget_stdout, is_closed_pipe
from qkv.tasks.notes import as_json


def stream_stdin() -> Iterator[str]:
    """Yield each line of standard input as soon as it is there.

    Raises:
        DataError: a line is not UTF-8 (the message gives its number), or standard input cannot be read.
    """
    try:
        yield from iterate_lines(_open(sys.stdin).buffer, "standard input")
    except OSError as error:
        got, hint = error.strerror or str(error), "Give it a file: `< FILE`, or a pipe."
        raise DataError(Place("standard input"), "lines of text", got, hint) from None


def write_lines(lines: Iterable[str]) -> None:
    """Write lines to standard output and flush it.

    Raises:
        DataError: it cannot be written.
    """
    write_text([format_lines(lines)])


def format_lines(lines: Iterable[str]) -> str:
    """Return lines as one text; a line feed within one becomes a space."""
    return "".join(line.replace("\n", " ") + "\n" for line in lines)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows of a table as lines with aligned columns.

    Example:
        >>> aligned([("run", "best"), ("runs/films", "91 %")])
        ['run         best', 'runs/films  91 %']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Return the rows of a table as CSV.

    Example:
        >>> csv_text([("area", "rent"), (25, 410.5)])
        'area,rent\\n25,410.5\\n'
    """
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    return buffer.getvalue()


def write_json(rows: Iterable[Mapping[str, object]]) -> None:
    """Write objects as JSON, each on a line of its own as soon as it is available; numbers that JSON lacks are null.

    Raises:
        DataError: standard output cannot be written.
    """
    write_text(format_json(rows))


def write(objects: Iterable[Mapping[str, object]], lines: Iterable[str]) -> None:
    """Write results to standard output: objects as JSON if the user asked for it, else lines, which can be none.

    Raises:
        DataError: standard output cannot be written.
    """
    if as_json():
        write_json(objects)
    else:
        write_lines(lines)


def format_json(rows: Iterable[Mapping[str, object]]) -> Iterator[str]:
    """Yield objects as JSON, each on a line of its own; numbers that JSON lacks are null.

    Example:
        >>> list(format_json([{"line": 1, "score": float("nan")}]))
        ['{"line": 1, "score": null}\\n']
    """
    return (json.dumps(finite(row), ensure_ascii=False, allow_nan=False) + "\n" for row in rows)


def fields_of(result: Any) -> dict[str, object]:
    """Return the fields of a dataclass by name, for JSON, without those that are None.

    Example:
        >>> from qkv.metrics.figure import Figure
        >>> fields_of(Figure("bleu", 28.5, "case:lc"))
        {'name': 'bleu', 'value': 28.5, 'signature': 'case:lc', 'higher_is_better': True}
    """
    items = ((field.name, getattr(result, field.name)) for field in dataclasses.fields(result))
    return {name: item for name, item in items if item is not None}


def format_results(results: Iterable[object], first: int = 1) -> Iterator[str]:
    """Yield the result of each line as JSON, with the line's number.

    Args:
        results: one for each line.
        first: the number of the first line.
    """
    return format_json({"line": number, **fields_of(result)} for number, result in enumerate(results, start=first))


def finite(item: object) -> object:
    """Return a value for JSON: null for infinities and NaN, lists for tuples and tensors, text for paths.

    Example:
        >>> finite({"loss": float("nan"), "at": Path("runs"), "weights": (1.0, 0.5)})
        {'loss': None, 'at': 'runs', 'weights': [1.0, 0.5]}
    """
    match item:
        case float():
            return item if math.isfinite(item) else None
        case Path():
            return str(item)
        case Mapping():
            return {str(name): finite(value) for name, value in item.items()}
        case Tensor():
            return finite(item.tolist())
        case list() | tuple():
            return [finite(value) for value in item]
    return item


def write_text(pieces: Iterable[str]) -> None:
    """Write pieces of a text to standard output, each as soon as it is available.

    A file or a pipe gets every character unchanged, even of file names that are not UTF-8; a terminal gets control
    characters escaped.

    Raises:
        DataError: it cannot be written.
    """
    for piece in pieces:
        try:
            out = _open(sys.stdout)
            out.buffer.write((harmless(piece) if out.isatty() else piece).encode("utf-8", "surrogateescape"))
            out.buffer.flush()
        except OSError as error:
            if is_closed_pipe(error):  # closed by its reader, which is not an error
                raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)) from None
            forget_stdout()
            got, hint = error.strerror or str(error), "Free some space, or write to another file."
            raise DataError("standard output", "enough space for the output", got, hint) from None


def _open(stream: TextIO | None) -> TextIO:
    """Return a standard stream; Python has none if the shell closed it.

    Raises:
        OSError: it is closed.
    """
    if stream is None:
        raise OSError("a closed one")
    return stream
