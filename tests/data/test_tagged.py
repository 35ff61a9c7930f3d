"""Tagged files in the layouts that people have: what is read as words and tags, and what is refused by name."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.data.tagged import Tagged, read_tagged, sentences_of
from qkv.errors import DataError

CONLL_U = """\
# sent_id = 1
# text = Vámonos al mar
1-2\tVámonos\t_\t_\t_\t_\t_\t_\t_\t_
1\tVamos\tir\tVERB\tVB\t_\t0\troot\t_\t_
2\tnos\tnosotros\tPRON\tPRP\t_\t1\tobj\t_\t_
3-4\tal\t_\t_\t_\t_\t_\t_\t_\t_
3\ta\ta\tADP\tIN\t_\t5\tcase\t_\t_
4\tel\tel\tDET\tDT\t_\t5\tdet\t_\t_
5\tmar\tmar\tNOUN\tNN\t_\t1\tobl\t_\tSpaceAfter=No
5.1\tfue\tir\tVERB\tVB\t_\t_\t_\t0:root\t_

1\tSí\tsí\tINTJ\tUH\t_\t0\troot\t_\t_
"""
LAYOUTS = {
    "CoNLL-U": (CONLL_U, [("Vamos nos a el mar", "VERB PRON ADP DET NOUN"), ("Sí", "INTJ")]),
    "CoNLL-2003": (
        "-DOCSTART- -X- -X- O\n\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O\n\n-DOCSTART- -X- -X- O\n\nYes UH B-NP O\n",
        [("EU rejects", "B-ORG O"), ("Yes", "O")],
    ),
    "WNUT": (
        "@user\tO\n#\tO\nEmpire\tB-location\n\t\nSoWhat\tO\n",
        [("@user # Empire", "O O B-location"), ("SoWhat", "O")],
    ),
    "GermEval": (
        "#\thttp://n-tv.de\t[2010]\t-\n1\tIn\tO\tO\n2\tBerlin\tB-LOC\tO\n\n#\thttp://x.de\t-\t-\n1\tJa\tO\tO\n",
        [("In Berlin", "O B-LOC"), ("Ja", "O")],
    ),
    "GermEval with comments": (
        "#\thttp://de.org [2010-01-01]\n1\tFC\tB-ORG\tO\n2\tDarmstadt\tI-ORG\tB-LOC\n\n# 2\n1\tJa\tO\tO\n",
        [("FC Darmstadt", "B-ORG I-ORG"), ("Ja", "O")],
    ),
    "numbers, phrases and names": (
        "1\tAda\tB-NP\tB-PER\n2\tschrieb\tB-VP\tO\n\n1\tJa\tO\tO\n",
        [("Ada schrieb", "B-PER O"), ("Ja", "O")],
    ),
    "IOB": ("Ada I-PER\nwrote O\n\n2 O\n1 O\n", [("Ada wrote", "I-PER O"), ("2 1", "O O")]),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_words_and_tags_of_a_layout(name: str, tmp_path: Path) -> None:
    text, expected = LAYOUTS[name]
    (tmp_path / "data").write_text(text, encoding="utf-8")
    sentences = read_tagged(tmp_path / "data")
    assert [(" ".join(each.words), " ".join(each.tags)) for each in sentences] == expected
    lines = text.split("\n")
    assert all(each.words[0] in lines[each.line - 1] for each in sentences)


def test_a_layout_with_numbers_is_reported(tmp_path: Path) -> None:
    (tmp_path / "data").write_text(CONLL_U, encoding="utf-8")
    messages = list[str]()
    read_tagged(tmp_path / "data", say=messages.append)
    assert [message for message in messages if "CoNLL-U" in message and "column 2" in message and "column 4" in message]


@pytest.mark.parametrize(
    ("text", "where", "got"),
    [
        ("1\tThey\t_\t_\t_\t_\t_\t_\t_\t_\n", "", '"_" in every line'),
        ("They\t_\nbuy\t_\n", "", '"_" in every line'),
        ("#begin document (bc/cctv); part 000\nbc/cctv 0 0 In IN\n", ":1", "a file of CoNLL-2012"),
        ("".join(f"{'NV'[n % 2]} word{n}\n" for n in range(40)), "", "2 different words and 40 different tags"),
        ("EU B-ORG\nGerman\tB-MISC\n", ":2", "one column"),
        ("EU\tB-ORG\nis O\n", ":2", "one column"),
    ],
)
def test_what_would_train_on_something_else_is_refused(text: str, where: str, got: str, tmp_path: Path) -> None:
    (tmp_path / "data").write_text(text, encoding="utf-8")
    with pytest.raises(DataError) as raised:
        read_tagged(tmp_path / "data")
    assert str(raised.value).startswith(f"{tmp_path / 'data'}{where}: ")
    assert f"got {got}" in str(raised.value)


def test_numbers_that_are_words_stay_words(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("1 CD O\n3 CD O\n\n2 CD O\n")
    assert read_tagged(tmp_path / "data") == [Tagged(("1", "3"), ("O", "O"), 1), Tagged(("2",), ("O",), 4)]


ROWS = ["Ada B-PER", "wrote O", "# O", "#ada O", "1 O", "", ""]
COMMENTS = ["#", "# ", "# sent_id = 3", "#note", "# text of it", "# a", "## b", "#newdoc"]


@given(lines=st.lists(st.sampled_from(ROWS), min_size=3), drawn=st.data(), tabs=st.booleans())
def test_comments_anywhere_change_no_sentence(lines: list[str], drawn: st.DataObject, tabs: bool) -> None:
    """The word "#" and hashtags stay words, because their tags are those of other words."""
    lines = ["Ada B-PER", "wrote O", *lines]
    if tabs:
        lines = [line.replace(" ", "\t") for line in lines]
    commented = list(lines)
    for comment in drawn.draw(st.lists(st.sampled_from(COMMENTS), max_size=4)):
        commented.insert(drawn.draw(st.integers(0, len(commented))), comment)

    def cells(some: list[str]) -> list[list[tuple[str, ...]]]:
        return [[row.cells for row in sentence] for sentence in sentences_of(some, "f")]

    assert cells(commented) == cells(lines)
    rows = [tuple(line.split("\t" if tabs else " ")) for line in lines if line]
    assert [row for sentence in cells(commented) for row in sentence] == rows
