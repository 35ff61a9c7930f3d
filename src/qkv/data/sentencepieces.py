"""SentencePiece models (.spm), read by the sentencepiece library, which is imported with the first model."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, final

from qkv.data.growth import expect_modest_charsmap
from qkv.errors import DataError

_RULES, _COMPILED = (3, 5), 2
"""Field numbers of the normalizer and the denormalizer in a model, and of the compiled rules in each."""


class Piece(NamedTuple):
    """A piece of a text, and the characters from `start` to `end` that it stands for."""

    text: str
    start: int
    end: int


@final
class SentencePieces:
    """A SentencePiece model of any kind.

    Args:
        data: the bytes of the file.
        name: its name in messages.

    Raises:
        DataError: it is not a SentencePiece model, or its rules could make a large text of a small one.

    Source: Kudo and Richardson 2018, "SentencePiece".

    Example:
        >>> SentencePieces(b"\\x0a", "source.spm")
        Traceback (most recent call last):
        qkv.errors.DataError: source.spm: expected a SentencePiece model; got a field that ends early. ...
    """

    def __init__(self, data: bytes, name: str) -> None:
        for charsmap in _charsmaps(data, name):
            expect_modest_charsmap(charsmap, name)
        from sentencepiece import SentencePieceProcessor

        try:
            self._model: Any = SentencePieceProcessor(model_proto=data)
            pieces = self._model.id_to_piece(list(range(self._model.get_piece_size())))
        except (RuntimeError, TypeError, ValueError) as error:  # also pieces that are not UTF-8
            raise _refused(name, str(error).removeprefix("INTERNAL: ")) from None
        if not pieces:
            raise _refused(name, "one without pieces")

    def normalize(self, text: str) -> str:
        """Return a text as it is split into pieces."""
        return str(self._model.normalize(text))

    def encode(self, text: str) -> list[Piece]:
        """Split a text into pieces; neighboring unknown characters are one, or one for each byte with byte fallback."""
        encoded = self._model.encode(text, return_type="offset_mapping")
        return [Piece(piece, *span) for piece, span in zip(encoded["pieces"], encoded["offsets"], strict=True)]

    def decode(self, pieces: Sequence[str]) -> str:
        """Join pieces to a text; control pieces are left out, and bytes that are no characters become U+FFFD."""
        return str(self._model.decode_pieces(list(pieces)))


def _charsmaps(data: bytes, name: str) -> list[bytes]:
    """Return the compiled rules of characters in a model."""
    try:
        parts = [body for number, body in _fields(data) if number in _RULES]
        return [rules for part in parts for number, rules in _fields(part) if number == _COMPILED]
    except ValueError as error:
        raise _refused(name, str(error)) from None


def _refused(name: str, got: str) -> DataError:
    return DataError(name, "a SentencePiece model", got[:200], "Copy the file again from its source.")


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the bytes of each field of a protobuf message, without varint fields."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        match key & 7:
            case 0:
                _, at = _varint(data, at)
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
