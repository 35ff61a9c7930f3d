"""Texts with labels as tokens: which files, which examples to validate on, which pieces."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple

from qkv.data.features import text_features
from qkv.data.fingerprints import fingerprint
from qkv.data.labeled import hold_out_some, labels_of, read_labeled, read_tagged
from qkv.data.tokenizer import Tokenizer
from qkv.errors import ConfigError, DataError, error_message
from qkv.tasks.parallel import Words

Kind = Literal["classify", "tag"]
_HELD_OUT = 1000


@dataclass(frozen=True)
class LabeledFiles:
    """Where the labeled texts are.

    Args:
        data: label<TAB>text on each line, or for tagging words in columns.
        valid_data: likewise, to validate on; without it a tenth is held out (at most 1,000).
        longest: the most tokens that a text may have.
    """

    data: Path | None = None
    valid_data: Path | None = None
    longest: int = 512


class Text(NamedTuple):
    """A text as it is labeled: whole, or word by word.

    Attributes:
        words: the units that bear labels; a text to classify is one of them.
        labels: one for each.
        line: of the file, from 1 on.
    """

    words: tuple[str, ...]
    labels: tuple[str, ...]
    line: int


class Item(NamedTuple):
    """A text as numbers.

    Attributes:
        ids: its pieces.
        begins: the place of each word's first piece; (0,) for a text to classify.
        labels: the number of each word's label.
        line: of the file, from 1 on.
        features: what else a wide model reads of a text to classify, see `qkv.data.features`; None for other models.
    """

    ids: tuple[int, ...]
    begins: tuple[int, ...]
    labels: tuple[int, ...]
    line: int
    features: tuple[int, ...] | None = None


class LabeledText(NamedTuple):
    """Labeled texts ready for training.

    Attributes:
        tokenizer: learnt from the training texts.
        labels: the names of the labels, sorted.
        train, valid: examples.
        fingerprint, valid_fingerprint: sha256 of what was read.
    """

    tokenizer: Tokenizer
    labels: tuple[str, ...]
    train: list[Item]
    valid: list[Item]
    fingerprint: str
    valid_fingerprint: str


def read_texts(kind: Kind, path: Path | None, flag: str = "--data") -> list[Text]:
    """Read the texts of a file.

    Args:
        kind: "classify" for label<TAB>text, "tag" for words in columns.
        path: the file.
        flag: what messages call it.

    Returns:
        The texts.

    Raises:
        ConfigError: no file is named.
        DataError: the file cannot be used; names file and line.
    """
    if path is None:
        hint = "A file with label<TAB>text on each line." if kind == "classify" else "A file of words in columns."
        raise ConfigError(error_message(flag, f"{flag} FILE", "none", hint))
    return _READERS[kind](path)


def read_for_training(
    kind: Kind,
    files: LabeledFiles,
    words: Words,
    seed: int,
    tokenizer: Tokenizer | None = None,
    wide: int | None = None,
) -> LabeledText:
    """Read and tokenize the texts to train and validate on.

    Args:
        kind: "classify" or "tag".
        files: where they are.
        words: how to tokenize.
        seed: decides what is held out, where no validation file is given.
        tokenizer: one that was learnt before, to go on with; None to learn it.
        wide: buckets of the features of a wide model; None for other models.

    Returns:
        The texts, ready.

    Raises:
        DataError: a file cannot be used; names file and line, also of a label that training never saw.
        ConfigError: files are missing.
    """
    train = read_texts(kind, files.data)
    names = (str(files.data), str(files.valid_data or files.data))
    if files.valid_data is not None:
        valid = read_texts(kind, files.valid_data, "--valid-data")
    else:
        train, valid = hold_out_some(train, max(1, min(_HELD_OUT, len(train) // 10)), seed)
    labels = labels_of(label for text in train for label in text.labels)
    if tokenizer is None:
        texts = (word for text in train for word in text.words)
        tokenizer = Tokenizer.learn(texts, words.kind, words.size, lowercase=words.lowercase, minimum=words.minimum)
    return LabeledText(
        tokenizer,
        labels,
        [numbered(text, tokenizer, labels, files.longest, names[0], wide) for text in train],
        [numbered(text, tokenizer, labels, files.longest, names[1], wide) for text in valid],
        _digest(train),
        _digest(valid),
    )


def numbered(
    text: Text, tokenizer: Tokenizer, labels: Sequence[str], longest: int, name: str, wide: int | None = None
) -> Item:
    """Turn a labeled text into numbers.

    Args:
        text: words with labels.
        tokenizer: words to pieces.
        labels: the names of the labels.
        longest: the most pieces.
        name: of the file, for errors.
        wide: buckets of the features of a wide model; None for other models.

    Returns:
        The numbers.

    Raises:
        DataError: a text that is too long, or a label that is not among the names.

    Example:
        >>> tokenizer = Tokenizer.learn(["good film"], kind="char")
        >>> numbered(Text(("fo", "o"), ("a", "b"), 3), tokenizer, ("a", "b"), 9, "f").begins
        (0, 2)
    """
    for label in text.labels:
        if label not in labels:
            hint = "Training never saw it: add examples of it to --data, or correct the label."
            got = f'"{label}"'
            raise DataError(error_message(f"{name}:{text.line}", f"one of {_shown(labels)}", got, hint))
    ids, begins = encode_words(text.words, tokenizer)
    if len(ids) > longest:
        hint = f"Shorten or divide it, or allow longer ones with --longest {len(ids)}."
        raise DataError(error_message(f"{name}:{text.line}", f"at most {longest} tokens", f"{len(ids)}", hint))
    features = None if wide is None else features_of(text.words[0], tokenizer, wide)
    return Item(ids, begins, tuple(labels.index(label) for label in text.labels), text.line, features)


def features_of(text: str, tokenizer: Tokenizer, wide: int | None) -> tuple[int, ...] | None:
    """The features of a text to classify, lower-cased where its tokens are; None without buckets."""
    if wide is None:
        return None
    return text_features(text.lower() if tokenizer.vocabulary.lowercase else text, wide)


def encode_words(words: Iterable[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The pieces of words, and at which piece each word begins; a word that leaves no piece is the unknown one.

    Example:
        >>> tokenizer = Tokenizer.learn(["good film"], kind="char")
        >>> encode_words(["of", "good"], tokenizer)[1]
        (0, 2)
    """
    ids: list[int] = []
    begins: list[int] = []
    for word in words:
        begins.append(len(ids))
        ids += tokenizer.encode(word) or [tokenizer.unk]
    return tuple(ids), tuple(begins)


def _classified(path: Path) -> list[Text]:
    return [Text((item.text,), (item.label,), item.line) for item in read_labeled(path)]


def _tagged(path: Path) -> list[Text]:
    return [Text(item.words, item.tags, item.line) for item in read_tagged(path)]


_READERS: Mapping[Kind, Callable[[Path], list[Text]]] = MappingProxyType({"classify": _classified, "tag": _tagged})


def _digest(texts: Sequence[Text]) -> str:
    return fingerprint("\t".join((*text.words, "", *text.labels)) for text in texts)


def _shown(labels: Sequence[str], most: int = 12) -> str:
    shown = ", ".join(f'"{label}"' for label in labels[:most])
    return shown if len(labels) <= most else f"{shown} and {len(labels) - most} more"
