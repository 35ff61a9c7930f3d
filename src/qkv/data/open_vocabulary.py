"""Out-of-vocabulary words, numbered within their source, so that a model that copies can write them."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from qkv.data.segments import bare, join_pieces, split_text
from qkv.data.tokenizer import Tokenizer


class OpenSource(NamedTuple):
    """A source text.

    Attributes:
        ids: its token ids; N + i is its i-th distinct out-of-vocabulary token, with N the vocabulary size.
        unknown: those tokens.
    """

    ids: tuple[int, ...]
    unknown: tuple[str, ...]


def encode_source(text: str, tokenizer: Tokenizer) -> OpenSource:
    """Encode a source, with out-of-vocabulary tokens numbered in order of first occurrence.

    Args:
        text: any text.
        tokenizer: a tokenizer of words or characters; pieces of bytes have no unknown tokens.

    Returns:
        The ids, and the out-of-vocabulary tokens.

    Raises:
        DataError: the text contains a lone surrogate.

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
    """Encode a target, with out-of-vocabulary tokens numbered as in the source, or as unknown if the source lacks them.

    Example:
        >>> tokenizer = Tokenizer.learn(["hello"], kind="word")
        >>> encode_target("hello Zuri Ada", tokenizer, ["Zuri"]) == (4, 5, tokenizer.unk)
        True
    """
    numbers = {piece: tokenizer.size + index for index, piece in enumerate(unknown)}
    named = _named(tokenizer.encode(text), text, tokenizer)
    return tuple(numbers.get(bare(piece), number) if number == tokenizer.unk else number for number, piece in named)


def encode_pair(
    source: str, target: str, tokenizer: Tokenizer, *, copies: bool
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Encode a source and its target.

    Args:
        source, target: their texts.
        tokenizer: text to tokens; of a model that copies, one of words or characters.
        copies: whether out-of-vocabulary tokens are numbered, for a model that copies.

    Returns:
        The ids of both.

    Example:
        >>> tokenizer = Tokenizer.learn(["hello"], kind="word")
        >>> encode_pair("hello Zuri", "Zuri", tokenizer, copies=True)
        ((4, 5), (5,))
    """
    if not copies:
        return tuple(tokenizer.source.encode(source)), tuple(tokenizer.encode(target, target=True))
    numbered = encode_source(source, tokenizer)
    return numbered.ids, encode_target(target, tokenizer, numbered.unknown)


def decode_open(ids: Iterable[int], tokenizer: Tokenizer, unknown: Sequence[str]) -> str:
    """Decode ids; those beyond the vocabulary are words of the source.

    Example:
        >>> tokenizer = Tokenizer.learn(["hello"], kind="word")
        >>> decode_open([4, 5], tokenizer, ["Zuri"])
        'hello Zuri'
    """
    pieces_only = [number for number in ids if number not in (tokenizer.pad, tokenizer.bos, tokenizer.eos)]
    # The vocabulary of a published model may be larger than that of its tokenizer: the ids beyond stand for no text.
    if not unknown or all(number < tokenizer.size for number in pieces_only):
        return tokenizer.decode(pieces_only)
    pieces = [
        unknown[number - tokenizer.size] if number >= tokenizer.size else tokenizer.vocabulary.pieces[number]
        for number in pieces_only
    ]
    return join_pieces(pieces, tokenizer.kind)


def pieces_open(ids: Iterable[int], tokenizer: Tokenizer, unknown: Sequence[str]) -> list[str]:
    """Return a readable name for each id.

    Example:
        >>> tokenizer = Tokenizer.learn(["hello"], kind="word")
        >>> pieces_open([4, 5], tokenizer, ["Zuri"])
        ['hello', 'Zuri']
    """
    return [
        unknown[number - tokenizer.size] if unknown and number >= tokenizer.size else tokenizer.pieces([number])[0]
        for number in ids
    ]


def surfaces(text: str, tokenizer: Tokenizer) -> list[str]:
    """Return the surface form of each token of a text, of words or characters; pieces of bytes are never unknown.

    Example:
        >>> tokenizer = Tokenizer.learn(["hello"], kind="word")
        >>> surfaces("hello Zuri", tokenizer)
        ['hello', 'Zuri']
    """
    pieces = split_text(tokenizer.vocabulary.normalized(text), tokenizer.kind)
    return [bare(piece) if tokenizer.kind == "word" else piece for piece in pieces]


def _named(ids: Sequence[int], text: str, tokenizer: Tokenizer) -> list[tuple[int, str]]:
    """Return each id with the text it represents."""
    if tokenizer.of_bytes or tokenizer.unk not in ids:
        return [(number, "") for number in ids]
    text = tokenizer.vocabulary.prepared(text)
    return list(zip(ids, split_text(text, tokenizer.kind), strict=True))
