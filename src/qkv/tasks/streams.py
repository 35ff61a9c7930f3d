"""Lines from standard input and to standard output, UTF-8 whatever the machine's locale."""

import sys
from collections.abc import Iterable
from typing import BinaryIO

from qkv.data.corpus import iterate_lines


def read_stdin() -> list[str]:
    """Read lines until the end of standard input.

    Raises:
        DataError: a line is no UTF-8; names its number.
    """
    return list(iterate_lines(sys.stdin.buffer, "standard input"))


def write_lines(lines: Iterable[str]) -> None:
    """Write lines to standard output and flush it."""
    out: BinaryIO = sys.stdout.buffer
    out.write("".join(line.replace("\n", " ") + "\n" for line in lines).encode("utf-8"))
    out.flush()


def write_text(pieces: Iterable[str]) -> None:
    """Write pieces of a text to standard output, each as soon as it is there."""
    out: BinaryIO = sys.stdout.buffer
    for piece in pieces:
        out.write(piece.encode("utf-8"))
        out.flush()
