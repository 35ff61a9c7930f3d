"""Words of the pieces that a tokenizer made, and which tokens are no text."""

import re
from collections.abc import Sequence
from typing import NamedTuple

_SPECIAL = re.compile(r"\[(?:CLS|SEP|PAD|MASK|BOS|EOS)\]|</?s>|<(?:bos|eos|pad)>|<\|[^|]*\|>")
_STARTS = ("▁", "Ġ")


class Word(NamedTuple):
    """A word.

    Attributes:
        text: as it is written.
        start, stop: its tokens, from start up to, but not including, stop.
    """

    text: str
    start: int
    stop: int


def is_special(token: str) -> bool:
    """Return whether a token is no text, but marks the beginning or the end of one, or padding.

    Example:
        >>> [is_special(token) for token in ("[CLS]", "</s>", "<|endoftext|>", "<unk>", ".")]
        [True, True, True, False, False]
    """
    return _SPECIAL.fullmatch(token) is not None


def words(tokens: Sequence[str]) -> list[Word]:
    """Return the words of a text: pieces that belong together are one; special tokens and punctuation stand alone.

    Example:
        >>> [word.text for word in words(["[CLS]", "em", "##bed", "##ding", ".", "[SEP]"])]
        ['[CLS]', 'embedding', '.', '[SEP]']
        >>> [word.text for word in words(["▁a", "▁mead", "ow", ".", "</s>"])]
        ['a', 'meadow', '.', '</s>']
        >>> [word.text for word in words(["mead@@", "ow", "is"])]
        ['meadow', 'is']
    """
    mark = next((mark for mark in _STARTS if any(token.startswith(mark) for token in tokens)), "")
    found: list[Word] = []
    for at, token in enumerate(tokens):
        text, joins = _piece(token, mark, tokens[at - 1] if at else "")
        if joins and found and not is_special(found[-1].text):
            last = found[-1]
            found[-1] = Word(last.text + text, last.start, at + 1)
        else:
            found.append(Word(text, at, at + 1))
    return found


def _piece(token: str, mark: str, before: str) -> tuple[str, bool]:
    """Return a token without the marks of pieces, and whether it continues the word of the token before."""
    if is_special(token):
        return token, False
    if token.startswith("##") and len(token) > 2:
        return token[2:], True
    continued = before.endswith("@@")
    bare = token.removesuffix("@@") or token
    if mark:
        return bare.lstrip(mark) or bare, not token.startswith(mark) and any(map(str.isalnum, token))
    return bare, continued
