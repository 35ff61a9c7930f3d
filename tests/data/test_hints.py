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
from qkv.data.hints import text_messages
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
