"""The tokenizer of a published model, in the form of the library `tokenizers`, with the model's special tokens."""

import json
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import tokenizers
from tokenizers import decoders

from qkv.data.growth import expect_modest
from qkv.data.segments import byte_alphabet
from qkv.data.sentencepieces import parse_sentencepieces
from qkv.data.vocabulary import parse
from qkv.errors import DataError, out_of_memory_text

FORMAT = "qkv published tokenizer 1"
_NAMES = ("format", "source", "target", "numbers", "files", "pad", "bos", "eos", "unk", "others", "marks")
_NEVER = "never"
_NONE = -1
_MOST = 1 << 31
_FILES = ("source.spm", "target.spm")
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
        source: the tokenizer as JSON.
        target: that of the other language as JSON; "" for the same.
        numbers: the ids of pieces where the tokenizers have others of their own; empty for theirs.
        files: the files that it was made from, in base64, where they are not the source itself.
        pad, bos, eos, unk: special tokens; −1 for none. `bos` is the one that a decoder begins with.
        others: further end tokens.
        marks: whether `encode` adds the special tokens that the tokenizer's own rules add.
        where: the name of its file in messages.
        limit: the number of tokens that the model reads; None for any.
        never: tokens that are never written.

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

    def __post_init__(self) -> None:
        if (fault := self._fault()) is not None:
            raise DataError(self.where, "texts, and numbers of the model's tokens", fault, _AGAIN)
        ours = _library(self.source, self.where)
        object.__setattr__(self, "_source", ours)
        object.__setattr__(self, "_target", _library(self.target, self.where) if self.target else ours)
        object.__setattr__(self, "_pieces", {number: piece for piece, number in self.numbers.items()})
        object.__setattr__(self, "_bytes", byte_alphabet() if isinstance(ours.decoder, decoders.ByteLevel) else {})

    @property
    def size(self) -> int:
        """One more than the largest id."""
        numbers = self.numbers or self._library(target=False).get_vocab(with_added_tokens=True)
        return 1 + max(numbers.values(), default=0)

    @property
    def mask(self) -> int | None:
        """The id of the mask of a masked language model; None if there is none."""
        numbers = self._library(target=False).get_vocab(with_added_tokens=True)
        return next((numbers[name] for name in ("[MASK]", "<mask>") if name in numbers), None)

    def encode(self, text: str, *, target: bool) -> list[int]:
        """Encode a text; a target has no special tokens."""
        library, adds_special_tokens = self._library(target=target), self.marks and not target
        with _typed(self.where, _ENCODES):
            encoded = library.encode(text, add_special_tokens=adds_special_tokens and not self.numbers)
        if not self.numbers:
            return self._read(encoded.ids)
        ids = [self.numbers.get(piece, self.unk) for piece in encoded.tokens]
        return self._read([*ids, self.eos] if self.marks and not target else ids)

    def encode_words(self, words: Sequence[str]) -> tuple[list[int], list[int]]:
        """Encode words as a text with spaces between them.

        Args:
            words: each of at least one character that the tokenizer keeps.

        Returns:
            The ids, and the index of each word's first token.

        Raises:
            DataError: a word has no token of its own.
        """
        with _typed(self.where, _ENCODES):
            encoding = self._library(target=False).encode(" ".join(words), add_special_tokens=self.marks)
        begins, start = [], 0
        for word in words:
            tokens = (encoding.char_to_token(at) for at in range(start, start + len(word)))
            first = next((token for token in tokens if token is not None), None)
            if first is None:
                hint = "Remove it: this model's tokenizer leaves it out."
                raise DataError("words", "words of at least one token", ascii(word)[:80], hint)
            begins.append(first)
            start += len(word) + 1
        return self._read(encoding.ids), begins

    def decode(self, ids: Sequence[int]) -> str:
        """Decode ids; special tokens are left out."""
        library = self._library(target=True)
        if not self.numbers:
            with _typed(self.where, "a tokenizer that decodes these ids"):
                return str(library.decode(list(ids), skip_special_tokens=True))
        left_out = (self.pad, self.bos, self.eos)
        pieces = [self._pieces_by_number().get(number, "") for number in ids if number not in left_out]
        return "".join(pieces).replace("▁", " ").strip()

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Return a readable name for each id, with spaces shown as "▁"."""
        return [self._piece(number) for number in ids]

    def original(self) -> dict[str, bytes]:
        """Return the files that it was made from: two SentencePiece models, and their vocabulary."""
        numbers = json.dumps(dict(self.numbers), ensure_ascii=False, indent=2) + "\n"
        return {**{name: b64decode(text) for name, text in self.files.items()}, "vocab.json": numbers.encode()}

    def to_json(self) -> str:
        """Serialize it as JSON; the same tokenizer always gives the same JSON."""
        values = {name: getattr(self, name) for name in _NAMES if name != "format"}
        return (
            json.dumps(
                {
                    "format": FORMAT,
                    **values,
                    "numbers": dict(self.numbers),
                    "files": dict(self.files),
                    "others": list(self.others),
                    # Files of earlier versions do not have it.
                    **({_NEVER: list(self.never)} if self.never else {}),
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
        if set(document) - {_NEVER} != set(_NAMES):
            raise DataError("tokenizer", f"the fields {', '.join(_NAMES)}", "other fields", _AGAIN)
        return cls(**{name: item for name, item in document.items() if name != "format"}, limit=limit)

    def _fault(self) -> str | None:
        """Return which argument has a part of another type or range, or None."""
        limit = _MOST if self.limit is None else self.limit
        checks = {
            "source": isinstance(self.source, str),
            "target": isinstance(self.target, str),
            "numbers": isinstance(self.numbers, Mapping) and all(_is_id(n, _MOST) for n in self.numbers.values()),
            "files": isinstance(self.files, Mapping) and all(map(_is_file, self.files, self.files.values())),
            "marks": isinstance(self.marks, bool),
            **{name: _is_id(getattr(self, name), limit, least=_NONE) for name in ("pad", "bos", "eos", "unk")},
            **{name: _are_ids(getattr(self, name), limit) for name in ("others", _NEVER)},
        }
        return next((f"another {name}" for name, holds in checks.items() if not holds), None)

    def _read(self, ids: list[int]) -> list[int]:
        """Return ids that the model reads."""
        limit = _MOST if self.limit is None else self.limit
        if ids and not (min(ids) >= 0 and max(ids) < limit):
            wrong = next(number for number in ids if not 0 <= number < limit)
            got = "an unknown piece, which it has no token for" if wrong == _NONE else f"the token {wrong:,}"
            raise DataError(self.where, f"tokens of a model that reads {limit:,}", got, _AGAIN)
        return list(ids)

    def _library(self, *, target: bool) -> tokenizers.Tokenizer:
        library: tokenizers.Tokenizer = self.__dict__["_target" if target else "_source"]
        return library

    def _pieces_by_number(self) -> dict[int, str]:
        pieces: dict[int, str] = self.__dict__["_pieces"]
        return pieces

    def _piece(self, number: int) -> str:
        if self.numbers:
            return self._pieces_by_number().get(number, f"<{number}>")
        piece = self._library(target=False).id_to_token(number)
        if piece is None:
            return f"<{number}>"
        letters: dict[str, int] = self.__dict__["_bytes"]
        if not letters or not set(piece) <= letters.keys():
            return str(piece)
        body = bytes(letters[letter] for letter in piece)
        try:
            return body.decode().replace(" ", "▁")
        except UnicodeDecodeError:
            return "".join(chr(byte) if 32 < byte < 127 else f"<{byte:02X}>" for byte in body)


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


def of_sentencepieces(
    source: bytes,
    target: bytes,
    numbers: Mapping[str, int],
    *,
    pad: int,
    bos: int,
    eos: int,
    unk: int,
    others: Sequence[int] = (),
    never: Sequence[int] = (),
    folder: str = "",
    limit: int | None = None,
) -> ImportedTokenizer:
    """Build the tokenizer of Marian's models: two SentencePiece models, and one vocabulary.

    Args:
        source, target: the bytes of source.spm and target.spm.
        numbers: the vocabulary.
        pad, bos, eos, unk, others, never: special tokens, as for `ImportedTokenizer`.
        folder: where the files are, for messages.
        limit: as for `ImportedTokenizer`.

    Raises:
        DataError: a file is not a SentencePiece model.
    """
    models = dict(zip(_FILES, (source, target), strict=True))
    texts = []
    for name, data in models.items():
        where = str(Path(folder, name))
        with _typed(where, "a SentencePiece model"):
            texts.append(parse_sentencepieces(data, where).tokenizer().to_str())
    files = {name: b64encode(data).decode() for name, data in models.items()}
    where = str(Path(folder, "source.spm"))
    special_tokens: dict[str, Any] = {"pad": pad, "bos": bos, "eos": eos, "unk": unk, "others": others, "never": never}
    return ImportedTokenizer(texts[0], texts[1], numbers, files, **special_tokens, where=where, limit=limit)


_AGAIN = "Copy the folder again from its source."
_ENCODES = "a tokenizer that encodes this text"


def _is_id(number: object, most: int, least: int = 0) -> bool:
    return type(number) is int and least <= number < most


def _are_ids(numbers: object, most: int) -> bool:
    return isinstance(numbers, list | tuple) and all(_is_id(number, most) for number in numbers)


def _is_file(name: object, text: object) -> bool:
    try:
        return name in _FILES and bool(b64decode(text, validate=True))  # type: ignore[arg-type]
    except (Base64Error, TypeError, ValueError):
        return False


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
        of_library = type(error) in (Exception, ValueError) or type(error).__name__ == "PanicException"
        if not of_library or out_of_memory_text(error) is not None:
            raise
        got = str(error).partition("\n")[0][:200]
        raise DataError(where, expected, got, _AGAIN) from error
