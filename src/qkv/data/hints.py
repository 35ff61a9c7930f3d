"""Recognize what a file, a line or a field is instead of what was expected, for hints in messages."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from qkv.data.damage import damage_messages
from qkv.data.marked_pieces import recognized_pieces
from qkv.errors import brief, quantity

FASTTEXT = "__label__"
_UNPACK = "Unpack it first; of compressed files only those whose name ends in .gz are read."
_SAVE = "Save it as plain text in UTF-8."
_TEXT_OF_PICTURE = "Is it the right file? If it shows text, write that text as plain text in UTF-8."
_BINARY = (
    (b"\x1f\x8b", "a file compressed with gzip", "Give it a name that ends in .gz."),
    (b"BZh", "a file compressed with bzip2", _UNPACK),
    (b"\xfd7zXZ\0", "a file compressed with xz", _UNPACK),
    (b"\x28\xb5\x2f\xfd", "a file compressed with zstd", _UNPACK),
    (b"7z\xbc\xaf\x27\x1c", "an archive of 7-Zip", _UNPACK),
    (
        b"PK\x03\x04",
        "a zip archive, as spreadsheets and text documents are",
        "Unpack it, or save it as plain text in UTF-8.",
    ),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "a spreadsheet or document of Office", _SAVE),
    (b"%PDF-", "a PDF", _SAVE),
    (b"PAR1", "a file of Parquet", _SAVE),
    (b"ARROW1\0", "a file of Arrow", _SAVE),
    (b"\x89HDF\r\n", "a file of HDF5", _SAVE),
    (b"\x93NUMPY", "an array of NumPy", _SAVE),
    (b"SQLite format 3\0", "a database of SQLite", _SAVE),
    (b"Rar!\x1a\x07", "an archive of RAR", _UNPACK),
    (b"\x89PNG\r\n", "a picture", _TEXT_OF_PICTURE),
    (b"\xff\xd8\xff", "a picture", _TEXT_OF_PICTURE),
    (b"GIF89a", "a picture", _TEXT_OF_PICTURE),
    (b"GIF87a", "a picture", _TEXT_OF_PICTURE),
    *((b"\x80" + bytes([protocol]), "a pickle of Python", _SAVE) for protocol in range(2, 6)),
)
"""How files that are no text begin, what they are, and what to do."""
_POINTERS = (
    (b"version https://git-lfs.github.com/spec/", "a pointer of Git LFS in place of the file", "Run `git lfs pull`."),
    (b"/annex/objects/", "a pointer of git-annex in place of the file", "Run `git annex get`."),
)
_WIDE = (
    ("UTF-32LE", b"\1\0\0\0"),
    ("UTF-32BE", b"\0\0\0\1"),
    ("UTF-16LE", b"\1\0\1\0"),
    ("UTF-16BE", b"\0\1\0\1"),
)
"""Which of the first four bytes are 0 in text of an encoding without a byte order mark."""
_NOT_UTF8 = re.compile(rb"[\x00-\x08\x0e-\x1f\x80-\xff]")
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x19]")
"""What no text has: 0x1A ends files of DOS, 0x1B begins commands of terminals, and the next four separate fields."""
_BYTE_ORDER_MARKS = (b"\xff\xfe", b"\xfe\xff", b"\0\0\xfe\xff")
"""The byte order marks of UTF-16 and UTF-32; in little-endian order, that of UTF-32 begins with that of UTF-16."""
_TAR = slice(257, 262)
"""Where the header of an archive of tar has the word ustar."""


def no_text(start: bytes, name: str = "") -> tuple[str, str] | None:
    """Say what a file is that begins with these bytes and is no text, and what to do; None if it may be text.

    Args:
        start: its first line, or more.
        name: its name.

    Example:
        >>> no_text(b"%PDF-1.7\\n%\\xe2\\xe3")[0], no_text(b"PDF files"), no_text(b"a\\0 \\0b\\0")[1]
        ('a PDF', None, 'The file seems to be UTF-16: convert it with `iconv -f UTF-16LE -t UTF-8`.')
    """
    for begin, kind, hint in _BINARY:
        if start.startswith(begin) and (begin == b"%PDF-" or _NOT_UTF8.search(start)):
            return kind, "It is compressed twice: unpack it once." if name.endswith(".gz") else hint
    for begin, kind, hint in _POINTERS:
        if start.startswith(begin):
            return kind, hint
    zeros = bytes(min(byte, 1) for byte in start[:4])
    for encoding, pattern in _WIDE:
        if zeros == pattern:
            family = encoding[:6]
            hint = f"The file seems to be {family}: convert it with `iconv -f {encoding} -t UTF-8`."
            return "NUL bytes between the characters", hint
    if start[_TAR] == b"ustar":
        return "an archive of tar", _UNPACK
    if _CONTROL.search(start) and not start.startswith(_BYTE_ORDER_MARKS) and not _is_utf8(start):
        return "bytes that no encoding of text has", f"Is it the right file? {_SAVE}"
    return None


def _is_utf8(start: bytes) -> bool:
    try:
        start.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


class Seems(NamedTuple):
    """What a line seems to be, how it is recognized, and what to do; "{columns}" are those that it should have."""

    kind: str
    pattern: re.Pattern[str]
    hint: str


_MISPLACED = (
    Seems("an empty line", re.compile(r"^\s*\Z"), "Delete it."),
    Seems("the mark that ends files of DOS", re.compile(r"^\x1a\Z"), "Delete it."),
    Seems(
        "a mark of a merge conflict",
        re.compile(r"^((<{7}|>{7}|\|{7}) .*|={7})\Z"),
        "Resolve the conflict in the file.",
    ),
    Seems(
        "a carriage return within a line",
        re.compile(r"\r"),
        "Its lines seem to end in carriage returns, as on old Macs: convert it with tr '\\r' '\\n'.",
    ),
)
"""Lines that do not belong into a file of columns."""
_FORMATS = tuple(
    Seems(kind, re.compile(pattern), f"The file seems to be {kind}: write {{columns}} on each line.")
    for kind, pattern in (
        ("JSON", r'^\s*(\{\s*(["}]|$)|\[\s*([\[{"]|$))'),
        ("HTML or XML", r"(?i)^\s*<(\?xml|!doctype|html|head|body|table|tmx|xliff)\b"),
        (
            "an annotation file of brat",
            r"^(T\d+\t\S+ \d+ \d+(;\d+ \d+)*\t|#\d+\t\S+ [TREAM]\d+\t|R\d+\t\S+ \w+:T\d+)",
        ),
        ("trees in brackets", r"^\s*\(\s*(\w+\s+)?\(\S+ "),
    )
)
"""Formats that are no columns, by how their files begin."""
_UNTABBED = (
    *_FORMATS,
    Seems(
        "fastText",
        re.compile(rf"^\s*{FASTTEXT}"),
        f"The file seems to be written for fastText: write {{columns}}, without {FASTTEXT}.",
    ),
    Seems(
        "an escaped tab",
        re.compile(r"\\t"),
        "The line has the two characters \\t: write a tab in their place, as printf does.",
    ),
    Seems(
        "coordinates and positions",
        re.compile(r"^[-+.\deE ]+ output( \d+)+ *\Z"),
        "The line seems to be x y x y … output positions, as of convex hulls (Vinyals et al. 2015): write {columns}, "
        "with vectors as 0.3,0.7 and a tab in place of output, and omit the position that closes the path.",
    ),
    *(
        Seems(
            between,
            re.compile(pattern),
            f"The columns seem to be separated by {between}: write {{columns}}, with a tab{without}.",
        )
        for between, pattern, without in (
            *((f'"{mark}"', re.escape(mark), " and without quotation marks") for mark in ("|||", ";", ",", "|")),
            ("several spaces", r"\S {2,}\S", ""),
            ("no-break spaces", "\u00a0", ""),
        )
    ),
)
"""Lines that have one column."""


def _seems(line: str, table: Sequence[Seems]) -> Seems | None:
    return next((row for row in table if row.pattern.search(line)), None)


def misplaced_line_hint(line: str) -> tuple[str, str] | None:
    """Say what a line is that does not belong into a file of columns, and what to do; None if it may be a row.

    Args:
        line: the line.

    Example:
        >>> misplaced_line_hint("<<<<<<< HEAD"), misplaced_line_hint(" "), misplaced_line_hint("a\\tb")
        (('a mark of a merge conflict', 'Resolve the conflict in the file.'), ('an empty line', 'Delete it.'), None)
    """
    seems = _seems(line, _MISPLACED)
    return None if seems is None else (seems.kind, seems.hint)


def foreign_format(line: str) -> str | None:
    """Return the format that a file of columns seems to have instead, by its first line; None for none.

    Example:
        >>> foreign_format('{"label": 1}'), foreign_format("<!DOCTYPE html>"), foreign_format("a\\tb")
        ('JSON', 'HTML or XML', None)
        >>> foreign_format("T1\\tPERSON 0 3\\tAda")
        'an annotation file of brat'
    """
    seems = _seems(line, _FORMATS)
    return None if seems is None else seems.kind


def untabbed_hint(line: str, columns: str) -> str | None:
    """Say what a line without tabs seems to be, and how to write it.

    Args:
        line: the line.
        columns: the columns that it should have, as in "label<TAB>text".

    Returns:
        A sentence; None if it looks like nothing in particular.

    Example:
        >>> untabbed_hint("good,a fine film", "label<TAB>text")
        'The columns seem to be separated by ",": write label<TAB>text, with a tab and without quotation marks.'
    """
    seems = _seems(line, _UNTABBED)
    return None if seems is None else seems.hint.format(columns=columns)


def column_problem(line: str, columns: str) -> tuple[str, str]:
    """Say what is wrong with a line that does not have its two columns, and what to do.

    Args:
        line: the line.
        columns: the columns that it should have, as in "label<TAB>text".

    Example:
        >>> column_problem("good\\ta film\\t", "label<TAB>text")
        ('3 columns, the last one empty', 'Remove the tab at the end of the line.')
        >>> column_problem("1.2034\\tein Hund\\ta dog", "source<TAB>target")
        ('3 columns, the first one a number', 'If it numbers or scores the lines, cut -f2,3 leaves source<TAB>target.')
    """
    if (problem := misplaced_line_hint(line)) is not None:
        return problem
    cells = line.split("\t")
    got = quantity(len(cells), "column")
    if (seems := _seems(line, _UNTABBED if len(cells) == 1 else _FORMATS)) is not None:
        return got, seems.hint.format(columns=columns)
    if any(cell.count('"') % 2 and '"' in (cell[:1], cell[-1:]) for cell in cells):
        return got, f"A quotation mark holds no tab or line break, as it does in CSV: write {columns} without them."
    if len(cells) == 3 and not cells[-1].strip():
        return f"{got}, the last one empty", "Remove the tab at the end of the line."
    if len(cells) == 3 and _PLAIN.fullmatch(cells[0].strip()):
        return f"{got}, the first one a number", f"If it numbers or scores the lines, cut -f2,3 leaves {columns}."
    texts = [f"{number}" for number, cell in enumerate(cells, start=1) if _LETTER.search(cell) and "://" not in cell]
    kept = ",".join(texts) if len(texts) == 2 < len(cells) else "1,2"
    cut = f" Or take two columns: cut -f{kept}." if len(cells) > 1 else ""
    return got, f"Write {columns}; replace tabs inside the text by spaces.{cut}"


def text_messages(lines: Sequence[int], *columns: Sequence[str]) -> Iterator[str]:
    r"""Say what is odd in texts that are read as they stand: damage, JSON, pieces of words, quotation marks of CSV.

    Args:
        lines: the number of the line of each text.
        columns: texts; each column is judged by itself.

    Returns:
        A message for each oddity.

    Example:
        >>> list(text_messages([1, 2], ["[", '{"text": "a dog"}]']))
        ['JSON is trained on as it is written, ... of JSON lines, which `jq -c ".[]"` makes of an array.']
        >>> next(text_messages([1], ["a d@@ og"]))
        'words seem to be split into pieces of subword-nmt ("d@@"), which are read as words. ...
    """
    yield from damage_messages((line, text) for line, *texts in zip(lines, *columns, strict=True) for text in texts)
    oddities: dict[str, str] = {}
    for column in columns:
        for kind, message in _column_messages(lines, column):
            oddities.setdefault(kind, message)
    yield from oddities.values()


def _column_messages(lines: Sequence[int], texts: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield kinds of oddities and what is said of each."""
    filled = [text for text in texts if text.strip()]
    if filled and foreign_format(filled[0]) == "JSON" and filled[-1].rstrip().endswith(("}", "]")):
        yield (
            "JSON",
            "JSON is trained on as it is written, with its braces. `qkv prepare` reads the texts of JSON lines, which "
            '`jq -c ".[]"` makes of an array.',
        )
    for marks, piece in recognized_pieces(texts):
        yield (
            marks.library,
            f'words seem to be split into pieces of {marks.library} ("{brief(piece)}"), which are read as words. '
            f"Join them with sed '{marks.sed}', and let the tokenizer bpe or unigram split them. Figures of "
            "translations count joined words.",
        )
    everywhere = len(filled) > 1 and all(map(_is_quoted, filled))
    quoted = [line for line, text in zip(lines, texts, strict=True) if _is_quoted(text, doubled=not everywhere)]
    if quoted:
        where = f"line {quoted[0]:,}" + (f" and in {len(quoted) - 1:,} more" if quoted[1:] else "")
        yield (
            "quotation marks",
            f"quotation marks of CSV, in {where}, are read as parts of the texts: write them without, as pandas does "
            "with quoting=csv.QUOTE_NONE.",
        )


