"""Labeled texts, and as numbers."""

import zlib
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from qkv.data import segments
from qkv.data.columns import TextColumns
from qkv.data.labeled import LABEL_AND_TEXT, LABEL_NAMES, TEXT_NAMES, Unit, read_labeled
from qkv.data.tagged import Tagged
from qkv.data.tokenizer import Tokenizer
from qkv.errors import ConfigError, DataError, Place, setting
from qkv.tasks.length import longer_allowed
from qkv.tasks.notes import state
from qkv.tasks.python_values import as_source, labeled_line
from qkv.tasks.settings import Pairs

Labeling = Literal["classify", "tag"]
_SHORTEST_RUN, _LONGEST_RUN = 3, 6
"""Characters of an n-gram."""


class EncodedText(NamedTuple):
    """A text as numbers.

    Attributes:
        ids: its token ids.
        begins: the index of each word's first token; (0,) for a text to classify.
        labels: the index of each word's label.
        line: line number in the file, from 1.
        features: features for a wide model, see `text_features`; None for other models.
    """

    ids: tuple[int, ...]
    begins: tuple[int, ...]
    labels: tuple[int, ...]
    line: int
    features: tuple[int, ...] | None = None


def read_texts(data: Pairs | None, name: str = "data", columns: TextColumns = LABEL_AND_TEXT) -> list[Tagged]:
    """Read texts with a label each.

    Args:
        data: a file with label<TAB>text on each line, or pairs of a label and a text.
        name: of the argument, for messages.
        columns: of a table.

    Returns:
        The texts.

    Raises:
        ConfigError: there are none.
        DataError: the data is invalid; the message gives file and line.
    """
    if data is None:
        raise missing_data(name, "A file with label<TAB>text on each line.")
    source = as_source(data, name, labeled_line, columns, (LABEL_NAMES, TEXT_NAMES))
    items = read_labeled(source, say=state, columns=columns)
    return [Tagged((item.text,), (item.label,), item.line) for item in items]


def as_lines(text: Tagged, labels: Sequence[str], unit: Unit) -> list[str]:
    """Return a text with labels as lines that can be trained on: label<TAB>text, or word<TAB>tag and an empty line.

    Example:
        >>> as_lines(Tagged(("Ada", "wrote"), (), 1), ("PER", "O"), "sentences")
        ['Ada\\tPER', 'wrote\\tO', '']
    """
    if unit == "texts":
        return [f"{labels[0]}\t{text.words[0]}"]
    return [*(f"{word}\t{tag}" for word, tag in zip(text.words, labels, strict=True)), ""]


def missing_data(name: str, hint: str) -> ConfigError:
    """Return the error about data that is not given."""
    return ConfigError(setting(name), setting(name, "FILE"), "none", hint)


def numbered(
    text: Tagged, tokenizer: Tokenizer, labels: Sequence[str], longest: int, name: str, wide: int | None = None
) -> EncodedText:
    """Turn a labeled text into numbers.

    Args:
        text: words with known labels.
        tokenizer: the tokenizer.
        labels: the names of the labels.
        longest: maximum number of tokens.
        name: file name for errors.
        wide: feature buckets of a wide model; None for other models.

    Returns:
        The numbers.

    Raises:
        DataError: the text is too long.

    Example:
        >>> tokenizer = Tokenizer.learn(["good film"], kind="char")
        >>> numbered(Tagged(("fo", "o"), ("a", "b"), 3), tokenizer, ("a", "b"), 9, "f").begins
        (0, 2)
    """
    ids, begins = encode_words(text.words, tokenizer)
    if len(ids) > longest:
        hint = "Shorten or split it, " + longer_allowed(len(ids), tokenizer)
        raise DataError(Place(name, text.line), f"at most {longest} tokens", f"{len(ids)}", hint)
    features = features_of(text.words[0], tokenizer, wide)
    return EncodedText(ids, begins, tuple(labels.index(label) for label in text.tags), text.line, features)


def features_of(text: str, tokenizer: Tokenizer, wide: int | None) -> tuple[int, ...] | None:
    """Return the features of a text to classify, normalized and lower-cased like its tokens; None without buckets."""
    if wide is None:
        return None
    return text_features(tokenizer.vocabulary.prepared(text), wide)


def text_features(text: str, buckets: int) -> tuple[int, ...]:
    """Hash the words, the pairs of neighboring words, and the 3- to 6-character n-grams within words of a text.

    An unseen word still has n-grams that training saw. The hashes are the same on every machine.

    Args:
        text: any text.
        buckets: number of hash buckets; a few features share one.

    Returns:
        The distinct buckets, from 0 to buckets − 1, sorted.

    Source: Joulin et al. 2017, "Bag of Tricks for Efficient Text Classification", section 2.2 (pairs, hashing);
        Bojanowski et al. 2017, "Enriching Word Vectors with Subword Information", section 3.2 (n-grams with
        boundaries).

    Example:
        >>> len(text_features("a film", 1000))  # 2 words, 3 pairs with both ends, "<a>", and 10 n-grams of "<film>"
        16
    """
    bare_words = [segments.bare(piece) for piece in segments.words(text)]
    pairs = {f"{first} {second}" for first, second in zip(["", *bare_words], [*bare_words, ""], strict=True)}
    runs = {run for word in set(bare_words) for run in _character_runs(f"<{word}>")}
    features = [
        f"{kind}:{name}"
        for kind, features in (("word", bare_words), ("pair", pairs), ("run", runs))
        for name in features
    ]
    return tuple(sorted({zlib.crc32(name.encode()) % buckets for name in features}))


def _character_runs(word: str) -> list[str]:
    return [
        word[start : start + length]
        for length in range(_SHORTEST_RUN, _LONGEST_RUN + 1)
        for start in range(len(word) - length + 1)
    ]


def encode_words(words: Iterable[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Tokenize words, and return the index of each word's first token; a word without tokens becomes the unknown token.

    The tokenizer of a published model reads them as one text, and refuses such a word.

    Example:
        >>> tokenizer = Tokenizer.learn(["good film"], kind="char")
        >>> encode_words(["of", "good"], tokenizer)[1]
        (0, 2)
    """
    if tokenizer.imported is not None:
        encoded = tokenizer.imported.encode_words(list(words))
        return tuple(encoded[0]), tuple(encoded[1])
    ids: list[int] = []
    begins: list[int] = []
    for word in words:
        begins.append(len(ids))
        ids += tokenizer.encode(word) or [tokenizer.unk]
    return tuple(ids), tuple(begins)
