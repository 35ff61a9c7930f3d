"""Lines from standard input and to standard output, UTF-8 in any locale."""

import os
import sys
from collections.abc import Iterable
from typing import TextIO

from qkv.data.corpus import iterate_lines
from qkv.errors import DataError, error_message, harmless


def read_stdin() -> list[str]:
    """Read lines until the end of standard input.

    Raises:
        DataError: a line is not UTF-8 (the message gives its number), or standard input cannot be read.
    """
    try:
        return list(iterate_lines(_open(sys.stdin).buffer, "standard input"))
    except OSError as error:
        got, hint = error.strerror or str(error), "Give it a file: `< FILE`, or a pipe."
        raise DataError(error_message("standard input", "lines of text", got, hint)) from None


def write_lines(lines: Iterable[str]) -> None:
    """Write lines to standard output and flush it.

    Raises:
        DataError: it cannot be written.
    """
    write_text(["".join(line.replace("\n", " ") + "\n" for line in lines)])


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
        except BrokenPipeError:
            raise  # the reader has closed the pipe: not an error
        except OSError as error:
            _forget()
            got, hint = error.strerror or str(error), "Free some space, or write to another file."
            raise DataError(error_message("standard output", "enough space for the output", got, hint)) from None


def _open(stream: TextIO | None) -> TextIO:
    """Return a standard stream; Python has none if the shell closed it.

    Raises:
        OSError: it is closed.
    """
    if stream is None:
        raise OSError("a closed one")
    return stream


def _forget() -> None:
    """Redirect the stream to nowhere, or Python would try to write the rest again at exit."""
    if sys.stdout is not None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
