"""Which whitespace-separated word of a text each token belongs to."""

from qkv.data.segments import JOINER, words
from qkv.data.tokenizer import Tokenizer

NO_WORD = -1


def words_of_tokens(text: str, tokenizer: Tokenizer) -> list[int]:
    """Return the index of the word of each token.

    Args:
        text: the text.
        tokenizer: the tokenizer.

    Returns:
        For each id of `tokenizer.encode(text)` the index of its word in `text.split()`; −1 for a token that is only a
        space.

    Example:
        >>> tokenizer = Tokenizer.learn(["low lower"] * 9, kind="bpe", size=264)
        >>> words_of_tokens("low lower", tokenizer)[0], words_of_tokens("low lower", tokenizer)[-1]
        (0, 1)
    """
    if tokenizer.kind == "word":
        return _of_words(tokenizer.vocabulary.prepared(text))
    if tokenizer.kind == "none":
        return list(range(len(text.split())))
    pieces = tokenizer.pieces(tokenizer.encode(text))
    spaces = [" " if tokenizer.kind == "char" else "▁", "\t", "\u00a0", "\u3000"]
    word, between = NO_WORD, True
    indices = []
    for piece in pieces:
        lead = piece[0] in spaces if piece else False
        body = piece[1:] if lead else piece
        between = between or lead
        if not body:
            indices.append(NO_WORD)
            continue
        word, between = word + between, False
        indices.append(word)
    return indices


def _of_words(text: str) -> list[int]:
    word, glued = NO_WORD, False
    indices = []
    for piece in words(text):
        if not glued and not piece.startswith(JOINER):
            word += 1
        indices.append(word)
        glued = piece.endswith(JOINER)
    return indices
