"""Text to ids and back: pieces of bytes, words, characters, or what spaces separate; trained on the training text."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Literal, final, get_args

import tokenizers
from tokenizers import models, trainers

from qkv.data.choices import Form, TokenizerKind
from qkv.data.segments import SPECIALS, bare, bpe_splitter, byte_alphabet, chunks, join_pieces, require_text, split_text
from qkv.data.vocabulary import IMPORTED, KINDS_LISTED, OF_BYTES, Vocabulary, parse
from qkv.errors import ConfigError, DataError, expect_name, setting

if TYPE_CHECKING:
    from qkv.data.imported_tokenizer import ImportedTokenizer

_BYTES = byte_alphabet()
_MARKS = ("<pad>", "<bos>", "<eos>", "<unk>")
_SPACE_SHOWN = "▁"
_UNKNOWN_CHARACTER = "\ufffd"
_BYTE_PIECE = re.compile("<0x[0-9A-Fa-f]{2}>")
_PAIR, _PARTS = "qkv tokenizers 1", {"format", "source", "target"}
_LONGEST_CHARACTER = 4
"""Bytes of a character in UTF-8."""
CHUNK = 1 << 16
"""Characters per chunk of byte pair encoding, and number of cached words."""
_MOST = 1_000_000
"""Maximum number of pieces of bytes: the library allocates memory for all of them in advance."""


@final
class Tokenizer:
    """Text to ids and back.

    `bpe` and `unigram` restore every text exactly, in its normal form of Unicode. So does `char`, except for unseen
    characters, which become U+FFFD. `word` and `none` (what spaces separate) write single spaces, and "<unk>" for
    unseen tokens. `lowercase` lower-cases the text first (by `str.lower`).

    The tokenizer of a published model (`imported`) is that model's own, with its own special tokens.

    Args:
        vocabulary: the trained vocabulary; use `learn` or `from_json` to get a tokenizer.
        source: the vocabulary of sources, for a translator that has another one for them.
        imported: the tokenizer of a published model, in place of the vocabulary.

    Attributes:
        kind: "bpe", "unigram", "word", "char", "none" or "published".
        size: the number of tokens: ids run from 0 to size - 1.
        shared: whether sources and targets have one vocabulary.
        of_bytes: whether tokens are pieces of bytes ("bpe" and "unigram"), so that no text is unknown.
        never_written: the ids that never occur in a target, so that none should be written: padding, the begin token
            and, where no text is unknown, the unknown token; of a published model padding and what its folder names.
        pad, bos, eos, unk: the ids of the special tokens.
        other_ends: the ids of further tokens that end a text; of published models alone.

    Example:
        >>> tokenizer = Tokenizer.learn(["A dog.", "A cat."], kind="word")
        >>> ids = tokenizer.encode("A cat, a dog.")
        >>> tokenizer.pieces(ids)
        ['A', 'cat', '<unk>', '<unk>', 'dog', '.']
        >>> tokenizer.decode(tokenizer.encode("A dog."))
        'A dog.'
    """

    __slots__ = (
        *("_encoder", "_ids", "_source", "bos", "eos", "imported", "kind", "never_written", "of_bytes", "other_ends"),
        *("pad", "shared", "size", "unk", "vocabulary"),
    )

    def __init__(
        self, vocabulary: Vocabulary, source: Vocabulary | None = None, imported: "ImportedTokenizer | None" = None
    ) -> None:
        """Create a tokenizer from a vocabulary, or from those of targets and sources."""
        self.vocabulary, self.imported = vocabulary, imported
        self._source = None if source is None else Tokenizer(source)
        if imported is not None and imported.separate:
            self._source = Tokenizer.of_imported(imported.of_sources())
        self.shared = self._source is None
        self.kind: TokenizerKind | Literal["published"] = vocabulary.kind if imported is None else "published"
        self.size = len(vocabulary.pieces) if imported is None else imported.size
        self.of_bytes = self.kind in OF_BYTES
        self.pad, self.bos, self.eos, self.unk = (
            map(SPECIALS.index, _MARKS)
            if imported is None
            else (imported.pad, imported.bos, imported.eos, imported.unk)
        )
        self.other_ends: tuple[int, ...] = () if imported is None else tuple(imported.others)
        self.never_written: tuple[int, ...] = (self.pad, self.bos, self.unk) if self.of_bytes else (self.pad, self.bos)
        if imported is not None:
            never, ends = dict.fromkeys((self.pad, *imported.never)), (-1, self.eos, *self.other_ends)
            self.never_written = tuple(number for number in never if number not in ends)
        self._ids = {piece: number for number, piece in enumerate(vocabulary.pieces)}
        self._encoder: tokenizers.Tokenizer | None = None
        if vocabulary.kind == "bpe":
            self._encoder = _byte_pair_encoder(vocabulary, self._ids)
        elif vocabulary.kind == "unigram":
            from qkv.data.unigram import unigram_encoder

            self._encoder = unigram_encoder(vocabulary.pieces, vocabulary.scores, self.unk)

    @classmethod
    def learn(
        cls,
        texts: Iterable[str],
        kind: str = "bpe",
        size: int = 8000,
        *,
        lowercase: bool = False,
        minimum: int = 1,
        unicode: str = "none",
    ) -> "Tokenizer":
        """Learn a vocabulary; the same texts, in any order, give the same vocabulary.

        Args:
            texts: the training text; for a joint vocabulary both languages.
            kind: "bpe" (byte pairs) or "unigram" (the likeliest pieces), with which nothing is ever unknown; "word",
                "char", or "none" for text whose tokens are separated by spaces already.
            size: maximum number of tokens, including the four special ones and, for pieces of bytes, the 256 bytes.
            lowercase: whether to lower-case text here and in `encode`.
            minimum: minimum frequency of a token or, for "bpe", a pair; "unigram" has none.
            unicode: the normal form that text is brought to here and in `encode`: "NFC", "NFD", "NFKC" or "NFKD";
                "none" leaves it as it is. Training commands use "NFC".

        Returns:
            The tokenizer.

        Raises:
            ConfigError: the kind or the normal form is unknown, the size is too small to learn anything, or the minimum
                is below 1.
            DataError: there is no text, or it cannot be encoded in UTF-8.

        Source: "bpe": Sennrich et al. 2016, "Neural machine translation of rare words with subword units", algorithm 1;
            "unigram": Kudo 2018, "Subword Regularization", section 3.2.

        Example:
            >>> tokenizer = Tokenizer.learn(["low lower lowest"] * 9, size=265)
            >>> tokenizer.pieces(tokenizer.encode("lower"))
            ['▁lowe', 'r']
        """
        checked = expect_name("kind", kind, get_args(TokenizerKind), KINDS_LISTED)
        form = expect_name("unicode", unicode, get_args(Form))
        _check_counts(checked, size, minimum)
        empty = Vocabulary(checked, lowercase, SPECIALS, (), form)
        prepared = _prepared(texts, empty)
        if checked == "bpe":
            return cls(_learn_byte_pairs(prepared, size, minimum, empty))
        if checked == "unigram":
            from qkv.data.unigram import learn_pieces

            pieces = learn_pieces(prepared, size)
            return cls(replace(empty, pieces=pieces.names, scores=pieces.scores))
        counts: Counter[str] = Counter()
        for text in prepared:
            counts.update(split_text(text, checked))
        frequent = sorted((piece for piece in counts if counts[piece] >= minimum), key=lambda p: (-counts[p], p))
        return cls(replace(empty, pieces=(*SPECIALS, *frequent[: size - len(SPECIALS)])))

    @classmethod
    def of_imported(cls, imported: "ImportedTokenizer") -> "Tokenizer":
        """Return the tokenizer of a published model."""
        return cls(Vocabulary("none", False, SPECIALS, ()), imported=imported)

    def with_languages(self, source: str | None, target: str | None) -> "Tokenizer":
        """Return the tokenizer of a published model of many languages for two of them.

        Args:
            source, target: codes of languages, such as "fra_Latn", "fr_XX" or "fr"; None for those as before.

        Raises:
            ConfigError: the tokenizer has no such code.
        """
        if self.imported is None:
            hint, argument = "Omit it.", "target_language" if source is None else "source_language"
            raise ConfigError(setting(argument), "a published model of many languages", "one trained here", hint)
        other = copy(self)
        other.imported = self.imported.with_languages(source, target)
        return other

    @property
    def source(self) -> "Tokenizer":
        """The tokenizer of a translator's sources: this one, unless they have a vocabulary of their own."""
        return self if self._source is None else self._source

    def encode(self, text: str, *, target: bool = False, continued: bool = False) -> list[int]:
        """Encode text to ids, without `bos` and `eos`; text that looks like a special token is treated as text.

        An imported tokenizer follows its own rules: it may add special tokens, and find them in the text.

        Args:
            text: any text that UTF-8 can encode.
            target: whether it is the target of a translation, to which nothing is added.
            continued: whether the text goes on after a line feed: the ids of a text in such parts are those of the
                whole. An imported tokenizer knows no parts.

        Returns:
            The ids; none for an empty text.

        Raises:
            DataError: the text contains a lone surrogate.

        Example:
            >>> tokenizer = Tokenizer.learn(["abc"], kind="char")
            >>> tokenizer.encode("cab")
            [6, 4, 5]
        """
        require_text(text)
        if self.imported is not None:
            return self.imported.encode(text, target=target)
        text = self.vocabulary.prepared(text)
        if self._encoder is not None:
            # A space before the first word makes it the same token as within a text; `decode` removes it.
            parts = chunks(text if continued else " " + text, CHUNK) if text else ()
            return [number for part in parts for number in self._encoder.encode(part).ids]
        if self.kind == "char":
            return [self._ids.get(character, self.unk) for character in text]
        ids = (self._word_id(word) for word in split_text(text, self.kind))
        # Merged only at the end: the garbage collector rescans one growing list at each run, which is quadratic in
        # total; it does not rescan tuples of integers.
        runs = list(iter(lambda: tuple(islice(ids, CHUNK)), ()))
        return list(chain.from_iterable(runs))

    def decode(self, ids: Iterable[int]) -> str:
        """Decode ids to text; special tokens are dropped, except the unknown token.

        Args:
            ids: from `encode`, or from a model: bytes that are not valid characters become U+FFFD.

        Returns:
            The text.

        Raises:
            DataError: an id is not in the vocabulary.

        Example:
            >>> tokenizer = Tokenizer.learn(["abc"], kind="char")
            >>> tokenizer.decode([tokenizer.bos, 6, 4, 5, tokenizer.eos])
            'cab'
        """
        if self.imported is not None:
            return self.imported.decode(list(ids))
        numbers = [number for number in self._checked(ids) if number not in (self.pad, self.bos, self.eos)]
        if self.of_bytes:
            body = b"".join(self._bytes(number) for number in numbers if number != self.unk)
            return body.decode("utf-8", errors="replace").removeprefix(" ")
        pieces = [self.vocabulary.pieces[number] for number in numbers]
        if self.kind != "char":
            return join_pieces(pieces, self.kind)
        return "".join(_UNKNOWN_CHARACTER if piece == SPECIALS[self.unk] else piece for piece in pieces)

    def decode_stream(self, before: Sequence[int], ids: Iterable[int]) -> Iterator[str]:
        """Decode ids one at a time, each part as soon as no later id can change it.

        Args:
            before: the ids of the text that they continue.
            ids: from a model.

        Returns:
            The parts, which together are what `decode` returns for all ids, without the text of `before`.

        Raises:
            DataError: an id is not in the vocabulary.

        Example:
            >>> tokenizer = Tokenizer.learn(["abc"], kind="bpe", size=260)
            >>> list(tokenizer.decode_stream([], tokenizer.encode("a€")))
            ['a', '€']
        """
        window = list(before)
        text = self.decode(window)
        written = len(text)  # of the text of the window
        for number in ids:
            window.append(number)
            if self._may_be_part(number):
                continue
            text = self.decode(window)
            # Up to three bytes at the end of a text are one U+FFFD, until the character is complete.
            settled = len(text) - text.endswith(_UNKNOWN_CHARACTER)
            if settled > written:
                yield text[written:settled]
                written = settled
            window, written = self._shortened(window, text, written)
        if rest := self.decode(window)[written:]:
            yield rest

    def _may_be_part(self, number: int) -> bool:
        """Return whether the text of an id depends on all ids of a run that goes on: of such bytes, a library decodes
        either all or none.
        """
        return self.imported is not None and _BYTE_PIECE.fullmatch(self.imported.pieces([number])[0]) is not None

    def _shortened(self, window: list[int], text: str, written: int) -> tuple[list[int], int]:
        """Drop the ids at the beginning of a window that the text of later ids does not depend on.

        Args:
            window: the ids.
            text: their text.
            written: how much of it is written.

        Returns:
            The rest of the window, and how much of its text is written.
        """
        start, with_text = len(window), 0
        # A character that is not complete lies within the last ids that have any text.
        while start and (with_text < _LONGEST_CHARACTER or self._may_be_part(window[start])):
            start -= 1
            with_text += bool(self.decode(window[start : start + 1]))
        shorter = window[start:]
        still_written = len(self.decode(shorter)) - (len(text) - written)
        # At the beginning of a text, a decoder may leave out a space.
        return (shorter, still_written) if start and still_written > 0 else (window, written)

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Return a readable name for each id.

        Args:
            ids: any ids of the vocabulary.

        Returns:
            For "bpe" and "unigram" the text, with spaces shown as "▁" and partial characters as bytes "<E2>"; for
            "word" the word without joiners; for "char" the character; special tokens as "<eos>".

        Raises:
            DataError: an id is not in the vocabulary.

        Example:
            >>> tokenizer = Tokenizer.learn(["ein Hund"] * 9, size=400)
            >>> tokenizer.pieces([*tokenizer.encode("ein Hündin"), tokenizer.eos])
            ['▁ein', '▁', 'H', '<C3>', '<BC>', 'nd', 'i', 'n', '<eos>']
        """
        if self.imported is not None:
            return self.imported.pieces(list(ids))
        return [self._piece(number) for number in self._checked(ids)]

    def to_json(self) -> str:
        """Serialize the tokenizer as JSON; the same tokenizer always gives the same JSON.

        Returns:
            The JSON.

        Example:
            >>> tokenizer = Tokenizer.learn(["abc"], kind="char")
            >>> Tokenizer.from_json(tokenizer.to_json()).encode("cab")
            [6, 4, 5]
        """
        if self.imported is not None:
            return self.imported.to_json()
        if self._source is None:
            return self.vocabulary.to_json()
        parts = {"source": self.source.vocabulary, "target": self.vocabulary}
        named = {"format": _PAIR, **{name: json.loads(part.to_json()) for name, part in parts.items()}}
        return json.dumps(named, ensure_ascii=False, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, limit: int | None = None) -> "Tokenizer":
        """Parse a tokenizer; nothing in the text can select code to run.

        Args:
            text: the output of `to_json`.
            limit: the number of tokens that the model reads, for an imported tokenizer; None for any.

        Returns:
            The tokenizer.

        Raises:
            DataError: `to_json` could not have written the text.

        Example:
            >>> Tokenizer.from_json("[]")
            Traceback (most recent call last):
            qkv.errors.DataError: tokenizer: expected a JSON object; got a list. ...
        """
        if text.startswith(f'{{"format": "{IMPORTED}"'):
            from qkv.data.imported_tokenizer import ImportedTokenizer

            return cls.of_imported(ImportedTokenizer.from_json(text, limit))
        document = parse(text)
        if isinstance(document, dict) and document.get("format") == _PAIR and set(document) == _PARTS:
            source, target = (Vocabulary.from_document(document[name]) for name in ("source", "target"))
            return cls(target, source)
        return cls(Vocabulary.from_document(document))

    def _word_id(self, word: str) -> int:
        # A mark whose joiners never occurred in training is better looked up without them than treated as unknown.
        other = bare(word) if self.kind == "word" else word
        return self._ids.get(word, self._ids.get(other, self.unk))

    def _checked(self, ids: Iterable[int]) -> Iterator[int]:
        for number in ids:
            if not 0 <= number < self.size:
                hint = "Was the text encoded with another tokenizer?"
                raise DataError("ids", f"numbers from 0 to {self.size - 1}", str(number), hint)
            yield int(number)

    def _bytes(self, number: int) -> bytes:
        return bytes(_BYTES[character] for character in self.vocabulary.pieces[number])

    def _piece(self, number: int) -> str:
        piece = self.vocabulary.pieces[number]
        if number < len(SPECIALS) or self.kind in ("char", "none"):
            return piece
        if self.kind == "word":
            return bare(piece) or piece
        body = self._bytes(number)
        try:
            return body.decode("utf-8").replace(" ", _SPACE_SHOWN)
        except UnicodeDecodeError:
            return "".join(chr(byte) if byte < 128 else f"<{byte:02X}>" for byte in body).replace(" ", _SPACE_SHOWN)


def _check_counts(kind: TokenizerKind, size: int, minimum: int) -> None:
    of_bytes = kind in OF_BYTES
    least = len(SPECIALS) + (len(_BYTES) if of_bytes else 1)
    if size < least:
        hint = "A few thousand suit most texts." if of_bytes else "Raise it."
        raise ConfigError("size", f"at least {least} with kind {kind}", str(size), hint)
    if of_bytes and size > _MOST:
        hint = "A few thousand suit most texts."
        raise ConfigError("size", f"at most {_MOST:,} with kind {kind}", str(size), hint)
    if minimum < 1:
        raise ConfigError("minimum", "at least 1", str(minimum), "1 learns everything that fits in the vocabulary.")


def _prepared(texts: Iterable[str], vocabulary: Vocabulary) -> Iterator[str]:
    any_text = False
    for text in texts:
        any_text = any_text or bool(text)
        yield vocabulary.prepared(require_text(text))
    if not any_text:
        raise DataError("texts", "text to learn from", "none", "Give the lines of the training files.")


def _learn_byte_pairs(texts: Iterator[str], size: int, minimum: int, empty: Vocabulary) -> Vocabulary:
    learner = tokenizers.Tokenizer(models.BPE())
    learner.pre_tokenizer = bpe_splitter()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=minimum,
        special_tokens=list(SPECIALS),
        initial_alphabet=list(_BYTES),
        show_progress=False,
    )
    learner.train_from_iterator((" " + text for text in texts if text), trainer)
    model = json.loads(learner.to_str())["model"]
    pieces = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return replace(empty, pieces=tuple(pieces), merges=tuple((left, right) for left, right in model["merges"]))


def _byte_pair_encoder(vocabulary: Vocabulary, ids: dict[str, int]) -> tokenizers.Tokenizer:
    # No token is registered with the library as special: text that looks like one must stay text.
    encoder = tokenizers.Tokenizer(models.BPE(vocab=ids, merges=list[tuple[str, str]](vocabulary.merges)))
    encoder.pre_tokenizer = bpe_splitter()
    return encoder
