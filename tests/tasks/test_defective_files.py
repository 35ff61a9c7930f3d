"""Fifty ways to spoil a data file, in the files of every task: read as the sound file, or refused by fields."""

import bz2
import gzip
import lzma
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest

from qkv.errors import QkvError
from qkv.tasks.catalog import TASKS, recipe_of
from qkv.tasks.translate.recipe import RECIPE as TRANSLATE

SOUND = {
    "translate": "".join(f"ein Hund {n}\ta dog {n}\n" for n in range(30)),
    "classify": "".join(f"good\ta fine film {n}\nbad\ta dull one {n}\n" for n in range(15)),
    "tag": "".join(f"Ada{n}\tB-PER\nwrote\tO\n\n" for n in range(30)),
    "generate": "to be or not to be\nthat is the question\n" * 40,
    "point": "".join(f"{30 + n} 10 20\t2 3 1\n" for n in range(30)),
    "regress": "area,rent\n" + "".join(f"{20 + n}.5,{300 + 8 * n}\n" for n in range(30)),
}
ALL = frozenset(SOUND)
ROWS = ALL - {"generate"}
"""Tasks whose lines have columns."""
TABBED = ROWS - {"regress"}
PAIRED = TABBED - {"tag"}
"""Tasks with two columns and no empty lines."""
NUMBERS = frozenset({"point", "regress"})


@dataclass(frozen=True)
class Defect:
    """One way to spoil a file.

    Args:
        name: its name.
        spoil: what is done to the bytes of a sound file.
        line: the line that is refused, from the end if it is negative; None for the file as a whole.
        got, hint: what these fields of the error say.
        refused: the tasks that refuse the file.
        reads: the tasks that read it as the sound file. Other tasks read it as other text.
    """

    name: str
    spoil: Callable[[bytes], bytes]
    line: int | None = None
    got: str = ""
    hint: str = ""
    refused: frozenset[str] = frozenset()
    reads: frozenset[str] = frozenset()


