"""Lines of elements and positions, ready for training."""

from collections import Counter
from collections.abc import Iterable, Sequence
from numbers import Real
from typing import Any, NamedTuple, final

import numpy as np
from torch import Tensor

from qkv.data.choices import Elements
from qkv.data.corpus import Pair, fingerprint
from qkv.data.pointing import Pointed, coordinates_message, parse_pairs
from qkv.data.report import expect_some_left, refuse
from qkv.errors import DataError, Place, brief, setting
from qkv.tasks.folds import Examples
from qkv.tasks.notes import reporting, state
from qkv.tasks.pairs import pair_examples, read_training_pairs
from qkv.tasks.point.settings import PointFiles
from qkv.tasks.python_values import pair_line, text_line

UNKNOWN = "<unk>"


@final
class ElementVocabulary:
    """Words to ids; None for numbers.

    Args:
        words: known words; the first stands for all others.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.words = tuple(words)
        self._ids = {word: number for number, word in enumerate(self.words)}

    def ids(self, words: Iterable[Any]) -> list[int]:
        """Return the id of each word."""
        return [self._ids.get(word, 0) for word in words]


class PointLines(NamedTuple):
    """Lines ready for training.

    Attributes:
        elements: what elements are.
        vocabulary: words to ids; None for numbers.
        features: numbers per element, or number of words.
        train, valid: the lines.
        longest: most positions of a training target.
        fingerprints: sha256 of the lines of each part.
    """

    elements: Elements
    vocabulary: ElementVocabulary | None
    features: int
    train: list[Pointed]
    valid: list[Pointed]
    longest: int
    fingerprints: dict[str, str]


def read_lines(data: PointFiles, once: bool, seed: int) -> PointLines:
    """Read the training and validation lines.

    Args:
        data: the files.
        once: whether each element is pointed at once.
        seed: selects what is held out if there are no validation files.

    Returns:
        The lines, ready for training.

    Raises:
        DataError: a file is invalid; the message gives file and line.
        ConfigError: files are missing, or too many are given.
    """
    with reporting(data.skip):
        return _lines(data, once, seed)


def examples(data: PointFiles) -> Examples:
    """Return the lines as examples to divide for a cross-validation; errors as of `pair_examples`."""
    return pair_examples(data, _line, _pair)


def _lines(data: PointFiles, once: bool, seed: int) -> PointLines:
    pairs = read_training_pairs(data, seed, names=("lines", "inputs"), side=_line, pair=_pair)
    train, kind = parse_pairs(pairs.train, pairs.names, data.elements)
    if (message := coordinates_message(train)) is not None:
        state(f"{pairs.names[0]}: {message}")
    width = len(train[0].elements[0]) if kind == "numbers" else None
    validation, _ = parse_pairs(pairs.valid, pairs.valid_names, kind, width)
    if once:
        train = _each_once(train, pairs.names[1])
        validation = _each_once(validation, pairs.valid_names[1])
    vocabulary, features = None, width or 1
    if kind == "words":
        vocabulary = ElementVocabulary(_frequent(train, data.vocabulary))
        features = len(vocabulary.words)
    longest = max(len(item.target) for item in train)
    fingerprints = {"train": _digest(pairs.train, train), "valid": _digest(pairs.valid, validation)}
    return PointLines(kind, vocabulary, features, train, validation, longest, fingerprints)


def _line(side: Any, where: str) -> str:
    """Join elements or positions by spaces, and the numbers of a vector by commas."""
    if isinstance(side, str) or not isinstance(side, Iterable):
        return text_line(side, where)
    elements = side.tolist() if isinstance(side, np.ndarray | Tensor) else side
    return text_line(" ".join(_element(element, where) for element in elements), where)


def _element(element: Any, where: str) -> str:
    """Write a number, a vector of numbers, or a word."""
    if isinstance(element, np.ndarray | np.generic | Tensor):
        element = element.tolist()
    if isinstance(element, tuple | list):
        return ",".join(_element(part, where) for part in element)
    if isinstance(element, bool) or not isinstance(element, str | Real):
        raise DataError(
            where, "numbers, vectors of numbers, or words", brief(repr(element)), "Give numbers or strings."
        )
    return str(element)


def _pair(item: Any, where: str) -> str:
    return pair_line(item, where, _line)


def _digest(pairs: Sequence[Pair], items: Sequence[Pointed]) -> str:
    lines = {item.line for item in items}
    return fingerprint(pair for pair in pairs if pair.line in lines)


def _each_once(items: Sequence[Pointed], name: str) -> list[Pointed]:
    """Refuse targets that point at an element twice, and return the others."""
    kept = []
    for item in items:
        if len(set(item.target)) < len(item.target):
            twice = next(index for index, count in Counter(item.target).items() if count > 1)
            hint = "If elements may be pointed at again, say so with " + setting("repeats") + "."
            if item.target.count(twice) == 2 and item.target[0] == item.target[-1] == twice:
                hint += " Omit the last position if it only closes a path."
            error = DataError(Place(name, item.line), "each position at most once", f"{twice} twice", hint)
            refuse("invalid", error)
        else:
            kept.append(item)
    if not kept:
        expect_some_left()
    return kept


def _frequent(items: Sequence[Pointed], size: int) -> list[str]:
    counts = Counter(word for item in items for word in item.elements)
    words = sorted((str(word) for word in counts if word != UNKNOWN), key=lambda word: (-counts[word], word))
    return [UNKNOWN, *words[: size - 1]]
