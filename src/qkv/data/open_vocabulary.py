"""Words that the vocabulary lacks, numbered by the source they stand in: what a model that copies can still write."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from qkv.data.segments import bare, join_words, words
from qkv.data.tokenizer import Tokenizer


class OpenSource(NamedTuple):
    """A source text.

    Attributes:
        ids: of its pieces; N + i is the i-th different one that the vocabulary, of N pieces, lacks.
        unknown: those pieces.
    """

    ids: tuple[int, ...]
    unknown: tuple[str, ...]


def encode_source(text: str, tokenizer: Tokenizer) -> OpenSource:
    """Number a source's pieces, those that the vocabulary lacks by their first place.

    Args:
        text: any text.
        tokenizer: of words or characters; byte pairs lack nothing.

    Returns:
        The ids, and what the vocabulary lacks.

    Raises:
        DataError: a lone surrogate in the text.

    Example:
        >>> tokenizer = Tokenizer.learn(["my name is"], kind="word")
        >>> encode_source("my name is Zuri , Zuri", tokenizer).unknown
        ('Zuri', ',')
    """
    ids = tokenizer.encode(text)
    unknown: dict[str, int] = {}
    opened = tuple(
        unknown.setdefault(bare(piece), tokenizer.size + len(unknown)) if number == tokenizer.unk else number
        for number, piece in _named(ids, text, tokenizer)
    )
    return OpenSource(opened, tuple(unknown))


def encode_target(text: str, tokenizer: Tokenizer, unknown: Sequence[str]) -> tuple[int, ...]:
    """Number a target's pieces; those that the vocabulary lacks as in their source, or unknown where it has none.

    Example:
        >>> tokenizer = Tokenizer.learn(["hello"], kind="word")
        >>> encode_target("hello Zuri Ada", tokenizer, ["Zuri"]) == (4, 5, tokenizer.unk)
        True
    """
    places = {piece: tokenizer.size + place for place, piece in enumerate(unknown)}
    named = _named(tokenizer.encode(text), text, tokenizer)
    return tuple(places.get(bare(piece), number) if number == tokenizer.unk else number for number, piece in named)


def decode_open(ids: Iterable[int], tokenizer: Tokenizer, unknown: Sequence[str]) -> str:
    """Write ids as text, those beyond the vocabulary as the source's words.

    Example:
        >>> tokenizer = Tokenizer.learn(["hello"], kind="word")
        >>> decode_open([4, 5], tokenizer, ["Zuri"])
        'hello Zuri'
    """
    kept = [number for number in ids if number not in (tokenizer.pad, tokenizer.bos, tokenizer.eos)]
    if all(number < tokenizer.size for number in kept):
        return tokenizer.decode(kept)
    pieces = [
        unknown[number - tokenizer.size] if number >= tokenizer.size else tokenizer.vocabulary.pieces[number]
        for number in kept
    ]
    return join_words(pieces) if tokenizer.kind == "word" else "".join(pieces)


def pieces_open(ids: Iterable[int], tokenizer: Tokenizer, unknown: Sequence[str]) -> list[str]:
    """Name each id for a reader.

    Example:
        >>> tokenizer = Tokenizer.learn(["hello"], kind="word")
        >>> pieces_open([4, 5], tokenizer, ["Zuri"])
        ['hello', 'Zuri']
    """
    return [
        unknown[number - tokenizer.size] if number >= tokenizer.size else tokenizer.pieces([number])[0]
        for number in ids
    ]


def surfaces(text: str, tokenizer: Tokenizer) -> list[str]:
    """What each piece of a text looks like in it; of words and characters, for byte pairs lack nothing.

    Example:
        >>> tokenizer = Tokenizer.learn(["hello"], kind="word")
        >>> surfaces("hello Zuri", tokenizer)
        ['hello', 'Zuri']
    """
    return [bare(piece) for piece in words(text)] if tokenizer.kind == "word" else list(text)


def _named(ids: Sequence[int], text: str, tokenizer: Tokenizer) -> list[tuple[int, str]]:
    """Each id with the piece of text it stands for."""
    if tokenizer.kind == "bpe" or tokenizer.unk not in ids:
        return [(number, "") for number in ids]
    text = text.lower() if tokenizer.vocabulary.lowercase else text
    pieces: Iterable[str] = words(text) if tokenizer.kind == "word" else text
    return list(zip(ids, pieces, strict=True))
