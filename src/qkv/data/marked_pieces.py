"""Text whose words another library has split into marked pieces, and how they are joined."""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_RARE = 10
"""Pieces are recognized if at least one text in this many has some."""


class PieceMarks(NamedTuple):
    """How a library marks the pieces of words.

    Attributes:
        library: its name.
        mark: what each of its pieces holds.
        piece: a piece that only this library writes.
        sed: the script of sed that joins pieces.
    """

    library: str
    mark: str
    piece: re.Pattern[str]
    sed: str

    def join(self, text: str) -> str:
        """Join the pieces of a text to words, as its sed script does.

        Example:
            >>> subword_nmt, sentencepiece, *_ = MARKS
            >>> subword_nmt.join("the c@@ at slee@@"), sentencepiece.join("▁the ▁c at")
            ('the cat slee', 'the cat')
        """
        for command in self.sed.split("; "):
            _, old, new, _ = command.split("/")
            text = re.sub(old, new, text)
        return text


MARKS = (
    PieceMarks("subword-nmt", "@@", re.compile(r"(?<!\S)\S+@@(?= )"), "s/@@ //g; s/@@$//"),
    PieceMarks("SentencePiece", "▁", re.compile(r"(?:^|(?<= ))▁\S+"), "s/ //g; s/▁/ /g; s/^ //"),
    PieceMarks("WordPiece", "##", re.compile(r"(?<= )##\w\S*"), "s/ ##//g"),
    PieceMarks("OpenNMT", "￭", re.compile(r"(?<!\S)(?:￭\S+|\S+￭(?!\S))"), "s/ ￭//g; s/￭ //g; s/￭$//"),
)
"""The libraries whose pieces are recognized. Each pattern starts at a word boundary, so that matching is linear."""


def recognized_pieces(texts: Sequence[str]) -> Iterator[tuple[PieceMarks, str]]:
    """Yield each library whose pieces occur in many texts, with one piece; a few may be texts about pieces.

    Example:
        >>> [(marks.library, piece) for marks, piece in recognized_pieces(["a d@@ og", ""])]
        [('subword-nmt', 'd@@')]
    """
    for marks in MARKS:
        marked = [text for text in texts if marks.mark in text]
        pieces = [piece[0] for piece in map(marks.piece.search, marked) if piece is not None]
        if pieces and _RARE * len(pieces) >= sum(bool(text.strip()) for text in texts):
            yield marks, pieces[0]


def piece_marks(texts: Sequence[str]) -> PieceMarks | None:
    """Return how the words of texts are split into marked pieces; None if they are not split."""
    return next((marks for marks, _ in recognized_pieces(texts)), None)


def joined_words(texts: Sequence[str], marks: PieceMarks | None = None) -> list[str]:
    """Return texts with their pieces joined to words; texts of whole words as they are.

    Args:
        texts: of words or of pieces.
        marks: how pieces are marked; None to recognize it.

    Example:
        >>> joined_words(["the c@@ at"]), joined_words(["the cat"])
        (['the cat'], ['the cat'])
    """
    marks = marks or piece_marks(texts)
    return list(texts) if marks is None else list(map(marks.join, texts))
