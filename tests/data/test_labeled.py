"""Labeled and tagged files: what is read, and what is refused with file and line."""

from pathlib import Path

import pytest

from qkv.data.labeled import Labeled, labels_of, read_labeled
from qkv.data.tagged import Tagged, read_tagged
from qkv.errors import DataError


def _file(folder: Path, content: str | bytes, name: str = "data") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_labels_come_before_their_texts(tmp_path: Path) -> None:
    path = _file(tmp_path, "1\tgood  film \r\n0\tbad\n")
    assert read_labeled(path) == [Labeled("good  film ", "1", 1), Labeled("bad", "0", 2)]


@pytest.mark.parametrize(
    ("content", "line", "message"),
    [
        ("1\tgood\nbad\n", 2, "expected 2 columns, label and text, with one tab between them; got 1 column"),
        ("1\ta\tb\n", 1, "got 3 columns"),
        ("\tgood\n", 1, "got an empty label"),
        ("1\t \n", 1, "got an empty text"),
        ("1\tgood\n\n", 2, "got an empty line"),
        (b"1\t\xff\n", 1, "valid UTF-8"),
    ],
)
def test_a_bad_labeled_line_is_named(tmp_path: Path, content: str | bytes, line: int, message: str) -> None:
    path = _file(tmp_path, content)
    with pytest.raises(DataError) as raised:
        read_labeled(path)
    assert str(raised.value).startswith(f"{path}:{line}: ")
    assert message in str(raised.value)


@pytest.mark.parametrize(
    "rows",
    [
        [("a stirring film", "good"), ("a dull film", "bad"), ("what a film", "good")],
        [("a stirring film", "good"), ("a dull film", "bad"), ("so and so", "fair"), ("not at all", "bad")] * 5,
        [("the first text", "yes"), ("the second text", "no")] * 10,
    ],
)
def test_exchanged_columns_are_refused_unless_a_header_names_them(tmp_path: Path, rows: list[tuple[str, str]]) -> None:
    content = "".join(f"{text}\t{label}\n" for text, label in rows)
    path = _file(tmp_path, content)
    with pytest.raises(DataError, match="expected the label first and the text second") as raised:
        read_labeled(path)
    assert str(raised.value).startswith(f"{path}: ")
    for header, order in (("text\tlabel\n", 1), ("label\ttext\n", -1)):
        found = read_labeled(_file(tmp_path, header + content))
        assert [(item.text, item.label)[::order] for item in found] == rows
    assert len(read_labeled(_file(tmp_path, "".join(f"{label}\t{text}\n" for text, label in rows)))) == len(rows)


@pytest.mark.parametrize(
    "content",
    [
        "Scottish Gaelic\tMacLeod\nScottish Gaelic\tMacDonald\nDutch\tde Vries\n",
        "very good\tyes\nvery bad\tno\nvery bad\tnever\n",
        "world news\tyes\n",
        "a b\tx\na b\ty\n",
    ],
)
def test_long_labels_of_short_texts_are_labels(tmp_path: Path, content: str) -> None:
    assert [item.label for item in read_labeled(_file(tmp_path, content))] == [
        line.split("\t")[0] for line in content.splitlines()
    ]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("label\ttext\ngood\tfilm\n", [Labeled("film", "good", 2)]),
        ("Sentence\tLabel\r\na film\t1\n", [Labeled("a film", "1", 2)]),
        # Not headers: the label occurs again, the names are not those of columns, or nothing follows.
        ("label\ttext\nlabel\tmore\n", [Labeled("text", "label", 1), Labeled("more", "label", 2)]),
        ("class\tdismissed\ngood\tfilm\n", [Labeled("dismissed", "class", 1), Labeled("film", "good", 2)]),
        ("label\ttext\n", [Labeled("text", "label", 1)]),
    ],
)
def test_a_line_that_names_the_columns_is_a_header(tmp_path: Path, content: str, expected: list[Labeled]) -> None:
    path, told = _file(tmp_path, content), list[str]()
    assert read_labeled(path, say=told.append) == expected
    assert [str(path) + ":1: a header, skipped: " in text for text in told] == [True] * (expected[0].line - 1)


