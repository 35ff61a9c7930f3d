"""A tokenizer's vocabulary, as a value that can be saved and loaded.

The JSON contains only names and lists of strings. The code that uses them is selected here by the name of the kind,
never by the file, and everything is checked before use.
"""

import json
from dataclasses import dataclass
from typing import NoReturn, cast, get_args

from qkv.data.choices import Form, TokenizerKind
from qkv.data.normal_forms import normalize
from qkv.data.segments import SPECIALS, byte_alphabet
from qkv.data.words import split_words
from qkv.errors import DataError
from qkv.strict_json import parse_json

KINDS: tuple[str, ...] = get_args(TokenizerKind)
OF_BYTES = frozenset({"bpe", "unigram"})
"""The kinds whose pieces are of bytes, so that nothing is unknown and every text comes back."""
FORMS: tuple[str, ...] = get_args(Form)
"""Normal forms of Unicode (Unicode Standard Annex 15); "none" leaves text as it is."""

LARGEST = 1 << 24
"""Maximum characters of all pieces together."""
KINDS_LISTED = "bpe, unigram, word, char or none"
_FORMAT = "qkv tokenizer 1"
IMPORTED = "qkv published tokenizer 1"
"""The format of a published model's tokenizer, see `qkv.data.imported_tokenizer`."""
_FIELDS = ("format", "kind", "lowercase", "pieces", "merges")
_UNICODE = "unicode"
_SCORES = "scores"
"""A field of unigram pieces alone."""
_HUGE = 1e6
_MEND = "Restore the file from its source, or train the tokenizer again."


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens of a tokenizer in the order of their ids.

    Args:
        kind: "bpe", "unigram", "word", "char" or "none".
        lowercase: whether text is lower-cased first.
        pieces: every token, special ones first; a token's index is its id.
        merges: for "bpe" the pairs to merge, in the order learned.
        unicode: the normal form that text is brought to first. "NFC" makes one character of "e" and an accent, so that
            texts that look the same have the same tokens.
        scores: for "unigram" the log-probability of each piece.

    Example:
        >>> Vocabulary("char", False, (*SPECIALS, "a", "b"), ()).to_json()[:31]
        '{\\n "format": "qkv tokenizer 1",'
    """

    kind: TokenizerKind
    lowercase: bool
    pieces: tuple[str, ...]
    merges: tuple[tuple[str, str], ...]
    unicode: Form = "none"
    scores: tuple[float, ...] = ()

    def normalized(self, text: str) -> str:
        """Return a text in the vocabulary's normal form, with its case.

        Example:
            >>> len(Vocabulary("char", False, (*SPECIALS, "a"), (), "NFC").normalized("e\u0301"))
            1
        """
        return text if self.unicode == "none" else normalize(self.unicode, text)

    def prepared(self, text: str) -> str:
        """Return a text as it is split into tokens: normalized, and lower-cased if the vocabulary is."""
        normalized = self.normalized(text)
        return normalized.lower() if self.lowercase else normalized

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
        # Files of earlier versions have no normal form.
        form = {} if self.unicode == "none" else {_UNICODE: self.unicode}
        scores = {_SCORES: self.scores} if self.scores else {}
        document = {**dict(zip(_FIELDS, values, strict=True)), **form, **scores}
        return json.dumps(document, ensure_ascii=False, indent=1) + "\n"

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
        return cls.from_document(parse(text))

    @classmethod
    def from_document(cls, content: object) -> "Vocabulary":
        """Check every part of a vocabulary, and build it.

        Args:
            content: what JSON that `to_json` wrote says.

        Raises:
            DataError: `to_json` could not have written it.
        """
        document = _checked(content)
        kind, lowercase = _kind(document["kind"]), document["lowercase"]
        if not isinstance(lowercase, bool):
            _refuse("lowercase to be true or false", _excerpt(lowercase))
        form = document.get(_UNICODE, "none")
        if not isinstance(form, str) or form not in FORMS:
            _refuse(f"unicode to be one of {', '.join(FORMS)}", _excerpt(form))
        pieces = _strings(document["pieces"], "pieces")
        merges = tuple(_merge(merge) for merge in _strings(document["merges"], "merges"))
        _check_pieces(kind, pieces)
        _check_merges(kind, pieces, merges)
        scores = _scores(document.get(_SCORES, []), kind, len(pieces))
        return cls(kind, lowercase, pieces, merges, cast("Form", form), scores)


def parse(text: str, name: str = "tokenizer") -> object:
    """Return what JSON says.

    Args:
        text: the JSON.
        name: its name in messages.

    Raises:
        DataError: it is no JSON, or has a key twice.

    Example:
        >>> parse("[1]")
        [1]
    """
    try:
        return parse_json(text)
    except (ValueError, RecursionError) as error:
        _refuse("JSON", str(error)[:200], name)


def _checked(document: object) -> dict[str, object]:
    if not isinstance(document, dict):
        _refuse("a JSON object", _excerpt(document))
    if set(document) - {_SCORES, _UNICODE} != set(_FIELDS):
        _refuse(f"the fields {', '.join(_FIELDS)}", _name_list(document))
    if document["format"] != _FORMAT:
        _refuse(f'the format "{_FORMAT}"', _excerpt(document["format"]))
    return document


def _kind(value: object) -> TokenizerKind:
    if not isinstance(value, str) or value not in KINDS:
        _refuse(f"a kind of {KINDS_LISTED}", _excerpt(value))
    return cast("TokenizerKind", value)


def _strings(value: object, field: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        _refuse(f"{field} to be a list", _excerpt(value))
    for index, item in enumerate(value):
        if not isinstance(item, str) or not item:
            _refuse(f"{field} to be nonempty strings", f"{_excerpt(item)} at place {index}")
        if not _writable(item):
            _refuse(f"{field} that UTF-8 can encode", f"{_excerpt(item)} at place {index}")
    return tuple(value)


def _merge(text: str) -> tuple[str, str]:
    first, space, second = text.partition(" ")
    if not (first and space and second) or " " in second:
        _refuse("merges of two pieces separated by one space", _excerpt(text))
    return first, second


def _check_pieces(kind: TokenizerKind, pieces: tuple[str, ...]) -> None:
    if pieces[: len(SPECIALS)] != SPECIALS:
        _refuse(f"the first pieces to be {' '.join(SPECIALS)}", _excerpt(pieces[: len(SPECIALS)]))
    learned = pieces[len(SPECIALS) :]
    if len(set(pieces)) != len(pieces):
        earlier: set[str] = set()
        twice = next(piece for piece in pieces if piece in earlier or earlier.add(piece))  # type: ignore[func-returns-value]
        _refuse("every piece once", f"{_excerpt(twice)} twice")
    if (count := sum(map(len, pieces))) > LARGEST:
        _refuse(f"pieces of at most {LARGEST:,} characters in all", f"{count:,}")
    if kind == "char" and any(len(piece) != 1 for piece in learned):
        _refuse("pieces of one character", _excerpt(next(piece for piece in learned if len(piece) != 1)))
    if kind == "none" and (spaced := next((piece for piece in learned if split_words(piece) != [piece]), None)):
        _refuse("pieces without spaces", _excerpt(spaced))
    if kind in OF_BYTES:
        alphabet, present = byte_alphabet(), set(learned)
        if missing := [byte for letter, byte in alphabet.items() if letter not in present]:
            _refuse("a piece for each of the 256 bytes", f"none for byte 0x{missing[0]:02X}")
        if foreign := set().union(*learned) - alphabet.keys():
            _refuse("pieces in the byte alphabet", _excerpt(next(p for p in learned if not foreign.isdisjoint(p))))


def _check_merges(kind: TokenizerKind, pieces: tuple[str, ...], merges: tuple[tuple[str, str], ...]) -> None:
    if kind != "bpe" and merges:
        _refuse(f"no merges with kind {kind}", f"{len(merges):,} merges")
    if len(set(merges)) != len(merges):
        _refuse("every merge once", "one merge twice")
    learned = set(pieces[len(SPECIALS) :])
    for left, right in merges:
        for piece in (left, right, left + right):
            if piece not in learned:
                _refuse(
                    "merges of pieces into pieces", f"{_excerpt(left)} + {_excerpt(right)} without {_excerpt(piece)}"
                )


def _scores(value: object, kind: TokenizerKind, pieces: int) -> tuple[float, ...]:
    count = pieces if kind == "unigram" else 0
    if not isinstance(value, list) or len(value) != count:
        got = f"{len(value):,}" if isinstance(value, list) else _excerpt(value)
        _refuse(f"{count:,} scores of pieces with kind {kind}", got)
    for item in value:
        if type(item) not in (int, float) or not -_HUGE < item <= 0:
            _refuse("scores that are log-probabilities", _excerpt(item))
    return tuple(map(float, value))


def _writable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _name_list(document: dict[str, object]) -> str:
    return ", ".join(_excerpt(name) for name in list(document)[: len(_FIELDS) + 1]) or "none"


def _excerpt(value: object) -> str:
    text = ascii(value) if isinstance(value, str | int | float | tuple | None) else f"a {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."


def _refuse(expected: str, got: str, name: str = "tokenizer") -> NoReturn:
    raise DataError(name, expected, got, _MEND)
