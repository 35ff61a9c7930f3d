"""A tokenizer's vocabulary, as a value that can be saved and loaded.

The JSON contains only names and lists of strings. The code that uses them is selected here by the name of the kind,
never by the file, and everything is checked before use.
"""

import json
from dataclasses import dataclass
from typing import Literal, NoReturn, cast, get_args

from qkv.data.segments import byte_alphabet
from qkv.errors import ConfigError, DataError, error_message, nearest

Kind = Literal["bpe", "word", "char", "none"]
KINDS: tuple[str, ...] = get_args(Kind)
SPECIALS = ("<pad>", "<bos>", "<eos>", "<unk>")
"""The first four pieces of every vocabulary; no text ever encodes to the first three."""

_FORMAT = "qkv tokenizer 1"
_FIELDS = ("format", "kind", "lowercase", "pieces", "merges")
_MEND = "Restore the file from its source, or train the tokenizer again."


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens of a tokenizer in the order of their ids.

    Args:
        kind: "bpe", "word", "char" or "none".
        lowercase: whether text is lower-cased first.
        pieces: every token, special ones first; a token's index is its id.
        merges: for "bpe" the pairs to merge, in the order learned.

    Example:
        >>> Vocabulary("char", False, (*SPECIALS, "a", "b"), ()).to_json()[:31]
        '{\\n "format": "qkv tokenizer 1",'
    """

    kind: Kind
    lowercase: bool
    pieces: tuple[str, ...]
    merges: tuple[tuple[str, str], ...]

    def to_json(self) -> str:
        """Serialize the vocabulary as JSON; the same vocabulary always gives the same JSON.

        Returns:
            The JSON, ending in a newline.

        Example:
            >>> vocabulary = Vocabulary("char", False, (*SPECIALS, "a"), ())
            >>> Vocabulary.from_json(vocabulary.to_json()) == vocabulary
            True
        """
        merges = [f"{left} {right}" for left, right in self.merges]
        values = (_FORMAT, self.kind, self.lowercase, self.pieces, merges)
        return json.dumps(dict(zip(_FIELDS, values, strict=True)), ensure_ascii=False, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Vocabulary":
        """Parse a vocabulary and check every part of it.

        Args:
            text: the output of `to_json`.

        Returns:
            The vocabulary.

        Raises:
            DataError: `to_json` could not have written the text.

        Example:
            >>> Vocabulary.from_json("{}")
            Traceback (most recent call last):
            qkv.errors.DataError: tokenizer: expected the fields format, kind, lowercase, pieces, merges; got none. ...
        """
        document = _parse(text)
        kind, lowercase = _kind(document["kind"]), document["lowercase"]
        if not isinstance(lowercase, bool):
            _refuse("lowercase to be true or false", _shown(lowercase))
        pieces = _strings(document["pieces"], "pieces")
        merges = tuple(_merge(merge) for merge in _strings(document["merges"], "merges"))
        _check_pieces(kind, pieces)
        _check_merges(kind, pieces, merges)
        return cls(kind, lowercase, pieces, merges)


def check_kind(name: str) -> Kind:
    """Check the name of a tokenizer kind.

    Args:
        name: the name.

    Returns:
        The name.

    Raises:
        ConfigError: the kind is unknown.

    Example:
        >>> check_kind("word")
        'word'
    """
    if name not in KINDS:
        raise ConfigError(error_message("kind", "bpe, word, char or none", _shown(name), nearest(str(name), KINDS)))
    return cast("Kind", name)


def _parse(text: str) -> dict[str, object]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        _refuse("JSON", str(error))
    if not isinstance(document, dict):
        _refuse("a JSON object", _shown(document))
    if set(document) != set(_FIELDS):
        _refuse(f"the fields {', '.join(_FIELDS)}", _shown_names(document))
    if document["format"] != _FORMAT:
        _refuse(f'the format "{_FORMAT}"', _shown(document["format"]))
    return document


def _kind(value: object) -> Kind:
    if not isinstance(value, str) or value not in KINDS:
        _refuse("a kind of bpe, word, char or none", _shown(value))
    return cast("Kind", value)


def _strings(value: object, field: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        _refuse(f"{field} to be a list", _shown(value))
    for place, item in enumerate(value):
        if not isinstance(item, str) or not item:
            _refuse(f"{field} to be nonempty strings", f"{_shown(item)} at place {place}")
        if not _writable(item):
            _refuse(f"{field} that UTF-8 can encode", f"{_shown(item)} at place {place}")
    return tuple(value)


def _merge(text: str) -> tuple[str, str]:
    left, space, right = text.partition(" ")
    if not (left and space and right) or " " in right:
        _refuse("merges of two pieces separated by one space", _shown(text))
    return left, right


def _check_pieces(kind: Kind, pieces: tuple[str, ...]) -> None:
    if pieces[: len(SPECIALS)] != SPECIALS:
        _refuse(f"the first pieces to be {' '.join(SPECIALS)}", _shown(pieces[: len(SPECIALS)]))
    learned = pieces[len(SPECIALS) :]
    if len(set(pieces)) != len(pieces):
        seen: set[str] = set()
        twice = next(piece for piece in pieces if piece in seen or seen.add(piece))  # type: ignore[func-returns-value]
        _refuse("every piece once", f"{_shown(twice)} twice")
    if kind == "char" and any(len(piece) != 1 for piece in learned):
        _refuse("pieces of one character", _shown(next(piece for piece in learned if len(piece) != 1)))
    if kind == "none" and (split := next((piece for piece in learned if " " in piece), None)):
        _refuse("pieces without spaces", _shown(split))
    if kind == "bpe":
        alphabet = byte_alphabet()
        if missing := [byte for letter, byte in alphabet.items() if letter not in set(learned)]:
            _refuse("a piece for each of the 256 bytes", f"none for byte 0x{missing[0]:02X}")
        if foreign := next((piece for piece in learned if not set(piece) <= alphabet.keys()), None):
            _refuse("pieces in the byte alphabet", _shown(foreign))


def _check_merges(kind: Kind, pieces: tuple[str, ...], merges: tuple[tuple[str, str], ...]) -> None:
    if kind != "bpe" and merges:
        _refuse(f"no merges with kind {kind}", f"{len(merges):,} merges")
    if len(set(merges)) != len(merges):
        _refuse("every merge once", "one merge twice")
    learned = set(pieces[len(SPECIALS) :])
    for left, right in merges:
        for piece in (left, right, left + right):
            if piece not in learned:
                _refuse("merges of pieces into pieces", f"{_shown(left)} + {_shown(right)} without {_shown(piece)}")


def _writable(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _shown_names(document: dict[str, object]) -> str:
    return ", ".join(_shown(name) for name in list(document)[: len(_FIELDS) + 1]) or "none"


def _shown(value: object) -> str:
    text = ascii(value) if isinstance(value, str | int | float | tuple | None) else f"a {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."


def _refuse(expected: str, got: str) -> NoReturn:
    raise DataError(error_message("tokenizer", expected, got, _MEND))
