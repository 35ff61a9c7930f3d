"""Texts that are read as they stand, although a program wrote them for another reader."""

import csv
import io
import json
from collections.abc import Callable
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.data.corpus import Pair
from qkv.data.hints import TABLE, Section, no_text, seems, text_messages
from qkv.data.pointing import coordinates_message, parse_pairs

WORDS = ["ein", "großer", "Hund", "läuft", "über", "eine", "Wiese", ",", "#", "2"]
SOUND = [" ".join(WORDS[at:] + WORDS[:at]) for at in range(len(WORDS))]


def said(*columns: list[str]) -> str:
    return "\n".join(text_messages(range(1, len(columns[0]) + 1), *columns))


def halves(word: str, before: str, after: str) -> str:
    return word if len(word) < 4 else f"{word[:2]}{after} {before}{word[2:]}"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("subword-nmt", lambda words: " ".join(halves(word, "", "@@") for word in words)),
        ("SentencePiece", lambda words: " ".join(halves(f"▁{word}", "", "") for word in words)),
        ("WordPiece", lambda words: " ".join(halves(word, "##", "") for word in words)),
        ("OpenNMT", lambda words: " ".join(halves(word, "￭", "") for word in words)),
        ("OpenNMT", lambda words: " ".join(halves(word, "", "￭") for word in words)),
    ],
)
def test_pieces_of_words_are_named_with_what_joins_them(name: str, text: Callable[[list[str]], str]) -> None:
    pieces = [text(line.split()) for line in SOUND]
    assert name in said(pieces)
    assert name in said(SOUND, pieces), "each side is judged by itself"
    assert "sed '" in said(pieces)
    assert not said(SOUND)
    assert not said(SOUND * 20, [*SOUND * 19, *SOUND[:-1], pieces[0]]), "one line is a text about pieces"


@pytest.mark.parametrize("indent", [None, 0, 2])
@pytest.mark.parametrize("rows", [["a dog"], [{"text": "a dog"}, {"text": "[x]"}], {"data": ["a dog"]}])
def test_json_is_named_however_it_is_laid_out(rows: object, indent: int | None) -> None:
    assert "JSON" in said(["", *json.dumps(rows, indent=indent).split("\n"), ""])
    assert "JSON" in said([json.dumps(rows)] * 3)
    assert not said(["[", "a stage direction"]) + said(["[1] a note", "in a text"]) + said([""])


FIELDS = st.text("ab \"'", min_size=1, max_size=8)


@given(rows=st.lists(st.tuples(FIELDS, FIELDS), min_size=2, max_size=6), style=st.sampled_from([0, 1, 2]))
def test_quotation_marks_that_a_table_writes_are_named(rows: list[tuple[str, str]], style: Literal[0, 1, 2]) -> None:
    """As pandas does with its default, QUOTE_MINIMAL, with QUOTE_ALL and QUOTE_NONNUMERIC."""
    written = io.StringIO()
    csv.writer(written, delimiter="\t", quoting=style, lineterminator="\n").writerows(rows)
    fields = [line.split("\t") for line in written.getvalue().split("\n")[:-1]]
    columns, plain = ([list(column) for column in zip(*table, strict=True)] for table in (fields, rows))
    assert columns == plain or "quotation marks of CSV" in said(*columns)
    if not any('"' in field for row in rows for field in row):
        assert not said(*plain)


@given(st.lists(st.integers(3, 7), min_size=1, max_size=4), st.booleans())
def test_coordinates_that_are_elements_are_named(sizes: list[int], vectors: bool) -> None:
    mark = "," if vectors else " "
    lines = [" ".join(f"0.{n}{mark}0.{n + 1}" for n in range(1, size + 1)) for size in sizes]
    paths = [" ".join(map(str, [*range(1, size + 1), 1])) for size in sizes]
    pairs = [Pair(line, path, number) for number, (line, path) in enumerate(zip(lines, paths, strict=True), 1)]
    items, _ = parse_pairs(pairs, ("f", "f"))
    assert (coordinates_message(items) is None) == vectors
    assert coordinates_message([items[0]._replace(target=(1, 2))]) is None


EXAMPLES: dict[Section, list[str]] = {
    "signature": [
        "\x1f\x8b\x08",
        "BZh91AY&SY\xe9",
        "\xfd7zXZ\0",
        "(\xb5/\xfd",
        "7z\xbc\xaf'\x1c",
        "PK\x03\x04\x14",
        "\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",
        "%PDF-1.7\n",
        "PAR1\x15\x04",
        "ARROW1\0\0",
        "\x89HDF\r\n\x1a\n",
        "\x93NUMPY\x01",
        "SQLite format 3\0",
        "Rar!\x1a\x07\x01",
        "GIF89a\x01\0",
        "\x80\x05\x95",
    ],
    "start of a file": [
        "version https://git-lfs.github.com/spec/v1\n",
        "/annex/objects/SHA256E-s9\n",
        "a\0\0\0",
        "\0\0\0a",
        "a\0b\0",
        "\0a\0b",
        "x" * 257 + "ustar",
    ],
    "bytes of no text": ["\x07\x93abc\xff\x01"],
    "byte order mark": ["\xff\xfe\0\0", "\xff\xfea\0"],
    "bytes": ["\x93a\x94", "na\xefve"],
    "misplaced line": [" ", "\x1a", ">>>>>>> branch", "a\rb"],
    "format": ['{"text": 1}', "<!DOCTYPE html>", "T1\tPERSON 0 3\tAda", "(S (NP Ada) (VP wrote))"],
    "one column": [
        "__label__good a film",
        r"good\ta film",
        "0.1 0.2 0.3 0.4 output 1 2 1",
        "good ||| a film",
        "good;a film",
        "good,a film",
        "good|a film",
        "good  a film",
        "good\u00a0a film",
    ],
    "tagged line": ["#begin document (bc/cctv); part 000"],
    "separator line": ["sep=;"],
    "table": ["[1, 2]", "<table>", "| a | b |"],
    "table of one column": ["a | b"],
    "cell": ["-Inf", "#DIV/0!", "=A1+B1", "about ten"],
    "number": ["2024-01-31", "12:30", "\u22125", "1/2", "1.0D+3", "0xFF", "nan"],
    "position": ["0", "1,2", "\u0661", '"1"'],
}
"""A text for each row of the table, in its order."""


@pytest.mark.parametrize("section", TABLE)
def test_each_row_recognizes_its_text_before_later_rows(section: Section) -> None:
    for (_, kind, hint), text in zip(TABLE[section], EXAMPLES[section], strict=True):
        found = seems(text, section, columns="a<TAB>b")
        assert found is not None
        assert found[0] == kind.replace("{text}", text)
        assert found[1].startswith(hint.partition("{")[0])
        assert "{" not in "".join(found)


@pytest.mark.parametrize("text", ["a dog", "ein Hund\ta dog", "PARis", "BZh and so on", "3", "#tag O", "1 2"])
def test_usual_lines_seem_to_be_nothing_else(text: str) -> None:
    assert no_text(text.encode()) is None
    assert seems(text, "misplaced line", "format", "tagged line", "number") is None
