"""A table's columns become texts of symbols and back; what is wrong is named by file, line and column."""

import gzip
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qkv.data.corpus import Pair
from qkv.data.tokenizer import Tokenizer
from qkv.data.word_table import WordTable
from qkv.errors import ConfigError, DataError


def test_columns_stand_in_any_order(tmp_path: Path) -> None:
    path = tmp_path / "verbs.tsv.gz"
    path.write_bytes(gzip.compress(b"V;PST\twalked\tx\twalk\nV;PTCP;PRS\tgoing\ty\tgo\n"))
    table = WordTable(source_col=4, target_col=2, features_col=1)
    assert table.read(path) == [
        Pair("[V] [PST] w a l k", "w a l k e d", 1),
        Pair("[V] [PTCP] [PRS] g o", "g o i n g", 2),
    ]


def test_separators_split_into_symbols_of_several_characters(tmp_path: Path) -> None:
    path = tmp_path / "phones.tsv"
    path.write_text("ts|a\taː t͡s\n", encoding="utf-8")
    table = WordTable(source_sep="|", target_sep=" ")
    assert table.read(path) == [Pair("ts a", "aː t͡s", 1)]
    assert table.target_text("aː t͡s") == "aː t͡s"
    assert WordTable(target_sep="").target_text("a b") == "ab"


TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="▁"), min_size=1).filter(str.strip)


@given(TEXT, TEXT)
@example("a", "a b\u00a0c\u3000d")
def test_a_target_comes_back_from_its_symbols_and_their_ids(source: str, target: str) -> None:
    table, line = WordTable(), f"{source}\t{target}"
    symbols = table.target_symbols(line, "words.tsv:1")
    tokenizer = Tokenizer.learn([symbols, table.source_symbols(line, "words.tsv:1")], "none")
    ids = tokenizer.encode(symbols)
    assert len(ids) == len(target), "each character is one token"
    assert table.target_text(tokenizer.decode(ids)) == target
    assert tokenizer.pieces(ids) == symbols.split(" ")
    assert Tokenizer.from_json(tokenizer.to_json()).encode(symbols) == ids


def test_a_feature_is_never_a_letter() -> None:
    table = WordTable(features_col=3)
    symbols = table.source_symbols("V\tv\tV", "words.tsv:1")
    first, second = Tokenizer.learn([symbols], "none").encode(symbols)
    assert first != second


@pytest.mark.parametrize(
    ("line", "options", "message"),
    [
        ("a", {}, r"words.tsv:2: expected text in column 2; got 1 column\. Correct this line, or choose another"),
        ("a\tb", {"features_col": 3}, r"words.tsv:2: expected text in column 3; got 2 columns"),
        ("a\t ", {}, r"words.tsv:2: expected text in column 2; got an empty one"),
        ("\tb", {}, r"words.tsv:2: expected text in column 1; got an empty one"),
        ("a\tb  c", {"target_sep": " "}, r"words.tsv:2: expected symbols with one ' ' between two of them in column 2"),
        ("a\tb\tV;", {"features_col": 3}, r"words.tsv:2: expected symbols with one ';' .* in column 3; got 'V;'"),
    ],
)
def test_what_is_wrong_is_named_by_file_line_and_column(
    tmp_path: Path, line: str, options: dict[str, int | str], message: str
) -> None:
    path = tmp_path / "words.tsv"
    path.write_text(f"a\tb\tV\n{line}\n", encoding="utf-8")
    with pytest.raises(DataError, match=message):
        WordTable(**options).read(path)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source_col": 0}, r"source_col: expected at least 1; got 0\. Columns count from 1"),
        ({"features_col": -1}, "features_col: expected at least 0"),
        ({"target_col": 1}, "target_col: expected another column than source_col; got 1"),
        ({"features_col": 2}, "features_col: expected another column than target_col"),
    ],
)
def test_columns_that_cannot_be_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        WordTable(**options)
