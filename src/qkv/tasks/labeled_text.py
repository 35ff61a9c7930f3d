"""Labeled texts as tokens: training files, validation examples, tokenizer."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from qkv.data.features import text_features
from qkv.data.fingerprints import fingerprint
from qkv.data.holdout import split
from qkv.data.labeled import Tagged, labels_of, read_labeled, read_tagged, tell_odd_spans
from qkv.data.normal_forms import normalize
from qkv.data.tokenizer import Tokenizer
from qkv.errors import ConfigError, DataError, Place, setting
from qkv.tasks.classify.settings import ClassifyFiles
from qkv.tasks.notes import note
from qkv.tasks.settings import Pairs, TokenizerSettings
from qkv.tasks.tag.settings import Sentences, TagFiles
from qkv.tasks.tokenizing import learn_tokenizer
from qkv.tasks.values import as_source, pair_line

Kind = Literal["classify", "tag"]
_SHARE = 10
"""One text in so many is held out."""


class TextAndLabels(NamedTuple):
    """A labeled text: as a whole, or word by word.

    Attributes:
        words: the labeled units; a text to classify is a single one.
        labels: one per unit.
        line: line number in the file, from 1.
    """

    words: tuple[str, ...]
    labels: tuple[str, ...]
    line: int


class EncodedText(NamedTuple):
    """A text as numbers.

    Attributes:
        ids: its token ids.
        begins: the index of each word's first token; (0,) for a text to classify.
        labels: the index of each word's label.
        line: line number in the file, from 1.
        features: features for a wide model, see `qkv.data.features`; None for other models.
    """

    ids: tuple[int, ...]
    begins: tuple[int, ...]
    labels: tuple[int, ...]
    line: int
    features: tuple[int, ...] | None = None


class LabeledText(NamedTuple):
    """Labeled texts ready for training.

    Attributes:
        tokenizer: learned from the training texts.
        labels: the names of the labels, sorted.
        train, valid: examples.
        fingerprint, valid_fingerprint: sha256 of the texts.
    """

    tokenizer: Tokenizer
    labels: tuple[str, ...]
    train: list[EncodedText]
    valid: list[EncodedText]
    fingerprint: str
    valid_fingerprint: str


def read_texts(kind: Kind, data: Pairs | Sentences | None, name: str = "data") -> list[TextAndLabels]:
    """Read labeled texts.

    Args:
        kind: "classify" for label<TAB>text, "tag" for words in columns.
        data: the file, or the texts themselves.
        name: of the argument, for messages.

    Returns:
        The texts.

    Raises:
        ConfigError: there is none.
        DataError: the data is invalid; the message gives file and line.
    """
    if data is None:
        hint = "A file with label<TAB>text on each line." if kind == "classify" else "A file of words in columns."
        raise ConfigError(setting(name), f"{setting(name)} FILE", "none", hint)
    return _READERS[kind](data, name)


def read_for_training(
    kind: Kind,
    files: ClassifyFiles | TagFiles,
    words: TokenizerSettings,
    seed: int,
    tokenizer: Tokenizer | None = None,
    wide: int | None = None,
) -> LabeledText:
    """Read and tokenize the training and validation texts.

    Args:
        kind: "classify" or "tag".
        files: the files.
        words: tokenizer settings.
        seed: selects what is held out if there is no validation file.
        tokenizer: an existing tokenizer; None to train one.
        wide: feature buckets of a wide model; None for other models.

    Returns:
        The texts, ready for training.

    Raises:
        DataError: a file is invalid, or has a label that training never saw; the message gives file and line.
        ConfigError: files are missing.
    """
    train = read_texts(kind, files.data)
    name = valid_name = _name(files.data, "data")
    if files.valid_data is not None:
        valid = read_texts(kind, files.valid_data, "valid_data")
        valid_name = _name(files.valid_data, "valid_data")
    else:
        train, valid, message = split(
            train,
            seed,
            parts=lambda text: (text.words, text.labels),
            names=("texts", "texts") if kind == "classify" else ("sentences", "sentences"),
            share=_SHARE,
            labels=lambda text: text.labels,
        )
        if message:
            _note(message)
    labels = labels_of(label for text in train for label in text.labels)
    if tokenizer is None:
        texts = (word for text in train for word in text.words)
        tokenizer = learn_tokenizer(words, texts)
    return LabeledText(
        tokenizer,
        labels,
        [numbered(text, tokenizer, labels, files.longest, name, wide) for text in train],
        [numbered(text, tokenizer, labels, files.longest, valid_name, wide) for text in valid],
        _digest(train),
        _digest(valid),
    )


def numbered(
    text: TextAndLabels, tokenizer: Tokenizer, labels: Sequence[str], longest: int, name: str, wide: int | None = None
) -> EncodedText:
    """Turn a labeled text into numbers.

    Args:
        text: words with labels.
        tokenizer: the tokenizer.
        labels: the names of the labels.
        longest: maximum number of tokens.
        name: file name for errors.
        wide: feature buckets of a wide model; None for other models.

    Returns:
        The numbers.

    Raises:
        DataError: the text is too long, or its label is unknown.

    Example:
        >>> tokenizer = Tokenizer.learn(["good film"], kind="char")
        >>> numbered(TextAndLabels(("fo", "o"), ("a", "b"), 3), tokenizer, ("a", "b"), 9, "f").begins
        (0, 2)
    """
    for label in text.labels:
        if label not in labels:
            hint = f"Training never saw it: add examples of it to {setting('data')}, or correct the label."
            got = f'"{label}"'
            raise DataError(Place(name, text.line), f"one of {_shown(labels)}", got, hint)
    ids, begins = encode_words(text.words, tokenizer)
    if len(ids) > longest:
        hint = f"Shorten or split it, or allow longer ones with {setting('longest', f'{len(ids)}')}."
        raise DataError(Place(name, text.line), f"at most {longest} tokens", f"{len(ids)}", hint)
    features = None if wide is None else features_of(text.words[0], tokenizer, wide)
    return EncodedText(ids, begins, tuple(labels.index(label) for label in text.labels), text.line, features)


def features_of(text: str, tokenizer: Tokenizer, wide: int | None) -> tuple[int, ...] | None:
    """Return the features of a text to classify, normalized and lower-cased like its tokens; None without buckets."""
    if wide is None:
        return None
    return text_features(tokenizer.vocabulary.prepared(text), wide)


def encode_words(words: Iterable[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Tokenize words, and return the index of each word's first token; a word without tokens becomes the unknown token.

    The tokenizer of a published model reads them as one text, and refuses such a word.

    Example:
        >>> tokenizer = Tokenizer.learn(["good film"], kind="char")
        >>> encode_words(["of", "good"], tokenizer)[1]
        (0, 2)
    """
    if tokenizer.published is not None:
        encoded = tokenizer.published.encode_words(list(words))
        return tuple(encoded[0]), tuple(encoded[1])
    ids: list[int] = []
    begins: list[int] = []
    for word in words:
        begins.append(len(ids))
        ids += tokenizer.encode(word) or [tokenizer.unk]
    return tuple(ids), tuple(begins)


