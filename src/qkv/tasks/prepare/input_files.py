"""Text files in blocks of whole lines, as bytes: what a preparation divides among processes."""

import io
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast, final

from qkv.checkpoint.manifest import StoredFile
from qkv.data.corpus import LONGEST_LINE, open_text, refuse_unequal, too_long
from qkv.errors import ConfigError, DataError, Place

LONGEST_JSON = 16 * LONGEST_LINE
"""Maximum characters of a line of JSON, which can be a document."""
_OBJECTS = (".jsonl", ".ndjson")
_WIDEST = 4
_CHUNK = 1 << 20
_BLANK = "text", "empty lines only"


class LineBlock(NamedTuple):
    """Whole lines of a file, or the same lines of two files.

    Attributes:
        files: the file, or that of the sources and that of the targets.
        first: the number of the first line in the file.
        line: the number of the first line, counted over all files.
        lines: how many lines there are.
        bodies: the bytes of the lines, of each file.
    """

    files: tuple[str, ...]
    first: int
    line: int
    lines: int
    bodies: tuple[bytes, ...]

    @property
    def size(self) -> int:
        """How many bytes there are."""
        return sum(map(len, self.bodies))

    def split(self, count: int) -> "tuple[LineBlock, LineBlock]":
        """Divide the block after some lines."""
        cuts = [_after_lines(body, count) for body in self.bodies]
        before = tuple(body[:cut] for body, cut in zip(self.bodies, cuts, strict=True))
        after = tuple(body[cut:] for body, cut in zip(self.bodies, cuts, strict=True))
        remaining = self._replace(
            first=self.first + count, line=self.line + count, lines=self.lines - count, bodies=after
        )
        return self._replace(lines=count, bodies=before), remaining


def _after_lines(body: bytes, count: int) -> int:
    position = 0
    for _ in range(count):
        position = body.index(b"\n", position) + 1
    return position


def is_objects(name: str) -> bool:
    """Return whether a file has JSON on each line.

    Example:
        >>> is_objects("a.jsonl.gz"), is_objects("a.json.txt")
        (True, False)
    """
    return name.removesuffix(".gz").endswith(_OBJECTS)


@final
@dataclass(frozen=True)
class InputFiles:
    """The files of a corpus.

    Args:
        files: each file alone, or one pair of files with corresponding lines.
    """

    files: tuple[tuple[Path, ...], ...]

    @property
    def documents(self) -> bool:
        """Whether files hold JSON objects.

        Raises:
            ConfigError: some do, others do not.
        """
        objects = [is_objects(str(file)) for files in self.files for file in files]
        if any(objects) and not all(objects):
            hint = "Prepare them apart, or convert some of them."
            raise ConfigError("FILES", "all of them text, or all of them JSON lines", "both", hint)
        return any(objects)

    def blocks(self, size: int, sums: dict[str, StoredFile] | None = None) -> Iterator[LineBlock]:
        """Read all files in blocks of at least a size.

        Args:
            size: bytes of a block's first file, without the rest of its last line.
            sums: gets size and sha256 of each file that was read, by its number and name.

        Raises:
            DataError: a file cannot be read, is empty or blank, has a line that is too long, or two files have other
                numbers of lines.
        """
        line, number = 1, 0
        sums = {} if sums is None else sums
        for files in self.files:
            names = [f"{number + position} {file.name}" for position, file in enumerate(files, start=1)]
            number += len(files)
            before, blank = line, True
            for block in _read_files(files, size, line, names, sums):
                blank = blank and not any(map(_has_text, block.bodies))
                yield block
                line += block.lines
            if blank:
                expected, got = ("at least one line", "an empty file") if line == before else _BLANK
                raise DataError(Place(files[0]), expected, got, "Check how the file was made.")


def _read_files(
    files: Sequence[Path], size: int, line: int, names: Sequence[str], summed: dict[str, StoredFile]
) -> Iterator[LineBlock]:
    """Read one file, or two with corresponding lines, and record their sums at the end."""
    with ExitStack() as stack:
        sums = [_Checksum() for _ in files]
        streams = [stack.enter_context(open_text(file, add.wrap)) for file, add in zip(files, sums, strict=True)]
        first = 1
        while lines := _lines_of(streams[0], size, files[0], first):
            count = _count(lines)
            bodies = [lines]
            for stream, file in zip(streams[1:], files[1:], strict=True):
                bodies.append(_read_lines(stream, count, files[0], file, first))
                if (count_of_others := _count(bodies[-1])) < count:
                    refuse_unequal(
                        files[0], first - 1 + count + _count_remaining(streams[0]), file, first - 1 + count_of_others
                    )
            yield LineBlock(tuple(map(str, files)), first, line, count, tuple(bodies))
            first, line = first + count, line + count
        for stream, file in zip(streams[1:], files[1:], strict=True):
            if unread := _count_remaining(stream):
                refuse_unequal(files[0], first - 1, file, first - 1 + unread)
        summed |= {name: StoredFile(add.size, add.digest.hexdigest()) for name, add in zip(names, sums, strict=True)}


def _lines_of(stream: BinaryIO, size: int, file: Path, first: int) -> bytes:
    """Read at least a number of bytes, up to the end of a line."""
    limit = _longest_bytes(file)
    body = stream.read(size)
    if body and not body.endswith(b"\n"):
        line_end = stream.readline(limit)
        if len(line_end) == limit and not line_end.endswith(b"\n"):
            raise too_long(Place(file, first + body.count(b"\n")), longest_line(str(file)))
        body += line_end
    return body


def _read_lines(stream: BinaryIO, count: int, source: Path, file: Path, first: int) -> bytes:
    """Read a number of lines, or all that are left."""
    limit, lines = _longest_bytes(file), []
    for number in islice(range(first, first + count), count):
        line = stream.readline(limit)
        if len(line) == limit and not line.endswith(b"\n"):
            raise too_long(Place(file, number), longest_line(str(file)))
        if not line:
            break
        lines.append(line)
    return b"".join(lines)


def _has_text(lines: bytes) -> bool:
    """Return whether there is more than white space, that of Unicode included; lines that are not UTF-8 are refused."""
    return bool(lines.decode(errors="replace").removeprefix("\ufeff").strip())


def _count(lines: bytes) -> int:
    """Return the number of lines, the last of which need not end."""
    return lines.count(b"\n") + (bool(lines) and not lines.endswith(b"\n"))


def _count_remaining(stream: BinaryIO) -> int:
    count, last = 0, b"\n"
    while body := stream.read(_CHUNK):
        count, last = count + body.count(b"\n"), body[-1:]
    return count + (last != b"\n")


def longest_line(name: str) -> int:
    """Return the maximum characters of a line of a file."""
    return LONGEST_JSON if is_objects(name) else LONGEST_LINE


def _longest_bytes(file: Path) -> int:
    return _WIDEST * longest_line(str(file))


@final
class _Checksum(io.RawIOBase):
    """The bytes of a stream, of which it computes size and sha256 while they are read."""

    def __init__(self) -> None:
        super().__init__()
        self.size, self.digest = 0, sha256()

    def wrap(self, stream: BinaryIO) -> BinaryIO:
        """Return the bytes of a stream as they are read through this one."""
        self._stream = stream
        return cast("BinaryIO", io.BufferedReader(self, 1 << 18))

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "memoryview") -> int:  # type: ignore[override]
        body = self._stream.read(len(buffer))
        buffer[: len(body)] = body
        self.size += len(body)
        self.digest.update(body)
        return len(body)