def _is_quoted(text: str, *, doubled: bool = False) -> bool:
    """Whether a text stands in quotation marks; with some inside, doubled as CSV writes them."""
    text = text.strip()
    inside = text[1:-1]
    is_doubled = '""' in inside and '"' not in inside.replace('""', "")
    return len(text) > 1 and text[0] == text[-1] == '"' and (is_doubled or not doubled)


def pairs_message(lines: Iterable[str]) -> str | None:
    r"""Say that lines of a text seem to be pairs: at least two, each with a tab between two texts; None if not.

    Example:
        >>> pairs_message(["ein Hund\ta dog", "eine Katze\ta cat"]), pairs_message(["ein Hund\ta dog", "a cat"])
        ('each of 2 lines has a tab between two texts, as in a file of pairs: all of it is read as text.', None)
    """
    count = 0
    for line in lines:
        count += 1
        source, *targets = line.split("\t")
        if not source.strip() or len(targets) != 1 or not targets[0].strip():
            return None
    between = "has a tab between two texts, as in a file of pairs: all of it is read as text."
    return f"each of {count:,} lines {between}" if count > 1 else None


_NUMBERS = (
    (
        re.compile(r"\d{1,4}([-/.])\d{1,2}\1\d{1,4}([T ].*)?"),
        "A date is no number: write the days, months or years since another one.",
    ),
    (re.compile(r"\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?"), "A time is no number: write hours, minutes or seconds."),
    (re.compile("[\u2212\u2013\u2014].*"), "Write the minus sign as a hyphen: -."),
    (re.compile(r"[-+]?\d+/\d+"), "A fraction is no number: write its value."),
    (re.compile(r"[-+]?[\d.]+[dD][-+]?\d+"), "Write the exponent with e, as in 1e3."),
    (re.compile(r"[-+]?0[xX][\da-fA-F]+"), "Write it in decimal digits."),
    (re.compile("[-+]?(inf(inity)?|nan)", re.IGNORECASE), "Correct it, or delete the line."),
)
_PLAIN = re.compile(r"[-+]?\d+(\.\d*)?([eE][-+]?\d+)?")
_LETTER = re.compile(r"[^\W\d_]")
INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]")
"""Characters that no one sees."""


def number_hint(field: str, largest: float) -> str | None:
    """Say how to write a field that is no number, or too large a one; None if it looks like nothing in particular.

    Args:
        field: the field.
        largest: from which size on a number is too large.

    Example:
        >>> number_hint("1/2", 1e9), number_hint("1.0D+3", 1e9), number_hint("dog", 1e9)
        ('A fraction is no number: write its value.', 'Write the exponent with e, as in 1e3.', None)
    """
    if INVISIBLE.search(field):
        escaped = INVISIBLE.sub(lambda match: f"U+{ord(match[0]):04X}", field)
        return f"It has an invisible character in it: {escaped}."
    if _PLAIN.fullmatch(field) and abs(float(field)) >= largest:
        return "It is too large: choose another unit."
    return next((hint for pattern, hint in _NUMBERS if pattern.fullmatch(field)), None)
