"""Which whitespace-separated word of a text each token belongs to."""

from qkv.data.segments import JOINER, words
from qkv.data.tokenizer import Tokenizer

NO_WORD = -1


def word_places(text: str, tokenizer: Tokenizer) -> list[int]:
    """Return the index of the word of each token.

    Args:
        text: the text.
        tokenizer: the tokenizer.

    Returns:
        For each id of `tokenizer.encode(text)` the index of its word in `text.split()`; −1 for a token that is only a
        space.

    Example:
        >>> tokenizer = Tokenizer.learn(["low lower"] * 9, kind="bpe", size=264)
        >>> word_places("low lower", tokenizer)[0], word_places("low lower", tokenizer)[-1]
        (0, 1)
    """
    if tokenizer.kind == "word":
        return _of_words(tokenizer.vocabulary.prepared(text))
    if tokenizer.kind == "none":
        return list(range(len(text.split())))
    pieces = tokenizer.pieces(tokenizer.encode(text))
    spaces = [" " if tokenizer.kind == "char" else "▁", "\t", "\u00a0", "\u3000"]
    place, between = NO_WORD, True
    found = []
    for piece in pieces:
        lead = piece[0] in spaces if piece else False
        body = piece[1:] if lead else piece
        between = between or lead
        if not body:
            found.append(NO_WORD)
            continue
        place, between = place + between, False
        found.append(place)
    return found


def _of_words(text: str) -> list[int]:
    place, glued = NO_WORD, False
    found = []
    for piece in words(text):
        if not glued and not piece.startswith(JOINER):
            place += 1
        found.append(place)
        glued = piece.endswith(JOINER)
    return found
