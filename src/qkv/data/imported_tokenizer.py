"""The tokenizer of a published model, in the form of the library `tokenizers`, with the model's special tokens."""

import json
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Protocol, final

import tokenizers
from tokenizers import decoders

from qkv.data.growth import expect_modest
from qkv.data.numbered_pieces import BOTH, FILES, NUMBERS, SOURCE, TARGET, NumberedPieces, Token
from qkv.data.segments import byte_alphabet
from qkv.data.vocabulary import IMPORTED, parse
from qkv.errors import ConfigError, DataError, nearest, out_of_memory_text, setting

_NAMES = ("format", "source", "target", "numbers", "files", "pad", "bos", "eos", "unk", "others", "marks")
_NEVER, _FORCED = "never", "forced"
_NONE = -1
_MOST = 1 << 31
FLAGS = {
    "do_lower_case": ("BertNormalizer", "lowercase"),
    "strip_accents": ("BertNormalizer", "strip_accents"),
    "tokenize_chinese_chars": ("BertNormalizer", "handle_chinese_chars"),
    "add_prefix_space": ("ByteLevel", "add_prefix_space"),
}
"""Flags of tokenizer_config.json: for each the kind of rule that it changes, and the rule's setting."""


@final
@dataclass(frozen=True)
class ImportedTokenizer:
    """A tokenizer, and the special tokens of the model that it belongs to.

    Args:
        source: the tokenizer as JSON; "" for numbered pieces, as those of Marian and M2M-100.
        target: "", or what earlier versions wrote of one of Marian's.
        numbers: the vocabulary of one of Marian's, where `files` lacks it; earlier versions wrote it.
        files: of numbered pieces, the files that they are made from, in base64.
        pad, bos, eos, unk: special tokens; −1 for none. `bos` is the one that a decoder begins with.
        others: further end tokens.
        marks: whether `encode` adds the special tokens that the tokenizer's own rules add.
        where: the name of its file in messages, or that of the folder.
        limit: the number of tokens that the model reads; None for any.
        never: tokens that are never written.
        forced: the token that each target begins with, unless it names another special one; −1 for none.

    Raises:
        DataError: a text is no tokenizer, or an argument has a part of another type or range; so do the methods, where
            the tokenizer's rules fail on a text, or give an id that the model does not read.
    """

    source: str
    target: str = ""
    numbers: Mapping[str, int] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict, repr=False)
    pad: int = _NONE
    bos: int = _NONE
    eos: int = _NONE
    unk: int = _NONE
    others: Sequence[int] = ()
    marks: bool = True
    where: str = field(default="tokenizer.json", repr=False, compare=False)
    limit: int | None = field(default=None, repr=False, compare=False)
    never: Sequence[int] = ()
    forced: int = _NONE

    def __post_init__(self) -> None:
        if (fault := self._fault()) is not None:
            raise DataError(self.where, "texts, and numbers of the model's tokens", fault, _AGAIN)
        if not self.files:
            language = _Library(self.source, self.where)
            object.__setattr__(self, "_languages", (language, language))
            return
        files = self.original()
        languages = tuple(NumberedPieces(files, self.where, target=target) for target in (False, True))
        object.__setattr__(self, "_languages", languages)
        object.__setattr__(self, "unk", languages[0].unknown)

    @property
    def separate(self) -> bool:
        """Whether sources and targets have a vocabulary each."""
        source, target = (self._language(target=target) for target in (False, True))
        return source is not target and source.names() != target.names()

    def of_sources(self) -> "ImportedTokenizer":
        """Return the tokenizer of the sources alone."""
        sources = copy(self)
        object.__setattr__(sources, "_languages", (self._language(target=False),) * 2)
        return sources

    def with_languages(self, source: str | None, target: str | None) -> "ImportedTokenizer":
        """Return a tokenizer for another source language, or whose targets begin with the code of another language.

        Args:
            source, target: codes of languages, such as "fra_Latn", "fr_XX" or "fr"; None for those as before.

        Raises:
            ConfigError: the tokenizer has no such code, or adds no code to a source.
        """
        other = copy(self)
        if target is not None:
            object.__setattr__(other, "forced", self._code(target, "target_language"))
        if source is not None:
            code = self._code(source, "source_language")
            language, codes = self._language(target=False), self._codes().values()
            added = [token.number for token in language.encode("", special=True) if token.number in codes]
            if not added:
                hint = "Name the class of the tokenizer in tokenizer_config.json, such as NllbTokenizer."
                raise ConfigError(setting("source_language"), "a tokenizer that adds its code", "one without", hint)
            object.__setattr__(other, "_reads", (added[0], code))
        return other

    def _codes(self) -> dict[str, int]:
        """Return the ids of the codes of languages, which are the special tokens without brackets."""
        special = self._language(target=False).special.items()
        return {name.strip("_"): number for number, name in special if name[:1] not in ("<", "[", ">")}

    def _code(self, name: str, argument: str) -> int:
        codes = self._codes()
        if (code := codes.get(name.strip("_"))) is None:
            hint = nearest(name, codes) or "Omit it: the model is one of few languages."
            raise ConfigError(setting(argument), "the code of a language of the model", f'"{name[:80]}"', hint)
        return code

    @property
    def size(self) -> int:
        """One more than the largest id."""
        return 1 + max(self._language(target=True).names(), default=0)

    @property
    def mask(self) -> int | None:
        """The id of the mask of a masked language model; None if there is none."""
        numbers = {piece: number for number, piece in self._language(target=False).names().items()}
        return next((numbers[name] for name in ("[MASK]", "<mask>") if name in numbers), None)

    def encode(self, text: str, *, target: bool) -> list[int]:
        """Encode a text; a target has no special tokens but the one that is forced, such as a language code."""
        ids = [token.number for token in self.tokens(text, target=target)]
        named = ids and ids[0] != self.unk and ids[0] in self._language(target=True).special
        return ids if not target or self.forced < 0 or named else [self.forced, *ids]

    def tokens(self, text: str, *, target: bool) -> list[Token]:
        """Encode a text to ids, each with the characters that it stands for."""
        with _typed(self.where, _ENCODES):
            tokens = self._language(target=target).encode(text, special=self.marks and not target)
        if self.marks and not target and (reads := self.__dict__.get("_reads")) is not None:
            usual, code = reads
            end = -1 if tokens[-1].number == usual else 0
            tokens[end] = tokens[end]._replace(number=code)
        self._expect_read(token.number for token in tokens)
        return tokens

    def encode_words(self, words: Sequence[str]) -> tuple[list[int], list[int]]:
        """Encode words as a text with spaces between them.

        Args:
            words: each of at least one character that the tokenizer keeps.

        Returns:
            The ids, and the index of each word's first token.

        Raises:
            DataError: a word has no token of its own.
        """
        tokens = self.tokens(" ".join(words), target=False)
        first_token: dict[int, int] = {}
        for index, token in enumerate(tokens):
            for at in range(token.start, token.end):
                first_token.setdefault(at, index)
        begins, start = [], 0
        for word in words:
            first = next((first_token[at] for at in range(start, start + len(word)) if at in first_token), None)
            if first is None:
                hint = "Remove it: this model's tokenizer leaves it out."
                raise DataError("words", "words of at least one token", ascii(word)[:80], hint)
            begins.append(first)
            start += len(word) + 1
        return [token.number for token in tokens], begins

    def decode(self, ids: Sequence[int]) -> str:
        """Decode ids; special tokens are left out."""
        with _typed(self.where, "a tokenizer that decodes these ids"):
            return self._language(target=True).decode(list(ids))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Return a readable name for each id, with spaces shown as "▁"."""
        names = map(self._language(target=True).name, ids)
        return [f"<{number}>" if name is None else name for number, name in zip(ids, names, strict=True)]

    def names(self) -> list[str]:
        """Return the piece of each id as its file has it; a name of its own for an id without one."""
        pieces = self._language(target=True).names()
        return [pieces.get(number, f"<{number}>") for number in range(self.size)]

    def original(self) -> dict[str, bytes]:
        """Return the files that numbered pieces are made from."""
        files = {name: b64decode(text) for name, text in self.files.items()}
        numbers = json.dumps(dict(self.numbers), ensure_ascii=False, indent=2) + "\n"
        return files if NUMBERS in files else {**files, NUMBERS: numbers.encode()}

    def to_json(self) -> str:
        """Serialize it as JSON; the same tokenizer always gives the same JSON."""
        values = {name: getattr(self, name) for name in _NAMES if name != "format"}
        return (
            json.dumps(
                {
                    "format": IMPORTED,
                    **values,
                    "numbers": dict(self.numbers),
                    "files": dict(self.files),
                    "others": list(self.others),
                    # Files of earlier versions do not have it.
                    **({_NEVER: list(self.never)} if self.never else {}),
                    **({_FORCED: self.forced} if self.forced >= 0 else {}),
                },
                ensure_ascii=False,
            )
            + "\n"
        )

    @classmethod
    def from_json(cls, text: str, limit: int | None = None) -> "ImportedTokenizer":
        """Parse the output of `to_json`.

        Args:
            text: the JSON.
            limit: as for the class.

        Raises:
            DataError: `to_json` could not have written it.
        """
        document: Any = parse(text)
        if not isinstance(document, dict):
            got = type(document).__name__
            raise DataError("tokenizer", f"the fields {', '.join(_NAMES)}", got, _AGAIN)
        if set(document) - {_NEVER, _FORCED} != set(_NAMES):
            raise DataError("tokenizer", f"the fields {', '.join(_NAMES)}", "other fields", _AGAIN)
        return cls(**{name: item for name, item in document.items() if name != "format"}, limit=limit)

    def _fault(self) -> str | None:
        """Return which argument has a part of another type or range, or None."""
        limit = _MOST if self.limit is None else self.limit
        checks = {
            "source": isinstance(self.source, str),
            "target": isinstance(self.target, str),
            "numbers": isinstance(self.numbers, Mapping)
            and all(_is_id(n, _MOST) for n in self.numbers.values())
            and bool(self.files or not self.numbers),
            "files": isinstance(self.files, Mapping)
            and all(map(_is_file, self.files, self.files.values()))
            and (not self.files or {SOURCE, TARGET} <= self.files.keys() or BOTH in self.files),
            "marks": isinstance(self.marks, bool),
            **{name: _is_id(getattr(self, name), limit, least=_NONE) for name in ("pad", "bos", "eos", "unk", _FORCED)},
            **{name: _are_ids(getattr(self, name), limit) for name in ("others", _NEVER)},
        }
        return next((f"another {name}" for name, holds in checks.items() if not holds), None)

    def _expect_read(self, ids: Iterable[int]) -> None:
        """Refuse ids that the model does not read."""
        limit = _MOST if self.limit is None else self.limit
        for number in ids:
            if not 0 <= number < limit:
                raise DataError(self.where, f"tokens of a model that reads {limit:,}", f"the token {number:,}", _AGAIN)

    def _language(self, *, target: bool) -> "_Language":
        languages: tuple[_Language, _Language] = self.__dict__["_languages"]
        return languages[target]


class _Language(Protocol):
    """The tokenizer of sources, or of targets."""

    @property
    def special(self) -> Mapping[int, str]:
        """The ids that `decode` leaves out, with their texts."""

    def encode(self, text: str, *, special: bool) -> list[Token]:
        """Split a text, with or without the special tokens around it."""

    def decode(self, ids: list[int]) -> str:
        """Join ids to a text."""

    def name(self, number: int) -> str | None:
        """Return a readable name of an id."""

    def names(self) -> Mapping[int, str]:
        """Return the piece of each id."""


@final
class _Library:
    """A tokenizer of the library."""

    def __init__(self, source: str, where: str) -> None:
        self._library = _library(source, where)
        added = self._library.get_added_tokens_decoder()
        self.special = {number: token.content for number, token in added.items() if token.special}
        self._letters = byte_alphabet() if isinstance(self._library.decoder, decoders.ByteLevel) else {}

    def encode(self, text: str, *, special: bool) -> list[Token]:
        encoding = self._library.encode(text, add_special_tokens=special)
        return [Token(number, *span) for number, span in zip(encoding.ids, encoding.offsets, strict=True)]

    def decode(self, ids: list[int]) -> str:
        return str(self._library.decode(ids, skip_special_tokens=True))

    def name(self, number: int) -> str | None:
        piece = self._library.id_to_token(number)
        if piece is None or not self._letters or not set(piece) <= self._letters.keys():
            return piece
        body = bytes(self._letters[letter] for letter in piece)
        try:
            return body.decode().replace(" ", "▁")
        except UnicodeDecodeError:
            return "".join(chr(byte) if 32 < byte < 127 else f"<{byte:02X}>" for byte in body)

    def names(self) -> Mapping[int, str]:
        return {number: piece for piece, number in self._library.get_vocab(with_added_tokens=True).items()}


def with_flags(source: str, flags: Mapping[str, bool | None], where: str = "tokenizer.json") -> str:
    """Return a tokenizer.json with flags of `transformers` in place of what its rules say.

    Args:
        source: the tokenizer as JSON.
        flags: values by their names in `FLAGS`; None for a rule's own default.
        where: the name of its file in messages.

    Raises:
        DataError: the source is not JSON.

    Example:
        >>> with_flags('{"normalizer": {"type": "BertNormalizer", "lowercase": false}}', {"do_lower_case": True})
        '{"normalizer": {"type": "BertNormalizer", "lowercase": true}}'
    """
    if not flags:
        return source
    document, changed = parse(source, where), False
    for rule in _rules(document, "normalizer", "pre_tokenizer"):
        for name, flag in flags.items():
            kind, key = FLAGS[name]
            if rule.get("type") == kind and rule.get(key) is not flag:
                rule[key], changed = flag, True
    return json.dumps(document, ensure_ascii=False) if changed else source


def _rules(parent: object, *names: str) -> Iterator[dict[str, Any]]:
    """Yield the rules in the named parts of a tokenizer.json, including those nested in sequences."""
    for inner in (parent.get(name) for name in names) if isinstance(parent, dict) else ():
        for rule in inner if isinstance(inner, list) else [inner]:
            if isinstance(rule, dict):
                yield rule
                yield from _rules(rule, "normalizers", "pretokenizers")


_AGAIN = "Copy the folder again from its source."
_ENCODES = "a tokenizer that encodes this text"


def _is_id(number: object, most: int, least: int = 0) -> bool:
    return type(number) is int and least <= number < most


def _are_ids(numbers: object, most: int) -> bool:
    return isinstance(numbers, list | tuple) and all(_is_id(number, most) for number in numbers)


def _is_file(name: object, text: object) -> bool:
    try:
        b64decode(text, validate=True)  # type: ignore[arg-type]
    except (Base64Error, TypeError, ValueError):
        return False
    return name in FILES


def _library(text: str, where: str) -> tokenizers.Tokenizer:
    parse(text, where)  # the library takes the last of several equal keys
    with _typed(where, "a tokenizer"):
        library = tokenizers.Tokenizer.from_str(text)
    expect_modest(library, where)
    # As in transformers, which pads and cuts only where a call asks for it, whatever the file says.
    library.no_padding()
    library.no_truncation()
    return library


@contextmanager
def _typed(where: str, expected: str) -> Iterator[None]:
    """Raise the library's plain exceptions, and its panics, which derive from no Exception, as an error of the file."""
    try:
        yield
    except BaseException as error:
        of_library = type(error) in (Exception, RuntimeError, ValueError) or type(error).__name__ == "PanicException"
        if not of_library or out_of_memory_text(error) is not None:
            raise
        got = str(error).partition("\n")[0][:200]
        raise DataError(where, expected, got, _AGAIN) from error
