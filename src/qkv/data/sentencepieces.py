"""SentencePiece models (.spm): text to pieces and back as the library does it, read without the library."""

import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, final

from qkv.data.sentencepiece_rules import SPACE, CharacterRules, TextRules
from qkv.data.sentencepiece_search import LikeliestPieces, MergedPairs, Splitter
from qkv.errors import DataError

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
_RESERVED = (_UNKNOWN, _CONTROL, _BYTE)
_UNIGRAM, _BPE = 1, 2
_KINDS = {3: "whole words", 4: "characters"}
_LONGEST_PIECE = 1 << 10
"""Characters of a piece: the time that a text takes grows with the longest one."""
_BYTES = {f"<0x{byte:02X}>": byte for byte in range(256)}


class Piece(NamedTuple):
    """A piece of a text, and the characters from `start` to `end` that it stands for."""

    text: str
    start: int
    end: int


@final
class SentencePieces:
    """A SentencePiece model.

    Args:
        pieces: each piece with its score.
        kinds: the kind of each piece.
        trainer: settings of its training, by their numbers in the file.
        rules: settings of what is done to a text first.
        end_rules: settings of what is done to a decoded text; empty for nothing.
        name: the file's name in messages.

    Attributes:
        pieces: each piece with its score.

    Raises:
        DataError: the file has a part that is not supported, or that the library refuses.

    Source: Kudo and Richardson 2018, "SentencePiece"; its file format is sentencepiece_model.proto of version 0.2.
    """

    def __init__(
        self,
        pieces: list[tuple[str, float]],
        kinds: Sequence[int],
        *,
        trainer: Mapping[int, Any],
        rules: Mapping[int, Any],
        end_rules: Mapping[int, Any],
        name: str,
    ) -> None:
        """Check the parts, and prepare to split texts."""
        self.pieces = pieces
        self._falls_back = bool(trainer.get(35, False))
        _check(pieces, kinds, trainer.get(3, _UNIGRAM), self._falls_back, name)
        self._unknown_text = _bytes(trainer.get(44, " \u2047 ".encode())).decode()
        self._strips = bool(rules.get(3, True)), bool(rules.get(4, True))  # a space in front, all of them
        scores: dict[int, dict[str, float]] = {kind: {} for kind in range(_NORMAL, _BYTE + 1)}
        for (text, score), kind in zip(pieces, kinds, strict=True):
            scores[kind][text] = score
        self._unknown = next(iter(scores[_UNKNOWN]))
        self._control, self._of_byte = scores[_CONTROL].keys(), scores[_BYTE].keys()
        self._written_out = {**scores[_NORMAL], **scores[_USER_DEFINED], **scores[_UNUSED]}.keys()
        always = list(scores[_USER_DEFINED])
        self._rules = _text_rules(rules, name, suffix=bool(trainer.get(24, False)), untouched=always)
        self._end_rules = _text_rules(end_rules, name) if end_rules.get(2) else None
        self._splitter: Splitter = (
            LikeliestPieces(scores[_NORMAL], always)
            if trainer.get(3, _UNIGRAM) == _UNIGRAM
            else MergedPairs(
                {**scores[_NORMAL], **scores[_USER_DEFINED], **scores[_UNUSED]}, always, list(scores[_UNUSED])
            )
        )

    def normalize(self, text: str) -> str:
        """Return a text as it is split into pieces."""
        return self._rules.normalize(text)[0]

    def encode(self, text: str) -> list[Piece]:
        """Split a text into pieces.

        Neighboring unknown characters are one piece, or one for each of their bytes if the model falls back on bytes.

        Raises:
            DataError: the compiled rules are damaged.
        """
        normalized, origins = self._rules.normalize(text)
        pieces, at, after_unknown = list[Piece](), 0, False
        for part in self._splitter.split(normalized):
            span = origins[at], origins[at + len(part)]
            at += len(part)
            unknown = not self._splitter.knows(part)
            if unknown and self._falls_back:
                pieces += (Piece(f"<0x{byte:02X}>", *span) for byte in part.encode())
            elif unknown and after_unknown:
                pieces[-1] = Piece(pieces[-1].text + part, pieces[-1].start, span[1])
            else:
                pieces.append(Piece(part, *span))
            after_unknown = unknown
        return pieces

    def decode(self, pieces: Sequence[str]) -> str:
        """Join pieces to a text.

        Args:
            pieces: any texts; control pieces are left out, and bytes that are no characters become U+FFFD.
        """
        text, of_bytes, begins, removed = "", bytearray(), True, False
        for piece in pieces:
            if piece in self._of_byte:
                of_bytes.append(_BYTES[piece])
                continue
            text, of_bytes = text + _characters(of_bytes), bytearray()
            begins = begins and not removed and not text
            body, removed = self._written(piece, begins)
            text += body
        text += _characters(of_bytes)
        return text if self._end_rules is None else self._end_rules.normalize(text)[0]

    def _written(self, piece: str, begins: bool) -> tuple[str, bool]:
        """Return how a piece is written, and whether the one space that is removed was its own."""
        if piece in self._control:
            return "", False
        if piece not in self._written_out:
            return self._unknown_text if piece == self._unknown else piece, False
        strips = begins and any(self._strips) and piece.startswith(SPACE)
        return piece[strips:].replace(SPACE, " "), strips and not self._strips[1]


