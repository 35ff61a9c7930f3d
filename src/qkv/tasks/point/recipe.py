"""`qkv train point`: from lines of elements and positions to a trained run folder."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Real
from typing import Any, final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.data.batches import NO_LABEL, Example, device_of, inference_batches, token_batches
from qkv.data.choices import Elements
from qkv.data.corpus import Pair, fingerprint
from qkv.data.pointing import Pointed, coordinates_message, parse_pairs
from qkv.data.report import expect_some_left, refuse
from qkv.data.tokenizer import Tokenizer
from qkv.errors import DataError, Place, brief, quantity, setting
from qkv.metrics.figure import Figure
from qkv.models.configs.pointer import PointerConfig
from qkv.models.pointer import PointerNetwork
from qkv.tasks.folds import Examples
from qkv.tasks.notes import reporting, state
from qkv.tasks.origin import Origin
from qkv.tasks.pairs import pair_examples, read_training_pairs
from qkv.tasks.point.pointing import (
    BATCH_ELEMENTS,
    UNKNOWN,
    ElementVocabulary,
    PointBatch,
    judge_positions,
    point,
    stack,
)
from qkv.tasks.point.settings import POINT, PointFiles
from qkv.tasks.python_values import pair_line, text_line
from qkv.tasks.recipe import Recipe, RecipeSettings

PointerSettings = RecipeSettings[PointFiles, PointerConfig]


@final
@dataclass(frozen=True)
class PointTask(Recipe[PointFiles, PointerConfig, PointerNetwork]):
    """Training a pointer network on lines with target positions.

    Args:
        elements: what elements are.
        vocabulary: words to ids; None for numbers.
        features: numbers per element, or number of words.
        train, valid: the lines.
        longest: most positions of a training target.
        fingerprints: sha256 of the lines of each part.
    """

    settings = POINT
    unit = "positions"

    elements: Elements
    vocabulary: ElementVocabulary | None
    features: int
    train: list[Pointed]
    valid: list[Pointed]
    longest: int
    fingerprints: dict[str, str]

    @classmethod
    def read(cls, settings: PointerSettings, tokenizer: Tokenizer | None) -> "PointTask":
        """Read the training and validation lines."""
        data, once = settings.data, settings.model.once
        with reporting(data.skip):
            pairs = read_training_pairs(data, settings.training.seed, names=("lines", "inputs"), side=_line, pair=_pair)
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
        return cls(settings, kind, vocabulary, features, train, validation, longest, fingerprints)

    @staticmethod
    def examples(files: PointFiles) -> Examples:
        """Return the lines to divide."""
        return pair_examples(files, _line, _pair)

    def build(self) -> PointerNetwork:
        """Create a model with new weights, which standardizes its elements by those of the training lines."""
        model = PointerNetwork(replace(self.chosen.model, elements=self.elements, features=self.features))
        if self.elements == "numbers":
            numbers = np.concatenate([item.elements for item in self.train])
            model.encoder.standardize(torch.from_numpy(numbers.mean(0)), torch.from_numpy(numbers.std(0)))
        return model

    def adapted(self, origin: Origin | None) -> "PointTask":
        """Return the lines with the words of the run to start from, if it has any."""
        words = None if origin is None else origin.trained.contents.config.get("words")
        if self.vocabulary is None or not isinstance(words, list):
            return self
        return replace(self, vocabulary=ElementVocabulary([str(word) for word in words]), features=len(words))

    def identity(self) -> dict[str, Any]:
        """Return what an answer needs, and the lines by their digests."""
        return {
            "elements": self.elements,
            "features": self.features,
            "words": None if self.vocabulary is None else list(self.vocabulary.words),
            "order": self.chosen.data.order,
            "longest": self.longest,
            "text": self.fingerprints,
        }

    def summary(self, model: PointerNetwork) -> str:
        """Count the lines, and say what elements are."""
        elements = "numbers" if self.features == 1 else f"vectors of {self.features}"
        if self.vocabulary is not None:
            unknown = sum(self.vocabulary.ids(item.elements).count(0) for item in self.train)
            detail = f" ({unknown:,} of the training elements unknown)" if unknown else ""
            elements = f"{quantity(self.features, 'word')}{detail}"
        train, valid = quantity(len(self.train), "training line"), quantity(len(self.valid), "validation line")
        return f"{train}, {valid}; {elements}"

    @cached_property
    def _sizes(self) -> list[Example]:
        zeros = (0,) * max(len(item.elements) for item in self.train)  # batches only look at the lengths
        return [Example(zeros[: len(item.elements)], item.target, item.line) for item in self.train]

    def batches(self, *, tokens: int, seed: int, epoch: int) -> list[list[int]]:
        """Batch lines of about equal length."""
        return token_batches(self._sizes, tokens, seed, epoch, self.chosen.training.batch_size)

    def collate(self, indices: Sequence[int], device: torch.device) -> PointBatch:
        """Stack the numbered lines into a batch."""
        return stack([self.train[index] for index in indices], self.vocabulary, device)

    def objective(self, model: PointerNetwork, batch: PointBatch) -> tuple[Tensor, int]:
        """Compute the cross entropy of each next position and of the end."""
        return _loss(model, batch, self.chosen.training.label_smoothing)

    def lines(self, indices: Sequence[int]) -> list[int]:
        """Return the line numbers in the user's file."""
        return [self.train[index].line for index in indices]

    def validate(self, model: PointerNetwork) -> list[Figure]:
        """Compute the share of right positions and of right answers, and the loss, on the validation lines."""
        answers = point(model, self.valid, self.vocabulary, self.longest)
        sides = [answer.ids for answer in answers], [item.target for item in self.valid]
        total, count = 0.0, 0
        for indices in inference_batches([len(item.elements) for item in self.valid], BATCH_ELEMENTS):
            batch = stack([self.valid[index] for index in indices], self.vocabulary, device_of(model))
            loss, positions = _loss(model, batch, 0.0)
            total, count = total + float(loss), count + positions
        loss_figure = Figure("loss", total / count, "nats per position", higher_is_better=False)
        return [*judge_positions(*sides, self.chosen.data.order), loss_figure]


def _loss(model: PointerNetwork, batch: PointBatch, smoothing: float) -> tuple[Tensor, int]:
    chances = model(batch.elements, batch.lengths, batch.previous).float()
    loss = F.nll_loss(chances.flatten(0, 1), batch.target.flatten(), ignore_index=NO_LABEL, reduction="sum")
    if smoothing:
        # What cannot be pointed at has probability 0 and takes no part in the smoothing.
        possible = chances > -torch.inf
        spread = -chances.masked_fill(~possible, 0).sum(-1) / possible.sum(-1).clamp(min=1)
        real = torch.nonzero_static(batch.target.flatten() != NO_LABEL, size=batch.known)[:, 0]
        loss = (1 - smoothing) * loss + smoothing * spread.flatten()[real].sum()
    return loss, batch.known


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


RECIPE = PointTask
"""Training a pointer network."""