@pytest.mark.parametrize("between", ["\t", " "])
def test_a_line_that_names_words_and_tags_is_a_header(tmp_path: Path, between: str) -> None:
    content = "\nToken POS NER\nAda NNP B-PER\n\nYes UH O\n".replace(" ", between)
    told: list[str] = []
    found = read_tagged(_file(tmp_path, content), say=told.append)
    assert found == [Tagged(("Ada",), ("B-PER",), 3), Tagged(("Yes",), ("O",), 5)]
    assert [text.rpartition(": ")[2] for text in told] == ["Token POS NER"]


@pytest.mark.parametrize(("header", "between"), [("Token\tNER", " "), ("Token NER", "\t")])
def test_a_header_may_separate_its_columns_in_its_own_way(tmp_path: Path, header: str, between: str) -> None:
    told: list[str] = []
    content = f"{header}\n" + "Ada B-PER\nwrote O\n\nYes O\n".replace(" ", between)
    found = read_tagged(_file(tmp_path, content), say=told.append)
    assert found == [Tagged(("Ada", "wrote"), ("B-PER", "O"), 2), Tagged(("Yes",), ("O",), 5)]
    assert [text.rpartition(": ")[2] for text in told] == ["Token NER"]


def test_the_word_tag_is_no_header_where_its_tag_occurs_again(tmp_path: Path) -> None:
    path = _file(tmp_path, "word tag\nother tag\n")
    assert [sentence.words for sentence in read_tagged(path)] == [("word", "other")]


def test_sentences_end_at_empty_lines_and_at_the_end(tmp_path: Path) -> None:
    path = _file(tmp_path, "\nAda B-PER\nwrote O\n\n\nYes O")
    assert read_tagged(path) == [Tagged(("Ada", "wrote"), ("B-PER", "O"), 2), Tagged(("Yes",), ("O",), 6)]


def test_a_file_without_empty_lines_is_one_sentence_and_that_is_said(tmp_path: Path) -> None:
    told: list[str] = []
    path = _file(tmp_path, "Ada B-PER\nwrote O\n")
    assert [sentence.words for sentence in read_tagged(path, say=told.append)] == [("Ada", "wrote")]
    assert told == [
        f"{path}: all 2 lines are one sentence, because no line between them is empty. Write one word and its tag per "
        "line, and an empty line after each sentence."
    ]
    for content in ("Yes UH\n", "Ada B-PER\nwrote O\n\nYes O\n"):
        told.clear()
        read_tagged(_file(tmp_path, content), say=told.append)
        assert told == []


def test_columns_between_are_not_read_and_comments_are_skipped(tmp_path: Path) -> None:
    path = _file(tmp_path, "# text = Ada\nAda\tNNP\tI-NP\tB-PER\n#\t#\tO\tO\n")
    assert read_tagged(path) == [Tagged(("Ada", "#"), ("B-PER", "O"), 2)]


def test_a_hash_is_a_word_where_columns_are_spaces(tmp_path: Path) -> None:
    assert read_tagged(_file(tmp_path, "# SYM\n")) == [Tagged(("#",), ("SYM",), 1)]


@pytest.mark.parametrize(
    ("content", "line", "message"),
    [
        ("Ada B-PER\nwrote\n", 2, "expected a word and its tag; got one column"),
        ("Ada\tNNP\tO\nwrote\tO\n", 2, "expected 3 columns, as in earlier lines; got 2"),
        ("Ada\t\n", 1, "got an empty last column"),
        ("Ada  O\n B O\n", 2, "got an empty column"),
    ],
)
def test_a_bad_tagged_line_is_named(tmp_path: Path, content: str, line: int, message: str) -> None:
    path = _file(tmp_path, content)
    with pytest.raises(DataError) as raised:
        read_tagged(path)
    assert str(raised.value).startswith(f"{path}:{line}: ")
    assert message in str(raised.value)


def test_a_file_without_words_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected words with their tags; got none"):
        read_tagged(_file(tmp_path, "\n\n"))


def test_one_label_leaves_nothing_to_learn() -> None:
    with pytest.raises(DataError, match='expected at least two different labels; got only "1"'):
        labels_of(["1", "1"])
    for unit, what in (("texts", "label"), ("sentences", "tag")):
        with pytest.raises(DataError) as raised:
            labels_of(["1"], "a.tsv", unit)  # type: ignore[arg-type]
        assert what in raised.value.expected
        assert f"one {what}" in raised.value.hint