def parse_sentencepieces(data: bytes, name: str) -> SentencePieces:
    """Parse a SentencePiece model of the unigram or the byte-pair kind.

    Args:
        data: the bytes of the file.
        name: its name in messages.

    Returns:
        The model.

    Raises:
        DataError: it is not a SentencePiece model, or has a part that is not supported.

    Example:
        >>> parse_sentencepieces(b"\\x0a", "source.spm")
        Traceback (most recent call last):
        qkv.errors.DataError: source.spm: expected a SentencePiece model; got a field that ends early. ...
    """
    pieces, kinds = list[tuple[str, float]](), list[int]()
    parts: dict[int, dict[int, Any]] = {2: {}, 3: {}, 5: {}}
    try:
        for number, item in _fields(data):
            if number == 1:
                piece = dict(_fields(_bytes(item)))
                pieces.append((_bytes(piece[1]).decode(), struct.unpack("<f", piece.get(2, b"\0\0\0\0"))[0]))
                kinds.append(piece.get(3, _NORMAL))
            elif number in parts:
                parts[number] |= dict(_fields(_bytes(item)))
        return SentencePieces(pieces, kinds, trainer=parts[2], rules=parts[3], end_rules=parts[5], name=name)
    except (ValueError, KeyError, TypeError, struct.error) as error:
        if isinstance(error, DataError):
            raise
        raise _refused(name, str(error)) from error


def _check(pieces: Sequence[tuple[str, float]], kinds: Sequence[int], model: int, falls_back: bool, name: str) -> None:
    """Refuse what the library refuses, and what is not supported."""
    if fault := _fault_of_settings(kinds, model) or _fault_of_pieces(pieces, kinds, model, falls_back):
        raise _refused(name, fault)


def _fault_of_settings(kinds: Sequence[int], model: int) -> str | None:
    if model not in (_UNIGRAM, _BPE):
        return f"a model of {_KINDS.get(model, f'the unknown kind {model}')}"
    strange = next((kind for kind in kinds if kind not in range(_NORMAL, _BYTE + 1)), None)
    if strange is not None:
        return f"a piece of the unknown kind {strange}"
    if (count := list(kinds).count(_UNKNOWN)) != 1:
        return f"one with {count} unknown pieces" if count else "one without an unknown piece"
    return None


def _fault_of_pieces(
    pieces: Sequence[tuple[str, float]], kinds: Sequence[int], model: int, falls_back: bool
) -> str | None:
    counts = Counter((text, kind in _RESERVED) for (text, _), kind in zip(pieces, kinds, strict=True))
    of_byte = {text for (text, _), kind in zip(pieces, kinds, strict=True) if kind == _BYTE}
    control = {text for (text, _), kind in zip(pieces, kinds, strict=True) if kind == _CONTROL and len(text) == 1}
    faults = {
        "an empty piece": any(not text for text, _ in counts),
        f"a piece of more than {_LONGEST_PIECE:,} characters": any(len(text) > _LONGEST_PIECE for text, _ in counts),
        f"the piece {ascii(counts.most_common(1)[0][0][0])[:80]} twice": max(counts.values()) > 1,
        "byte pieces that are not those of byte fallback": of_byte != (_BYTES.keys() if falls_back else set()),
        f"byte pairs with the control piece {min(control, default='')!a}": model == _BPE and bool(control),
    }
    return next((fault for fault, holds in faults.items() if holds), None)


def _text_rules(
    settings: Mapping[int, Any], name: str, *, suffix: bool = False, untouched: Sequence[str] = ()
) -> TextRules:
    return TextRules(
        CharacterRules(_bytes(settings.get(2, b"")), name),
        dummy_prefix=bool(settings.get(3, True)),
        remove_extra=bool(settings.get(4, True)),
        escape=bool(settings.get(5, True)),
        suffix=suffix,
        untouched=untouched,
    )


def _characters(body: bytearray) -> str:
    """Decode bytes; each byte that is not part of a character becomes U+FFFD."""
    text, at = "", 0
    while at < len(body):
        for size in range(1, 5):
            try:
                text, at = text + body[at : at + size].decode(), at + size
                break
            except UnicodeDecodeError:
                continue
        else:
            text, at = text + "\ufffd", at + 1
    return text


def _refused(name: str, got: str) -> DataError:
    hint = "Models of the kinds unigram and bpe are read; copy the file again from its source."
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
