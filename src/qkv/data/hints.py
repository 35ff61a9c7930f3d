"""Recognize what a file, a line or a field is instead of what was expected: one table, for hints in messages.

Each row is a regular expression, what it recognizes, and what to do; `seems` looks a text up in sections of the table.
`text_messages` says what is odd in texts that are read as they stand.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Literal

from qkv.data.marked_pieces import recognized_pieces
from qkv.errors import brief, quantity

Section = Literal[
    "signature",
    "start of a file",
    "bytes of no text",
    "byte order mark",
    "bytes",
    "misplaced line",
    "format",
    "one column",
    "tagged line",
    "separator line",
    "table",
    "table of one column",
    "cell",
    "number",
    "position",
]
FASTTEXT = "__label__"
_UNPACK = "Unpack it first; of compressed files only those whose name ends in .gz are read."
_SAVE = "Save it as plain text in UTF-8."
_TEXT_OF_PICTURE = "Is it the right file? If it shows text, write that text as plain text in UTF-8."
_WIDE = "NUL bytes between the characters"
_CONVERT = "The file seems to be {kind}: convert it with `iconv -f {kind} -t UTF-8`."
_ENCODED = "Convert the file to UTF-8, for example with `iconv -f {kind} -t UTF-8`."
_COLUMNS = "The file seems to be {kind}: write {columns} on each line."
_SEPARATED = "The columns seem to be separated by {kind}: write {columns}, with a tab"
_UNQUOTED = f"{_SEPARATED} and without quotation marks."
_BARS = "The columns seem to be separated by |: write commas or tabs."
ROWS = "Write one row per line, with the names of the columns in the first."
_CORRECT = "Correct it, or delete the line."
TABLE: Mapping[Section, Sequence[tuple[str, str, str]]] = {
    # The first line of a file, each byte as a character.
    "signature": (
        (r"\A\x1f\x8b", "a file compressed with gzip", "Give it a name that ends in .gz."),
        (r"\ABZh", "a file compressed with bzip2", _UNPACK),
        (r"\A\xfd7zXZ\0", "a file compressed with xz", _UNPACK),
        (r"\A\x28\xb5\x2f\xfd", "a file compressed with zstd", _UNPACK),
        (r"\A7z\xbc\xaf\x27\x1c", "an archive of 7-Zip", _UNPACK),
        (
            r"\APK\x03\x04",
            "a zip archive, as spreadsheets and text documents are",
            "Unpack it, or save it as plain text in UTF-8.",
        ),
        (r"\A\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "a spreadsheet or document of Office", _SAVE),
        (r"\A%PDF-", "a PDF", _SAVE),
        (r"\APAR1", "a file of Parquet", _SAVE),
        (r"\AARROW1\0", "a file of Arrow", _SAVE),
        (r"\A\x89HDF\r\n", "a file of HDF5", _SAVE),
        (r"\A\x93NUMPY", "an array of NumPy", _SAVE),
        (r"\ASQLite format 3\0", "a database of SQLite", _SAVE),
        (r"\ARar!\x1a\x07", "an archive of RAR", _UNPACK),
        (r"\A(\x89PNG\r\n|\xff\xd8\xff|GIF8[79]a)", "a picture", _TEXT_OF_PICTURE),
        (r"\A\x80[\x02-\x05]", "a pickle of Python", _SAVE),
    ),
    "start of a file": (
        (
            r"\Aversion https://git-lfs\.github\.com/spec/",
            "a pointer of Git LFS in place of the file",
            "Run `git lfs pull`.",
        ),
        (r"\A/annex/objects/", "a pointer of git-annex in place of the file", "Run `git annex get`."),
        (r"\A[^\0]\0\0\0", _WIDE, "The file seems to be UTF-32: convert it with `iconv -f UTF-32LE -t UTF-8`."),
        (r"\A\0\0\0[^\0]", _WIDE, "The file seems to be UTF-32: convert it with `iconv -f UTF-32BE -t UTF-8`."),
        (r"\A[^\0]\0[^\0]\0", _WIDE, "The file seems to be UTF-16: convert it with `iconv -f UTF-16LE -t UTF-8`."),
        (r"\A\0[^\0]\0[^\0]", _WIDE, "The file seems to be UTF-16: convert it with `iconv -f UTF-16BE -t UTF-8`."),
        (r"(?s)\A.{257}ustar", "an archive of tar", _UNPACK),
    ),
    # Only without a byte order mark. Allowed are 0x1A (end of a DOS file), 0x1B (ESC) and 0x1C to 0x1F (separators).
    "bytes of no text": (
        (
            r"(?s)\A(?!\xff\xfe|\xfe\xff|\0\0\xfe\xff).*[\x00-\x08\x0e-\x19]",
            "bytes that no encoding of text has",
            f"Is it the right file? {_SAVE}",
        ),
    ),
    "byte order mark": (
        (r"\A(\xff\xfe\0\0|\0\0\xfe\xff)", "UTF-32", _CONVERT),
        (r"\A(\xff\xfe|\xfe\xff)", "UTF-16", _CONVERT),
    ),
    # In ISO-8859-1, some bytes are control characters; in Windows' encoding, quotation marks, dashes and the euro.
    "bytes": ((r"[\x80-\x9f]", "CP1252", _ENCODED), ("", "ISO-8859-1", _ENCODED)),
    # A line of a file of columns.
    "misplaced line": (
        (r"^\s*\Z", "an empty line", "Delete it."),
        (r"^\x1a\Z", "the mark that ends files of DOS", "Delete it."),
        (r"^((<{7}|>{7}|\|{7}) .*|={7})\Z", "a mark of a merge conflict", "Resolve the conflict in the file."),
        (
            r"\r",
            "a carriage return within a line",
            "Its lines seem to end in carriage returns, as on old Macs: convert it with tr '\\r' '\\n'.",
        ),
    ),
    "format": (
        (r'^\s*(\{\s*(["}]|$)|\[\s*([\[{"]|$))', "JSON", _COLUMNS),
        (r"(?i)^\s*<(\?xml|!doctype|html|head|body|table|tmx|xliff)\b", "HTML or XML", _COLUMNS),
        (
            r"^(T\d+\t\S+ \d+ \d+(;\d+ \d+)*\t|#\d+\t\S+ [TREAM]\d+\t|R\d+\t\S+ \w+:T\d+)",
            "an annotation file of brat",
            _COLUMNS,
        ),
        (r"^\s*\(\s*(\w+\s+)?\(\S+ ", "trees in brackets", _COLUMNS),
    ),
    "one column": (
        (
            rf"^\s*{FASTTEXT}",
            "fastText",
            f"The file seems to be written for fastText: write {{columns}}, without {FASTTEXT}.",
        ),
        (r"\\t", "an escaped tab", "The line has the two characters \\t: write a tab in their place, as printf does."),
        (
            r"^[-+.\deE ]+ output( \d+)+ *\Z",
            "coordinates and positions",
            "The line seems to be x y x y … output positions, as of convex hulls (Vinyals et al. 2015): write "
            "{columns}, with vectors as 0.3,0.7 and a tab in place of output, and omit the position that closes the "
            "path.",
        ),
        (r"\|\|\|", '"|||"', _UNQUOTED),
        (";", '";"', _UNQUOTED),
        (",", '","', _UNQUOTED),
        (r"\|", '"|"', _UNQUOTED),
        (r"\S {2,}\S", "several spaces", f"{_SEPARATED}."),
        ("\u00a0", "no-break spaces", f"{_SEPARATED}."),
    ),
    "tagged line": (
        (
            r"^#begin[\t ]",
            "a file of CoNLL-2012",
            "Write word, then tag, on each line; the files of CoNLL-2012 hold several annotations.",
        ),
    ),
    # The first line of a table of numbers.
    "separator line": (
        (r'(?i)^"?sep=.?"?\Z', "{text}", "Delete it: the separator is that of the line with the names."),
    ),
    "table": (
        (r"^[{\[]", "JSON", ROWS),
        ("^<", "HTML or XML", "Save the table as CSV."),
        (r"^\|", '"{text}"', _BARS),
    ),
    "table of one column": ((r"\|", '"{text}"', _BARS),),
    # A field that is not a number.
    "cell": (
        (r"(?i)^[-+]?inf(inity)?\Z", "infinity", _CORRECT),
        (r"^#.*\Z", "an error", "It is an error of a spreadsheet: correct it, or delete the line."),
        (r"^=.*\Z", "a formula", "It is a formula: save the values."),
        (r"^\D*\Z", "text", "It is text: correct it, delete the line, or choose a column of numbers."),
    ),
    "number": (
        (
            r"^\d{1,4}([-/.])\d{1,2}\1\d{1,4}([T ].*)?\Z",
            "a date",
            "A date is no number: write the days, months or years since another one.",
        ),
        (r"^\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?\Z", "a time", "A time is no number: write hours, minutes or seconds."),
        ("^[\u2212\u2013\u2014].*\\Z", "a minus sign", "Write the minus sign as a hyphen: -."),
        (r"^[-+]?\d+/\d+\Z", "a fraction", "A fraction is no number: write its value."),
        (r"^[-+]?[\d.]+[dD][-+]?\d+\Z", "a number of Fortran", "Write the exponent with e, as in 1e3."),
        (r"^[-+]?0[xX][\da-fA-F]+\Z", "a hexadecimal number", "Write it in decimal digits."),
        (r"(?i)^[-+]?(inf(inity)?|nan)\Z", "no finite number", _CORRECT),
    ),
    # A field that is not the position of an element.
    "position": (
        (r"^0\Z", "a position from 0", "Is this file counted from 0?"),
        (r"^\d+([,;]\d+)+\Z", "several positions", "Separate them by spaces."),
        (r"^(?=.*[^0-9])\d+\Z", "other digits", "Write them in the digits 0 to 9."),
        ('"', "a quotation mark", "Write them without quotation marks."),
    ),
}
"""By section: how something is recognized, what it seems to be, and what to do. "{columns}" are those that a line
should have, "{kind}" is the second field, "{text}" is the text itself."""


def seems(text: str, *sections: Section, columns: str = "") -> tuple[str, str] | None:
    r"""Say what a text seems to be, and what to do; None if it is not recognized.

    Args:
        text: a line, a field, or the first line of a file with each byte as a character.
        sections: where to look, in this order.
        columns: those that a line should have, as in "label<TAB>text".

    Example:
        >>> seems("<<<<<<< HEAD", "misplaced line"), seems("a\tb", "misplaced line")
        (('a mark of a merge conflict', 'Resolve the conflict in the file.'), None)
        >>> seems('{"label": 1}', "format", columns="label<TAB>text")
        ('JSON', 'The file seems to be JSON: write label<TAB>text on each line.')
        >>> seems("1/2", "cell", "number"), seems("dog", "number")
        (('a fraction', 'A fraction is no number: write its value.'), None)
    """
    for section in sections:
        for pattern, kind, hint in TABLE[section]:
            if re.search(pattern, text):
                return kind.replace("{text}", brief(text)), hint.replace("{kind}", kind).replace("{columns}", columns)
    return None


_BINARY = re.compile(rb"[\x00-\x08\x0e-\x1f\x80-\xff]")


def no_text(start: bytes, name: str = "") -> tuple[str, str] | None:
    r"""Say what a file is that begins with these bytes and is no text, and what to do; None if it may be text.

    Args:
        start: its first line, or more.
        name: its name.

    Example:
        >>> no_text(b"%PDF-1.7\n%\xe2\xe3")[0], no_text(b"PDF files"), no_text(b"a\0 \0b\0")[1]
        ('a PDF', None, 'The file seems to be UTF-16: convert it with `iconv -f UTF-16LE -t UTF-8`.')
    """
    text = start.decode("latin-1")
    if (start.startswith(b"%PDF-") or _BINARY.search(start)) and (signed := seems(text, "signature")) is not None:
        return signed[0], "It is compressed twice: unpack it once." if name.endswith(".gz") else signed[1]
    return seems(text, "start of a file") or (None if _is_utf8(start) else seems(text, "bytes of no text"))


def encoding_hint(body: bytes, *, first: bool) -> str:
    r"""Say how to convert a line that is not UTF-8.

    Args:
        body: the line.
        first: whether it is the first one of its file, where a byte order mark can be.

    Example:
        >>> encoding_hint(b"na\xefve", first=False)
        'Convert the file to UTF-8, for example with `iconv -f ISO-8859-1 -t UTF-8`.'
    """
    text = body.decode("latin-1")
    encoded = (seems(text, "byte order mark") if first else None) or seems(text, "bytes")
    assert encoded is not None
    return encoded[1]


def _is_utf8(start: bytes) -> bool:
    try:
        start.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


_PLAIN = re.compile(r"[-+]?\d+(\.\d*)?([eE][-+]?\d+)?")
_LETTER = re.compile(r"[^\W\d_]")
INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]")
"""Characters that no one sees."""


def number_hint(field: str, largest: float, *sections: Section) -> str | None:
    """Suggest how to write a field that is not a number or is too large; None if it is not recognized.

    Args:
        field: the field.
        largest: from which size on a number is too large.
        sections: where else to look, first.

    Example:
        >>> number_hint("1/2", 1e9), number_hint("1e12", 1e9), number_hint("dog", 1e9)
        ('A fraction is no number: write its value.', 'It is too large: choose another unit.', None)
    """
    if (known := seems(field, *sections)) is not None:
        return known[1]
    if INVISIBLE.search(field):
        escaped = INVISIBLE.sub(lambda match: f"U+{ord(match[0]):04X}", field)
        return f"It has an invisible character in it: {escaped}."
    if _PLAIN.fullmatch(field) and abs(float(field)) >= largest:
        return "It is too large: choose another unit."
    known = seems(field, "number")
    return None if known is None else known[1]


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
    if (problem := seems(line, "misplaced line")) is not None:
        return problem
    cells = line.split("\t")
    got = quantity(len(cells), "column")
    sections: tuple[Section, ...] = ("format", "one column") if len(cells) == 1 else ("format",)
    if (known := seems(line, *sections, columns=columns)) is not None:
        return got, known[1]
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
    known = seems(filled[0], "format") if filled else None
    if known is not None and known[0] == "JSON" and filled[-1].rstrip().endswith(("}", "]")):
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
    quoted = [
        line
        for line, text in zip(lines, texts, strict=True)
        if '"' in text and _is_quoted(text, doubled=not everywhere)
    ]
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


_REPLACEMENT = "\ufffd"
_BYTES = {
    ord(bytes([byte]).decode("cp1252")): byte for byte in range(0x80, 0xA0) if byte not in b"\x81\x8d\x8f\x90\x9d"
}
"""The bytes of the characters that Windows-1252 has where ISO-8859-1 has control characters; five have none."""
_LEAD = re.compile(f"[\u00c2-\u00f4][\u0080-\u00bf{''.join(map(chr, _BYTES))}]")
"""A byte that begins a character of UTF-8, and one that continues it, read in one of these encodings."""


def repaired(text: str) -> str | None:
    """Decode UTF-8 that a program decoded as Windows-1252 or ISO-8859-1; None for text that was decoded correctly.

    Misread text becomes valid UTF-8 if it is encoded in the same way again. Other text beyond ASCII hardly ever does:
    every accented letter would have to be followed by a sign such as ¤ or ©.

    Example:
        >>> repaired("grÃ¶ÃŸer"), repaired("größer"), repaired("larger")
        ('größer', None, None)
    """
    if _LEAD.search(text) is None:
        return None
    try:
        return text.translate(_BYTES).encode("latin-1").decode("utf-8")
    except UnicodeError:
        return None


def damage_messages(texts: Iterable[tuple[int, str]]) -> Iterator[str]:
    r"""Say which lines hold U+FFFD, and which hold UTF-8 that was read in another encoding.

    Args:
        texts: texts with the numbers of their lines.

    Returns:
        A message for each kind of damage.

    Example:
        >>> for message in damage_messages([(1, "klein"), (2, "grÃ¶ÃŸer"), (3, "Stra\ufffde"), (4, "schÃ¶n")]):
        ...     print(message)
        U+FFFD in line 3: a program wrote it for bytes that it could not read. Make the file again from its source.
        UTF-8 seems to be read in another encoding in line 2 and in 1 more: "grÃ¶ÃŸer" for "größer".
    """
    lost, misread = set[int](), dict[int, tuple[str, str]]()
    for line, text in texts:
        if text.isascii():
            continue
        if _REPLACEMENT in text:
            lost.add(line)
        elif (original := repaired(text)) is not None:
            misread.setdefault(line, (text, original))
    if lost:
        reason = "a program wrote it for bytes that it could not read. Make the file again from its source."
        yield f"U+FFFD in {_lines(lost)}: {reason}"
    if misread:
        text, original = misread[min(misread)]
        where = _lines(misread)
        yield f'UTF-8 seems to be read in another encoding in {where}: "{brief(text)}" for "{brief(original)}".'


def _lines(numbers: Collection[int]) -> str:
    first = f"line {min(numbers):,}"
    return first if len(numbers) == 1 else f"{first} and in {len(numbers) - 1:,} more"