def fourth(change: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """Change line 4."""

    def spoil(data: bytes) -> bytes:
        lines = data.split(b"\n")
        lines[3] = change(lines[3])
        return b"\n".join(lines)

    return spoil


def number(written: str) -> Callable[[bytes], bytes]:
    """Write something in place of the first number of line 4."""
    return fourth(lambda line: re.sub(rb"^[\d.]+", written.encode(), line))


def always(content: bytes) -> Callable[[bytes], bytes]:
    """Replace the file."""
    return lambda _: content


BOM = b"\xef\xbb\xbf"
DEFECTS = [
    Defect("a byte order mark", lambda data: BOM + data, reads=ALL),
    Defect("a byte order mark in line 4", fourth(lambda line: BOM + line), reads=ALL),
    Defect("line ends of Windows", lambda data: data.replace(b"\n", b"\r\n"), reads=ALL),
    Defect("mixed line ends", fourth(lambda line: line + b"\r"), reads=ALL),
    Defect("no end of the last line", lambda data: data.rstrip(b"\n") + b"\n" * data.endswith(b"\n\n"), reads=ALL),
    Defect("line ends of old Macs", lambda data: data.replace(b"\n", b"\r"), 1, "carriage return", "tr '", ROWS),
    Defect("UTF-16", lambda data: data.decode().encode("utf-16"), 1, "0xFF", "iconv -f UTF-16", ALL),
    Defect("UTF-16, unmarked", lambda data: data.decode().encode("utf-16-le"), 1, "NUL", "iconv -f UTF-16LE", ALL),
    Defect("UTF-16, big end", lambda data: data.decode().encode("utf-16-be"), 1, "NUL", "iconv -f UTF-16BE", ALL),
    Defect("UTF-32, unmarked", lambda data: data.decode().encode("utf-32-le"), 1, "NUL", "iconv -f UTF-32LE", ALL),
    Defect("Latin-1", fourth(lambda line: line + b"\xe9"), 4, "0xE9", "iconv -f ISO-8859-1", ALL),
    Defect("quotes of Windows", fourth(lambda line: line + b" \x93x\x94"), 4, "0x93", "UTF-8", ALL),
    Defect("a NUL", fourth(lambda line: line[:2] + b"\0" + line[2:]), 4, "a NUL at character 3", "Remove", ALL),
    Defect("the end mark of DOS", lambda data: data + b"\x1a", -1, "the mark that ends files of DOS", "Delete", ROWS),
    Defect("a tab at the end of line 4", fourth(lambda line: line + b"\t"), 4, "empty", "Remove the tab", TABBED),
    Defect(
        "a tab at each end", lambda data: re.sub(rb"(\S)\n", rb"\1\t\n", data), 1, "empty", "Remove the tab", TABBED
    ),
    Defect("two tabs", fourth(lambda line: line.replace(b"\t", b"\t\t")), 4, "3 columns", "tab", PAIRED),
    Defect("an empty line", fourth(lambda line: line + b"\n"), 5, "an empty line", "Delete it", PAIRED),
    Defect(
        "empty lines at the end", lambda data: data + b"\n\n", -2, "an empty line", "Delete it", PAIRED, ROWS - PAIRED
    ),
    Defect("a page break", fourth(lambda line: line + b"\n\x0c"), 5, "an empty line", "Delete it", PAIRED),
    Defect("no file content", always(b""), None, "an empty file", "Check", ALL),
    Defect("line ends only", always(b"\n\n\n"), None, "", "", frozenset({"tag", "generate", "regress"})),
    Defect("spaces only", always(b"  \n \n"), 1, "an empty line", "Delete it", PAIRED),
    Defect("a byte order mark only", always(BOM), 1, "an empty line", "Delete it", PAIRED),
    Defect("a huge line", fourth(lambda line: line + b"x" * 2**20), 4, "a longer line", "Split", ALL),
    Defect("JSON Lines", always(b'{"a": 1, "b": "x"}\n' * 20), 1, "", "", ROWS),
    Defect("a JSON array", always(b'[{"a": 1, "b": "x"},\n {"a": 2}]\n'), 1, "", "", ROWS),
    Defect("JSON over lines", always(b'{\n  "a": [\n    1\n  ]\n}\n'), 1, "", "", ROWS),
    Defect("XML", always(b'<?xml version="1.0"?>\n<a>\n<b/>\n</a>\n'), 1, "", "", ROWS),
    Defect("a page that says not found", always(b"<!DOCTYPE html>\n<html>404 Not Found</html>\n"), 1, "", "", ROWS),
    Defect(
        "a pointer of Git LFS",
        always(b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"),
        1,
        "Git LFS",
        "git lfs pull",
        ALL,
    ),
    Defect(
        "a pointer of git-annex", always(b"/annex/objects/SHA256E-s1--4d7a.tsv\n"), 1, "annex", "git annex get", ALL
    ),
    Defect(
        "a merge conflict",
        fourth(lambda line: b"<<<<<<< HEAD\n" + line + b"\n=======\n" + line + b"\n>>>>>>> main"),
        4,
        "a merge conflict",
        "Resolve",
        ROWS,
    ),
    Defect("gzip without a name for it", gzip.compress, 1, "gzip", "ends in .gz", ALL),
    Defect("bzip2", bz2.compress, 1, "bzip2", "Unpack", ALL),
    Defect("xz", lzma.compress, 1, "xz", "Unpack", ALL),
    Defect("zstd", always(b"\x28\xb5\x2f\xfd" + bytes(range(128, 250))), 1, "zstd", "Unpack", ALL),
    Defect("a spreadsheet", always(b"PK\x03\x04\x14\0\x08\0" + bytes(range(128, 250))), 1, "zip archive", "save", ALL),
    Defect("an old spreadsheet", always(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"), 1, "spreadsheet", "Save", ALL),
    Defect("Parquet", always(b"PAR1\x15\x04" + bytes(range(128, 250))), 1, "Parquet", "Save", ALL),
    Defect("a PDF", always(b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj\n"), 1, "PDF", "Save", ALL),
    Defect("an array of NumPy", always(b"\x93NUMPY\x01\0v\0{'descr': '<f8'}\n"), 1, "NumPy", "Save", ALL),
    Defect("commas", lambda data: data.replace(b"\t", b","), 1, "", 'separated by ","', TABBED),
    Defect("several spaces", lambda data: data.replace(b"\t", b"    "), 1, "1 column", "several spaces", PAIRED),
    Defect("no-break spaces", fourth(lambda line: line.replace(b"\t", b"\xc2\xa0")), 4, "", "no-break spaces", TABBED),
    Defect("spaces around", fourth(lambda line: b"  " + line + b"  "), reads=frozenset({"regress"})),
    Defect("an invisible character", fourth(lambda line: b"\xe2\x80\x8b" + line), 4, "", "U+200B", NUMBERS),
    Defect(
        "numbered lines",
        lambda data: b"".join(b"%d\t%b\n" % (n, line) for n, line in enumerate(data.splitlines())),
        1,
        "3 columns, the first one a number",
        "cut -f2,3",
        PAIRED,
    ),
    Defect("the header in the middle", lambda data: data + data, 32, '"area"', "repeats", frozenset({"regress"})),
    Defect("a date", number("2020-01-02"), 4, '"2020-01-02"', "date", NUMBERS),
    Defect("no number", number("nan"), 4, '"nan"', "", NUMBERS),
    Defect("an exponent of Fortran", number("1.0D+3"), 4, '"1.0D+3"', "1e3", NUMBERS),
    Defect("a fraction", number("1/2"), 4, '"1/2"', "its value", NUMBERS),
    Defect("hexadecimal digits", number("0x1F"), 4, '"0x1F"', "decimal digits", NUMBERS),
    Defect("a number too large", number("9" * 400), 4, "9999", "too large", NUMBERS),
    Defect("a typographic minus sign", number("−22"), 4, "−22", "hyphen", NUMBERS),
    Defect("a currency", number("€22"), 4, "€22", "", NUMBERS),
    Defect(
        "positions in Arabic digits",
        fourth(lambda line: line.decode().replace("2 3 1", "٢ ٣ ١").encode()),
        4,
        "٢",
        "digits 0 to 9",
        frozenset({"point"}),
    ),
]


def read(task: str, path: Path) -> Any:
    """Read a file as training does."""
    recipe = TRANSLATE if task == "translate" else recipe_of(task)
    tables: dict[str, dict[str, Any]] = {"data": {"text" if task == "generate" else "data": str(path)}}
    if task == "regress":
        tables["data"] |= {"x": ["area"], "y": "rent"}
    if task == "generate":
        tables["model"] = {"context": 16}
    return recipe.read(recipe.load_settings(tables), None)


def spoiled(defect: Defect, task: str, folder: Path) -> Path:
    data = SOUND[task].encode()
    changed = defect.spoil(data)
    assert changed != data, "a defect changes the file"
    (folder / "file.tsv").write_bytes(changed)
    return folder / "file.tsv"


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_a_spoiled_file_is_read_as_the_sound_one_or_refused_by_fields(
    defect: Defect, task: str, tmp_path: Path
) -> None:
    if task not in defect.refused | defect.reads:
        return
    path = spoiled(defect, task, tmp_path)
    if task in defect.reads:
        (tmp_path / "sound.tsv").write_text(SOUND[task])
        assert shown(read(task, path)) == shown(read(task, tmp_path / "sound.tsv"))
        return
    with pytest.raises(QkvError) as caught:
        read(task, path)
    error = caught.value
    line = defect.line
    if line is not None and line < 0:
        line += 1 + len(path.read_bytes().removesuffix(b"\n").split(b"\n"))
    assert (error.file, error.line) == (str(path), line), error
    assert defect.got in error.got, error
    assert defect.hint in error.hint, error
    assert error.hint.endswith((".", "?")), error


def shown(task: Any) -> str:
    """What was read, with the texts that it consists of."""
    parts = [getattr(task, field.name) for field in fields(task) if field.name not in ("chosen", "tokenizer")]
    return re.sub(r" object at 0x[0-9a-f]+", "", repr(parts))  # of tokenizers


@pytest.mark.parametrize("task", TASKS)
def test_files_that_are_no_files_are_refused(task: str, tmp_path: Path) -> None:
    data = SOUND[task].encode()
    packed = gzip.compress(data)
    contents = {
        "short.gz": packed[:60],
        "plain.gz": data,
        "twice.gz": gzip.compress(packed),
        "tail.gz": packed + b"more",
        "empty.gz": b"",
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "nowhere").symlink_to("missing")
    (tmp_path / "loop").symlink_to("loop")
    for name, got in {
        "short.gz": "ended before",
        "plain.gz": "Not a gzipped file",
        "twice.gz": "compressed with gzip",
        "tail.gz": "Not a gzipped file",
        "empty.gz": "an empty file",
        "pipe": "a named pipe",
        "folder": "a folder",
        "nowhere": "a link to a file that does not exist",
        "loop": "Too many levels of symbolic links",
        "plain.gz/inside": "Not a directory",
        "missing.gz": "no such file",
    }.items():
        with pytest.raises(QkvError) as caught:
            read(task, tmp_path / name)
        error = caught.value
        assert (error.file, error.line) == (str(tmp_path / name), 1 if name == "twice.gz" else None), error
        assert got in error.got, error
        assert error.hint, error
