"""Lines from standard input and to standard output, UTF-8 whatever the machine's locale."""

import os
import sys
from collections.abc import Iterable
from typing import TextIO

from qkv.data.corpus import iterate_lines
from qkv.errors import DataError, error_message, harmless


def read_stdin() -> list[str]:
    """Read lines until the end of standard input.

    Raises:
        DataError: a line is no UTF-8; names its number. Or standard input cannot be read.
    """
    try:
        return list(iterate_lines(_open(sys.stdin).buffer, "standard input"))
    except OSError as error:
        got, hint = error.strerror or str(error), "Give it a file: `< FILE`, or a pipe."
        raise DataError(error_message("standard input", "lines of text", got, hint)) from None


def write_lines(lines: Iterable[str]) -> None:
    """Write lines to standard output and flush it.

    Raises:
        DataError: it cannot be written to.
    """
    write_text(["".join(line.replace("\n", " ") + "\n" for line in lines)])


def write_text(pieces: Iterable[str]) -> None:
    """Write pieces of a text to standard output, each as soon as it is there.

    A file or a pipe gets every character as it is, also of file names that are no UTF-8; a terminal none that it would
    obey.

    Raises:
        DataError: it cannot be written to.
    """
    for piece in pieces:
        try:
            out = _open(sys.stdout)
            out.buffer.write((harmless(piece) if out.isatty() else piece).encode("utf-8", "surrogateescape"))
            out.buffer.flush()
        except BrokenPipeError:
            raise  # whoever reads has enough: no fault
        except OSError as error:
            _forget()
            got, hint = error.strerror or str(error), "Free some space, or write to another file."
            raise DataError(error_message("standard output", "room for what is written", got, hint)) from None


def _open(stream: TextIO | None) -> TextIO:
    """A standard stream; Python has none where the shell closed it.

    Raises:
        OSError: it is closed.
    """
    if stream is None:
        raise OSError("a closed one")
    return stream


def _forget() -> None:
    """What could not be written is written to nowhere, or Python would try again at the end."""
    if sys.stdout is not None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
