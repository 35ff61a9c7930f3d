"""SentencePiece models (.spm) as tokenizers, read without the library that wrote them."""

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from qkv.errors import DataError

_UNIGRAM, _UNKNOWN = 1, 2
_SPACE = "▁"


class SentencePieces(NamedTuple):
    """A SentencePiece model.

    Attributes:
        pieces: each piece with its log-probability.
        unknown: the index of the unknown piece.
        rules: the compiled normalization of characters; empty for none.
    """

    pieces: list[tuple[str, float]]
    unknown: int
    rules: bytes

    def tokenizer(self) -> tokenizers.Tokenizer:
        """Build the tokenizer, whose ids are the indices of pieces.

        Source: Kudo and Richardson 2018, "SentencePiece"; Kudo 2018, "Subword Regularization", section 3.2 (unigram).
        """
        tokenizer = tokenizers.Tokenizer(models.Unigram(self.pieces, unk_id=self.unknown, byte_fallback=False))
        steps: list[normalizers.Normalizer] = [normalizers.Precompiled(self.rules)] if self.rules else []
        steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Replace(Regex("^ | $"), "")]
        tokenizer.normalizer = normalizers.Sequence(steps)
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(_SPACE, prepend_scheme="always")
        tokenizer.decoder = decoders.Metaspace(_SPACE, prepend_scheme="always")
        return tokenizer


def parse_sentencepieces(data: bytes, name: str) -> SentencePieces:
    """Parse a SentencePiece model of the unigram kind.

    Args:
        data: the bytes of the file.
        name: its name in messages.

    Returns:
        The model.

    Raises:
        DataError: it is not a SentencePiece model, or of another kind.

    Example:
        >>> parse_sentencepieces(b"\\x0a", "source.spm")
        Traceback (most recent call last):
        qkv.errors.DataError: source.spm: expected a SentencePiece model; got a field that ends early. ...
    """
    pieces: list[tuple[str, float]] = []
    unknown, rules, kind = -1, b"", _UNIGRAM
    try:
        for number, item in _fields(data):
            if number == 1:
                piece = dict(_fields(_bytes(item)))
                if piece.get(3, 1) == _UNKNOWN:
                    unknown = len(pieces)
                pieces.append((_bytes(piece[1]).decode(), struct.unpack("<f", piece.get(2, b"\0\0\0\0"))[0]))
            elif number == 2:
                kind = dict(_fields(_bytes(item))).get(3, _UNIGRAM)
            elif number == 3:
                rules = _bytes(dict(_fields(_bytes(item))).get(2, b""))
    except (ValueError, KeyError, TypeError, struct.error) as error:
        raise _refused(name, str(error)) from error
    if kind != _UNIGRAM or unknown < 0:
        raise _refused(name, "one without an unknown piece" if unknown < 0 else f"a model of kind {kind}")
    return SentencePieces(pieces, unknown, rules)


def _refused(name: str, got: str) -> DataError:
    hint = "Models of the unigram kind are read; copy the file again from its source."
    return DataError(name, "a SentencePiece model", got[:200], hint)


def _bytes(item: Any) -> bytes:
    if not isinstance(item, bytes):
        raise ValueError("a number in place of a text")  # noqa: TRY004 - the file is at fault, not the caller
    return item


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield number and contents of each field of a message in the protobuf encoding."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        match key & 7:
            case 0:
                item, at = _varint(data, at)
                yield key >> 3, item
                continue
            case 1:
                size = 8
            case 2:
                size, at = _varint(data, at)
            case 5:
                size = 4
            case other:
                raise ValueError(f"a field of unknown type {other}")
        if at + size > len(data):
            raise ValueError("a field that ends early")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise ValueError("a field that ends early")
        number |= (data[at] & 127) << shift
        at += 1
        if data[at - 1] < 128:
            return number, at
    raise ValueError("a number of more than 64 bits")
