r"""A corpus: text files as lines and as pairs, read at once or part by part, and the digest that tells them apart.

A line is the text up to the next "\n". Nothing else ends a line: U+2028, U+0085, vertical tab and form feed are
ordinary characters. One "\r" right before the "\n" (or at the very end of the file) is dropped, so that files written
on Windows read the same. A byte order mark at the start of a file is dropped, and so is one at the start of a later
line, where files were joined. Everything else is preserved, including
leading, trailing and no-break spaces. Files named `*.gz` are decompressed while reading.

Every problem with a file is a `DataError` that starts with `file:line` and ends with how to fix it.
"""

import gzip
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO, Literal, NoReturn, TypeVar, cast

from qkv.data.hints import column_problem, encoding_hint, no_text
from qkv.data.report import expect_some_left, refuse, refused
from qkv.errors import ConfigError, DataError, Place, brief, nearest, setting
from qkv.files import open_file, room_for

T = TypeVar("T")
LONGEST_LINE = 2**20
"""Default maximum characters per line."""

_LARGEST_PART = 1024
"""Maximum items of a part."""
_PART_CHARACTERS = 1 << 20
"""A part ends once it has so many characters."""
_WIDEST_CHARACTER = 4
_BOM = b"\xef\xbb\xbf"
_SIBLINGS = 1000
_NO_TEXTS = (".html", ".json", ".npy", ".pdf", ".png", ".safetensors", ".svg", ".toml")
"""Endings of files that a misspelled name of a text does not mean."""
_AS_TABLE = " Or train on a table of words: " + setting("source_col", "1") + " of qkv train translate."
SOURCE_NAMES = frozenset({"source", "src", "input", "elements"})
TARGET_NAMES = frozenset({"target", "tgt", "trg", "output", "translation", "positions"})
"""Names of columns, in lower case, that make the first line of pairs a header."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A source text, its target text, and their line number (from 1).

    Example:
        >>> Pair("3 May 2011", "2011-05-03", 1).target
        '2011-05-03'
    """

    source: str
    target: str
    line: int


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines in memory, which readers take in place of a file.

    Args:
        name: their name in messages.
        lines: the lines, without line ends.

    Example:
        >>> read_lines(Lines("data", ("one", "two"))), str(Lines("data", ()))
        (['one', 'two'], 'data')
    """

    name: str
    lines: tuple[str, ...]

    def __str__(self) -> str:
        return self.name


def read_pairs(source: Path | Lines, target: Path | Lines, *, longest: int = LONGEST_LINE) -> list[Pair]:
    """Read two parallel files: line N of one corresponds to line N of the other.

    Args:
        source: the file with the source texts; `.gz` is decompressed.
        target: the file with the target texts; `.gz` is decompressed.
        longest: maximum characters per line.

    Returns:
        One pair per line, in order.

    Raises:
        DataError: the file cannot be read, is empty or not UTF-8, the numbers of lines differ, or a line is empty.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     de, en = Path(folder, "train.de"), Path(folder, "train.en")
        ...     _ = de.write_text("Ein Hund.\\n"), en.write_text("A dog.\\n")
        ...     read_pairs(de, en)
        [Pair(source='Ein Hund.', target='A dog.', line=1)]
    """
    sources = read_lines(source, longest=longest, blank=True)
    targets = read_lines(target, longest=longest, blank=True)
    if len(sources) != len(targets):
        refuse_unequal(source, len(sources), target, len(targets))
    pairs = []
    for number, (left, right) in enumerate(zip(sources, targets, strict=True), start=1):
        if refused(number, source, target):
            continue
        if left.strip() and right.strip():
            pairs.append(Pair(left, right, number))
        else:
            refuse("empty", empty_side(source, target, number, left, right))
    if not pairs:
        expect_some_left()
    return pairs


def silent(_: str) -> None:
    """Say nothing."""


def read_tsv(path: Path | Lines, *, longest: int = LONGEST_LINE, say: Callable[[str], None] = silent) -> list[Pair]:
    """Read a file with a source text, one tab and a target text on each line.

    Args:
        path: the file; `.gz` is decompressed.
        longest: maximum characters per line.
        say: called with a message if the first line is skipped because it names the columns.

    Returns:
        One pair per line, in order.

    Raises:
        DataError: the file cannot be read, is empty or not UTF-8, or a line does not have exactly two nonempty columns.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder, "dates.tsv")
        ...     _ = path.write_text("3 May 2011\\t2011-05-03\\n")
        ...     read_tsv(path)
        [Pair(source='3 May 2011', target='2011-05-03', line=1)]
    """
    pairs = []
    lines = each_line(path, longest=longest)
    start = list(islice(lines, 2))
    headed = len(start) > 1 and not isinstance(path, Lines) and names_columns(start[0])
    for number, line in enumerate(chain(start, lines), start=1):
        if number == 1 and headed:
            say(header_message(path, 1, line))
            continue
        if refused(number, path):
            continue
        where = Place(path, number)
        try:
            if not isinstance(path, Lines):
                expect_no_header(line, where, headed=headed)
            pairs.append(parse_pair(line, where, number))
        except DataError as error:
            refuse(kind_of_columns(line), error)
    if not pairs:
        expect_some_left()
    if len(start) > 1 and (message := names_languages(start[0])) is not None:
        say(f"{path}:1: {message}")
    return pairs


def parse_pair(line: str, where: Place, number: int) -> Pair:
    r"""Split a line at its tab.

    Args:
        line: a source text, one tab and a target text.
        where: file and line, for messages.
        number: the number of the pair.

    Raises:
        DataError: it does not have exactly two nonempty columns.

    Example:
        >>> parse_pair("ein Hund\ta dog", Place("pairs.tsv", 7), 7)
        Pair(source='ein Hund', target='a dog', line=7)
    """
    return Pair(*two_columns(line, where, ("source", "target"), more=_AS_TABLE), number)


def two_columns(line: str, where: str, names: tuple[str, str], *, more: str = "") -> tuple[str, str]:
    r"""Split a line at its tab into two texts.

    Args:
        line: the line.
        where: file and line, for messages.
        names: of the columns.
        more: what else is proposed for a line of more columns without spaces.

    Raises:
        DataError: it does not have exactly two nonempty columns.

    Example:
        >>> two_columns("good\ta film", "films.tsv:7", ("label", "text"))
        ('good', 'a film')
    """
    columns = line.split("\t")
    if len(columns) != 2:
        got, hint = column_problem(line, "<TAB>".join(names))
        hint += more if len(columns) > 2 and " " not in line else ""
        raise DataError(where, f"2 columns, {' and '.join(names)}, with one tab between them", got, hint)
    for name, column in zip(names, columns, strict=True):
        if not column.strip():
            raise DataError(where, "text in both columns", f"an empty {name}", "Fill it or delete the line.")
    return columns[0], columns[1]


def kind_of_columns(line: str) -> Literal["empty", "columns"]:
    r"""Return the kind that a report gives to a line without two columns of text.

    Example:
        >>> kind_of_columns("ein Hund\t"), kind_of_columns(" "), kind_of_columns("ein Hund")
        ('empty', 'empty', 'columns')
    """
    return "empty" if line.count("\t") == 1 or not line.strip() else "columns"


def expect_no_header(line: str, where: Place, *, headed: bool) -> None:
    r"""Refuse a line that names the columns where files with headers were joined, or names the target first.

    Args:
        line: a line that is not a header to be skipped.
        where: file and line.
        headed: whether the first line of the file is a header.

    Raises:
        DataError: it does.

    Example:
        >>> expect_no_header("ein Hund\ta dog", Place("pairs.tsv", 7), headed=True)
    """
    if headed and names_columns(line):
        raise repeated_header(line, where)
    if where.line == 1 and names_columns("\t".join(reversed(line.split("\t")))):
        hint = "Exchange the columns of all lines, or delete this line if they are not as it says."
        got = f'"{brief(" ".join(line.split()))}"'
        raise DataError(where, "the source first and the target second", got, hint)


def header_message(path: object, number: int, line: str) -> str:
    """Return what is said about a line that only names the columns."""
    return f"{path}:{number}: a header, skipped: {' '.join(line.split())}"


def repeated_header(line: str, where: Place) -> DataError:
    """Return the error for a header that occurs again, as where files with headers were concatenated."""
    got = f'the names of the columns again: "{brief(" ".join(line.split()))}"'
    return DataError(where, "data", got, "Delete it: files with headers seem to be joined.")


def names_columns(line: str) -> bool:
    r"""Whether a first line only names the columns of sources and targets.

    Example:
        >>> names_columns("Source\ttarget"), names_columns("ein Hund\ta dog")
        (True, False)
    """
    names = [column.strip().lower() for column in line.split("\t")]
    return len(names) == 2 and names[0] in SOURCE_NAMES and names[1] in TARGET_NAMES


_LANGUAGES = """
arabic chinese czech danish dutch english finnish french german greek hebrew hindi hungarian italian japanese korean
norwegian persian polish portuguese romanian russian spanish swedish turkish ukrainian vietnamese
ar cs da de el en es fa fi fr he hi hu it ja ko nl no pl pt ro ru sv tr uk vi zh
"""
"""Names of languages, in lower case: a first line of two of them is likely to name the columns."""


def names_languages(line: str) -> str | None:
    r"""Say if a first line seems to name the languages of the columns, though it may be words of a dictionary.

    Example:
        >>> names_languages("German\tEnglish"), names_languages("ein Hund\ta dog")
        ('"German English" is trained on: if the line names the columns, delete it.', None)
    """
    names = [column.strip().lower() for column in line.split("\t")]
    if len(names) != 2 or not set(_LANGUAGES.split()).issuperset(names) or names[0] == names[1]:
        return None
    return f'"{" ".join(line.split())}" is trained on: if the line names the columns, delete it.'


def read_lines(path: Path | Lines, *, longest: int = LONGEST_LINE, blank: bool = False) -> list[str]:
    r"""Read a text file as lines.

    Args:
        path: the file; `.gz` is decompressed. Or lines in memory, which are checked likewise.
        longest: maximum characters per line.
        blank: whether lines of white space only are allowed.

    Returns:
        The lines without line ends.

    Raises:
        DataError: the file cannot be read, is empty or not UTF-8, or a line is too long, blank or contains a NUL.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder, "text")
        ...     _ = path.write_bytes("one\u2028still one\r\ntwo".encode())
        ...     read_lines(path)
        ['one\u2028still one', 'two']
    """
    with room_for(str(path), "Give a smaller file, or a part of it."):
        return list(each_line(path, longest=longest, blank=blank))


def each_line(path: Path | Lines, *, longest: int = LONGEST_LINE, blank: bool = True) -> Iterator[str]:
    """Yield the lines that `read_lines` returns, with at most one line of a file in memory; errors as there."""
    if isinstance(path, Lines):
        for number, line in enumerate(path.lines, start=1):
            try:
                _expect_line(line, Place(path, number), longest, blank=blank)
            except DataError as error:
                refuse("encoding", error)
            yield line
        if not path.lines:
            raise DataError(path.name, "at least one item", "none", "Was an iterator already read?")
        return
    empty = True
    for line in stream_lines(path, longest=longest, blank=blank):
        empty = False
        yield line
    if empty:
        raise DataError(Place(path), "at least one line", "an empty file", "Check how the file was made.")


def stream_lines(path: Path, *, longest: int = LONGEST_LINE, blank: bool = True) -> Iterator[str]:
    """Read the lines of a text file one by one, with at most one of them in memory.

    Args:
        path: the file; `.gz` is decompressed.
        longest: maximum characters per line.
        blank: whether lines of white space only are allowed.

    Returns:
        An iterator over the lines without line ends; an empty file has none.

    Raises:
        DataError: as for `read_lines`, but for an empty file.
    """
    with open_text(path) as stream:
        yield from iterate_lines(stream, str(path), longest=longest, blank=blank)


def iterate_lines(
    stream: BinaryIO, name: str, *, longest: int = LONGEST_LINE, blank: bool = True, first: int = 1
) -> Iterator[str]:
    """Read the lines of an open binary stream one by one, standard input for example.

    At most one line is in memory, and at most the allowed length of a line that is too long.

    Args:
        stream: the stream, in binary mode.
        name: its name in messages.
        longest: maximum characters per line.
        blank: whether lines of white space only are allowed.
        first: the number of the first line, if the stream does not begin at a file's.

    Returns:
        An iterator over the lines without line ends.

    Raises:
        DataError: a line is not UTF-8, too long, contains a NUL, or is blank where that is not allowed.

    Example:
        >>> from io import BytesIO
        >>> list(iterate_lines(BytesIO(b"one\\r\\ntwo"), "standard input"))
        ['one', 'two']
    """
    if type(longest) is not int or longest < 1:
        got = repr(longest)[:60]
        raise ConfigError("longest", "an integer of at least 1", got, "Omit it for the default.")
    most_bytes = _WIDEST_CHARACTER * longest + len(_BOM) + len(b"\r\n")
    number = first - 1
    while raw := stream.readline(most_bytes):
        number += 1
        body = raw.removesuffix(b"\n").removesuffix(b"\r").removeprefix(_BOM)
        text = _decoded(body) if len(raw) < most_bytes and number > 1 else None
        if text is not None and len(text) <= longest and "\0" not in text and (blank or text.strip()):
            yield text
            continue
        where = Place(name, number)
        if number == 1 and (problem := no_text(raw, name)) is not None:
            raise DataError(where, "text", *problem)
        try:
            if len(raw) == most_bytes and not raw.endswith(b"\n"):
                raise too_long(where, longest)
            text = decode(body, where, first=number == 1)
            _expect_line(text, where, longest, blank=blank)
        except DataError as error:
            refuse("encoding", error)
            while raw and not raw.endswith(b"\n"):
                raw = stream.readline(most_bytes)
            text = ""  # so that every other line keeps its number
        yield text


def in_parts(items: Iterable[T], *, size: Callable[[T], int], line_buffered: bool = False) -> Iterator[list[T]]:
    """Split items into parts of 1, 2, 4, … 1,024. The sizes do not depend on how fast the items arrive.

    Args:
        items: lines or rows; read only as far as a part needs them.
        size: the characters of one; a part ends early once it has a million.
        line_buffered: whether each item is a part.

    Example:
        >>> [len(part) for part in in_parts("abcdefghij", size=len)]
        [1, 2, 4, 3]
    """
    part: list[T] = []
    part_size, characters = 1, 0
    for item in items:
        part.append(item)
        characters += size(item)
        if len(part) >= part_size or characters >= _PART_CHARACTERS:
            yield part
            part, characters = [], 0
            part_size = 1 if line_buffered else min(2 * part_size, _LARGEST_PART)
    if part:
        yield part


def fingerprint(texts: Iterable[str | Pair]) -> str:
    """Compute a digest of a sequence of texts; any other text, order or division gives another digest.

    Args:
        texts: plain texts, or pairs, whose line numbers are ignored.

    Returns:
        A sha256 in hexadecimal, 64 characters.

    Example:
        >>> len(fingerprint(["ab", "c"]))
        64
        >>> fingerprint(["ab", "c"]) == fingerprint(["a", "bc"])
        False
    """
    digest = sha256()
    for text in texts:
        # Each text is preceded by its length in bytes, so different sequences never hash the same bytes.
        for part in (text,) if isinstance(text, str) else (text.source, text.target):
            body = part.encode("utf-8", "surrogatepass")
            digest.update(b"%d:" % len(body))
            digest.update(body)
        digest.update(b"." if isinstance(text, str) else b";")
    return digest.hexdigest()


def _expect_line(text: str, where: str, longest: int, *, blank: bool) -> None:
    if len(text) > longest:
        raise too_long(where, longest)
    if "\0" in text:
        got = f"a NUL at character {text.index(chr(0)) + 1}"
        raise DataError(where, "text", got, "Is it a text file? Remove the NUL characters.")
    if not blank and not text.strip():
        raise DataError(where, "text in every line", "an empty line", "Fill it or delete the line.")


def too_long(where: str, longest: int) -> DataError:
    """Return the error about a line that is too long."""
    hint = "Split the line."
    return DataError(where, f"at most {longest:,} characters in a line", "a longer line", hint)


def _decoded(body: bytes) -> str | None:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


def decode(body: bytes, where: str, *, first: bool) -> str:
    """Decode a line as UTF-8.

    Args:
        body: the line.
        where: file and line, for the message.
        first: whether it is the first line of its file, which reveals the file's encoding.

    Returns:
        Its text.

    Raises:
        DataError: it is not UTF-8; the message gives the byte.

    Example:
        >>> decode(b"na\\xc3\\xafve", "a.txt:1", first=True)
        'naïve'
    """
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        truncated = error.reason == "unexpected end of data"
        got = f"byte 0x{body[error.start]:02X} at byte {error.start + 1} of the line"
        if truncated:
            got += ", the start of an incomplete character"
        raise DataError(where, "valid UTF-8", got, encoding_hint(body, first=first)) from None


@contextmanager
def open_text(path: Path, wrap: Callable[[BinaryIO], BinaryIO] = lambda stream: stream) -> Iterator[BinaryIO]:
    """Open a file, plain or compressed, and turn errors of the operating system into a `DataError`.

    Args:
        path: the file; `.gz` is decompressed.
        wrap: what stands between the file's own bytes and decompression, to count or sum them.

    Returns:
        A context manager that yields the stream of what the file holds.

    Raises:
        DataError: it cannot be read.
    """
    path = Path(path)
    if "\0" in str(path):
        raise DataError(ascii(str(path)), "a file", "a name with a NUL in it", "Check the path.")
    try:
        with open_file(path) as file:
            stream = wrap(file)
            with gzip.GzipFile(fileobj=stream) if path.suffix == ".gz" else nullcontext(stream) as unpacked:
                yield cast("BinaryIO", unpacked)
    except FileNotFoundError:
        problem = "a file", "no such file", _name_hint(path)
        if path.is_symlink():
            problem = "a file", "a link to a file that does not exist", "Correct the link, or give the file itself."
    except IsADirectoryError:
        problem = "a file", "a folder", "Give a file inside it."
    except PermissionError:
        problem = "a readable file", "a file without read permission", "Change its permissions."
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        hint = "Copy or compress it again; if it is plain text, remove .gz from its name."
        problem = "a complete gzip file", str(error), hint
    except OSError as error:
        problem = "a readable file", error.strerror or str(error), "Check the path and the disk."
    else:
        return
    raise DataError(Place(path), *problem) from None


def _name_hint(path: Path) -> str:
    try:
        siblings = [sibling.name for sibling in islice(path.parent.iterdir(), _SIBLINGS)]
    except FileNotFoundError:
        return f"The folder {path.parent} does not exist either."
    except (OSError, ValueError):
        return "Check the path."
    texts = [name for name in siblings if Path(name).suffix not in _NO_TEXTS]
    hint = nearest(path.name, texts) if texts else ""
    return hint if hint.startswith("Did you mean") else "Check the path."


def refuse_unequal(source: Path | Lines, source_lines: int, target: Path | Lines, target_lines: int) -> NoReturn:
    """Raise the error about two files with other numbers of lines."""
    longer, shorter = (source, target) if source_lines > target_lines else (target, source)
    extra = min(source_lines, target_lines) + 1
    raise DataError(
        Place(longer, extra),
        f"as many lines in {source} as in {target}",
        f"{source_lines:,} lines in {source} and {target_lines:,} lines in {target}",
        f"Line N of one must correspond to line N of the other: find the line missing in {shorter}.",
    )


def empty_side(source: Path | Lines, target: Path | Lines, number: int, left: str, right: str) -> DataError:
    """Return the error about a line of two files of which one is empty."""
    empty, other = (source, target) if not left.strip() else (target, source)
    both_empty = not left.strip() and not right.strip()
    expected = "text in every line"
    got = f"an empty line{' in both files' if both_empty else ''}"
    hint = f"Fill it, or delete line {number} of {empty} and of {other}."
    return DataError(Place(empty, number), expected, got, hint)
