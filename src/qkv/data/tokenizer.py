"""Text to ids and back: byte pairs, words, characters or given symbols, trained on the training text."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import final

import tokenizers
from tokenizers import models, trainers

from qkv.data.segments import JOINER, bare, bpe_splitter, byte_alphabet, chunks, join_words, require_text, words
from qkv.data.vocabulary import SPECIALS, Kind, Vocabulary, check_kind
from qkv.errors import ConfigError, DataError, error_message

_BYTES = byte_alphabet()
_SPACE_SHOWN = "▁"
_UNKNOWN_CHARACTER = "\ufffd"
CHUNK = 1 << 16
"""Characters per chunk of byte pair encoding, and number of cached words."""
_MOST = 1_000_000
"""Maximum number of byte pairs: the library allocates memory for all of them in advance."""


@final
class Tokenizer:
    """Text to ids and back.

    `bpe` restores every text exactly. So does `char`, except for unseen characters, which become U+FFFD. `word` writes
    single spaces, and "<unk>" for unseen words. `none` takes text that is split already, into symbols with one space
    between two of them: "ʃ a"; it writes "<unk>" for unseen symbols. `lowercase` lower-cases the text first (by
    `str.lower`).

    Args:
        vocabulary: the trained vocabulary; use `learn` or `from_json` to get a tokenizer.

    Example:
        >>> tokenizer = Tokenizer.learn(["A dog.", "A cat."], kind="word")
        >>> ids = tokenizer.encode("A cat, a dog.")
        >>> tokenizer.pieces(ids)
        ['A', 'cat', '<unk>', '<unk>', 'dog', '.']
        >>> tokenizer.decode(tokenizer.encode("A dog."))
        'A dog.'
    """

    pad = SPECIALS.index("<pad>")
    bos = SPECIALS.index("<bos>")
    eos = SPECIALS.index("<eos>")
    unk = SPECIALS.index("<unk>")

    __slots__ = ("_byte_pairs", "_ids", "vocabulary")

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Create a tokenizer from a vocabulary."""
        self.vocabulary = vocabulary
        self._ids = {piece: number for number, piece in enumerate(vocabulary.pieces)}
        self._byte_pairs = _byte_pair_encoder(vocabulary, self._ids) if vocabulary.kind == "bpe" else None

    @classmethod
    def learn(
        cls, texts: Iterable[str], kind: str = "bpe", size: int = 8000, *, lowercase: bool = False, minimum: int = 1
    ) -> "Tokenizer":
        """Learn a vocabulary; the same texts, in any order, give the same vocabulary.

        Args:
            texts: the training text; for a joint vocabulary both languages.
            kind: "bpe" (byte pairs, nothing is ever unknown), "word", "char" or "none".
            size: maximum number of tokens, including the four special ones and, for "bpe", the 256 bytes.
            lowercase: whether to lower-case text here and in `encode`.
            minimum: minimum frequency of a word, a character, a symbol or, for "bpe", a pair.

        Returns:
            The tokenizer.

        Raises:
            ConfigError: the kind is unknown, the size is too small to learn anything, or the minimum is below 1.
            DataError: there is no text, or it cannot be encoded in UTF-8.

        Source: Sennrich et al. 2016, "Neural machine translation of rare words with subword units", algorithm 1.

        Example:
            >>> tokenizer = Tokenizer.learn(["low lower lowest"] * 9, size=265)
            >>> tokenizer.pieces(tokenizer.encode("lower"))
            ['▁lowe', 'r']
        """
        checked = check_kind(kind)
        _check_counts(checked, size, minimum)
        prepared = _prepared(texts, lowercase)
        if checked == "bpe":
            return cls(_learn_byte_pairs(prepared, size, minimum, lowercase))
        counts: Counter[str] = Counter()
        for text in prepared:
            counts.update(pieces_of(text, checked))
        frequent = sorted((piece for piece in counts if counts[piece] >= minimum), key=lambda p: (-counts[p], p))
        return cls(Vocabulary(checked, lowercase, (*SPECIALS, *frequent[: size - len(SPECIALS)]), ()))

    @property
    def kind(self) -> Kind:
        """The kind of tokens: "bpe", "word", "char" or "none"."""
        return self.vocabulary.kind

    @property
    def size(self) -> int:
        """The number of tokens: ids run from 0 to size - 1."""
        return len(self.vocabulary.pieces)

    @property
    def never_written(self) -> tuple[int, ...]:
        """The ids that never occur in a target, so that none should be written: padding, the begin token and, for
        "bpe", which
        has no unknown text, the unknown token.
        """
        return (self.pad, self.bos, self.unk) if self.kind == "bpe" else (self.pad, self.bos)

    def encode(self, text: str) -> list[int]:
        """Encode text to ids, without `bos` and `eos`; text that looks like a special token is treated as text.

        Args:
            text: any text that UTF-8 can encode.

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
        if self.vocabulary.lowercase:
            text = text.lower()
        if self._byte_pairs is not None:
            # A space before the first word makes it the same token as within a text; `decode` removes it.
            parts = chunks(" " + text, CHUNK) if text else ()
            return [number for part in parts for number in self._byte_pairs.encode(part).ids]
        if self.kind != "word":
            return [self._ids.get(piece, self.unk) for piece in pieces_of(text, self.kind)]
        ids = (self._word_id(word) for word in words(text))
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
        kept = [number for number in self._checked(ids) if number not in (self.pad, self.bos, self.eos)]
        if self.kind == "bpe":
            body = b"".join(self._bytes(number) for number in kept if number != self.unk)
            return body.decode("utf-8", errors="replace").removeprefix(" ")
        pieces = [self.vocabulary.pieces[number] for number in kept]
        if self.kind == "word":
            return join_words(pieces)
        if self.kind == "none":
            return " ".join(piece[1:] if piece[1:] in SPECIALS else piece for piece in pieces)
        return "".join(_UNKNOWN_CHARACTER if piece == SPECIALS[self.unk] else piece for piece in pieces)

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Return a readable name for each id.

        Args:
            ids: any ids of the vocabulary.

        Returns:
            For "bpe" the text, with spaces shown as "▁" and partial characters as bytes "<E2>"; for "word" the word
            without joiners; for "char" the character, for "none" the symbol; special tokens as "<eos>".

        Raises:
            DataError: an id is not in the vocabulary.

        Example:
            >>> tokenizer = Tokenizer.learn(["ein Hund"] * 9, size=400)
            >>> tokenizer.pieces([*tokenizer.encode("ein Hündin"), tokenizer.eos])
            ['▁ein', '▁', 'H', '<C3>', '<BC>', 'nd', 'i', 'n', '<eos>']
        """
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
        return self.vocabulary.to_json()

    @classmethod
    def from_json(cls, text: str) -> "Tokenizer":
        """Parse a tokenizer; nothing in the text can select code to run.

        Args:
            text: the output of `to_json`.

        Returns:
            The tokenizer.

        Raises:
            DataError: `to_json` could not have written the text.

        Example:
            >>> Tokenizer.from_json("[]")
            Traceback (most recent call last):
            qkv.errors.DataError: tokenizer: expected a JSON object; got a list. ...
        """
        return cls(Vocabulary.from_json(text))

    def _word_id(self, word: str) -> int:
        # A mark whose joiners never occurred in training is better looked up without them than treated as unknown.
        return self._ids.get(word, self._ids.get(bare(word), self.unk))

    def _checked(self, ids: Iterable[int]) -> Iterator[int]:
        for number in ids:
            if not 0 <= number < self.size:
                hint = "Was the text encoded with another tokenizer?"
                raise DataError(error_message("ids", f"numbers from 0 to {self.size - 1}", str(number), hint))
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


