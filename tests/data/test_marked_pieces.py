"""Pieces of words that other libraries mark: recognized, and joined to the words that they were."""

from collections.abc import Callable
from random import Random

import pytest

from qkv.data.marked_pieces import MARKS, PieceMarks, joined_words, piece_marks

WORDS = ["ein", "großer", "Hund", "läuft", "über", "eine", "Wiese", ",", "#", "2"]
TEXTS = [" ".join(Random(seed).choices(WORDS, k=1 + seed % 9)) + " Katze" for seed in range(40)]


def split(text: str, mark: Callable[[str, bool], str]) -> str:
    """Split each word of a text into pieces of one to three characters; `mark` is told whether a piece is the first."""
    pieces, random = list[str](), Random(text)
    for word in text.split():
        start = 0
        while start < len(word):
            end = min(len(word), start + random.randint(1, 3))
            pieces.append(mark(word[start:end], start == 0) + ("" if end == len(word) else "\0"))
            start = end
    return " ".join(pieces)


SPLITTERS: dict[str, Callable[[str], str]] = {
    "subword-nmt": lambda text: split(text, lambda piece, first: piece).replace("\0", "@@"),
    "SentencePiece": lambda text: split(text, lambda piece, first: "▁" * first + piece).replace("\0", ""),
    "WordPiece": lambda text: split(text, lambda piece, first: "##" * (not first) + piece).replace("\0", ""),
    "OpenNMT": lambda text: split(text, lambda piece, first: piece).replace("\0", "￭"),
}


@pytest.mark.parametrize("marks", MARKS, ids=lambda marks: marks.library)
def test_pieces_become_the_words_that_they_were(marks: PieceMarks) -> None:
    pieces = [SPLITTERS[marks.library](text) for text in TEXTS]
    assert piece_marks(pieces) == marks
    assert joined_words(pieces) == TEXTS
    assert joined_words(pieces[:1], marks) == TEXTS[:1]
    assert joined_words([*TEXTS, pieces[0]]) == [*TEXTS, pieces[0]], "one in forty is a text about pieces"


def test_what_is_whole_stays() -> None:
    for texts in (TEXTS, [], [""], ["b @@ d", "a @ b"], ["▁ h a u s ▁"], ["# a ## b"]):
        assert joined_words(texts) == texts


@pytest.mark.parametrize("letter", ["a", "@", "▁", "#", "￭"])
def test_a_line_without_a_space_takes_time_that_is_linear(letter: str) -> None:
    """A quadratic pattern would take hours for a million letters."""
    line = "字" + letter * 1_000_000 + "字"
    assert joined_words([line, line]) == [line, line]


def test_an_answer_that_ends_within_a_word_keeps_no_mark() -> None:
    subword_nmt, _, _, opennmt = MARKS
    assert subword_nmt.join("the ca@@") == "the ca" == opennmt.join("the ca￭")