def _name(data: object, name: str) -> str:
    """Return what messages call data: the file, or the argument whose values they are."""
    return str(data) if isinstance(data, str | Path) else name


def _note(text: str) -> None:
    note(f"qkv: {text}")


def _classified(data: Any, name: str) -> list[TextAndLabels]:
    items = read_labeled(as_source(data, name, pair_line), say=_note)
    return [TextAndLabels((item.text,), (item.label,), item.line) for item in items]


def _tagged(data: Any, name: str) -> list[TextAndLabels]:
    if isinstance(data, str | Path):
        found = read_tagged(Path(data), say=_note)
    else:
        found = [_sentence(item, name, number) for number, item in enumerate(data, start=1)]
        if not found:
            raise DataError(name, "at least one item", "none", "Was an iterator already read?")
        tell_odd_spans(found, name, _note)
    return [TextAndLabels(item.words, item.tags, item.line) for item in found]


def _sentence(item: Iterable[object], name: str, number: int) -> Tagged:
    """Return a sentence given as pairs of a word and its tag."""
    where = f"{name}:{number}"
    rows = [pair_line(pair, f"{where}, word {place}").split("\t") for place, pair in enumerate(item, start=1)]
    for place, row in enumerate(rows, start=1):
        if not all(cell.strip() for cell in row):
            raise DataError(f"{where}, word {place}", "a word and its tag", "an empty one", "Fill it or omit the word.")
    if not rows:
        raise DataError(Place(name, number), "at least one word", "none", "Omit the sentence.")
    return Tagged(tuple(word for word, _ in rows), tuple(normalize("NFC", tag) for _, tag in rows), number)


_READERS: Mapping[Kind, Callable[[Any, str], list[TextAndLabels]]] = MappingProxyType(
    {"classify": _classified, "tag": _tagged}
)


def _digest(texts: Sequence[TextAndLabels]) -> str:
    return fingerprint("\t".join((*text.words, "", *text.labels)) for text in texts)


def _shown(labels: Sequence[str], most: int = 12) -> str:
    shown = ", ".join(f'"{label}"' for label in labels[:most])
    return shown if len(labels) <= most else f"{shown} and {len(labels) - most} more"