def pieces_of(text: str, kind: Kind) -> Iterable[str]:
    """Split a text into words with joiners, symbols, or characters; "bpe" is not split here."""
    match kind:
        case "word":
            return words(text)
        case "none":
            # A symbol that is spelled like a special token must differ from it.
            return (f"{JOINER}{piece}" if piece in SPECIALS else piece for piece in text.split(" ") if piece)
        case _:
            return text


def _check_counts(kind: Kind, size: int, minimum: int) -> None:
    least = len(SPECIALS) + (len(_BYTES) if kind == "bpe" else 1)
    if size < least:
        hint = "A few thousand suit most texts." if kind == "bpe" else "Raise it."
        raise ConfigError(error_message("size", f"at least {least} with kind {kind}", str(size), hint))
    if kind == "bpe" and size > _MOST:
        hint = "A few thousand suit most texts."
        raise ConfigError(error_message("size", f"at most {_MOST:,} with kind {kind}", str(size), hint))
    if minimum < 1:
        raise ConfigError(
            error_message("minimum", "at least 1", str(minimum), "1 learns everything that fits in the vocabulary.")
        )


def _prepared(texts: Iterable[str], lowercase: bool) -> Iterator[str]:
    found = False
    for text in texts:
        found = found or bool(text)
        yield require_text(text).lower() if lowercase else require_text(text)
    if not found:
        raise DataError(error_message("texts", "text to learn from", "none", "Give the lines of the training files."))


def _learn_byte_pairs(texts: Iterator[str], size: int, minimum: int, lowercase: bool) -> Vocabulary:
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
    return Vocabulary("bpe", lowercase, tuple(pieces), tuple((left, right) for left, right in model["merges"]))


def _byte_pair_encoder(vocabulary: Vocabulary, ids: dict[str, int]) -> tokenizers.Tokenizer:
    # No token is registered with the library as special: text that looks like one must stay text.
    encoder = tokenizers.Tokenizer(models.BPE(vocab=ids, merges=list[tuple[str, str]](vocabulary.merges)))
    encoder.pre_tokenizer = bpe_splitter()
    return encoder
