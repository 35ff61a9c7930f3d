"""`qkv train classify`: from settings to a trained run folder; `qkv train tag` shares all but the reader."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self, final

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.data.batches import NO_LABEL, Example, token_batches
from qkv.data.choices import LABELED_SHARE
from qkv.data.columns import TextColumns
from qkv.data.corpus import fingerprint
from qkv.data.holdout import seen_in_training, split
from qkv.data.labeled import Unit, labels_of
from qkv.data.report import expect_some_left, refuse
from qkv.data.tagged import Tagged
from qkv.data.tokenizer import Tokenizer
from qkv.errors import CheckpointError, DataError, Place, quantity, setting
from qkv.hub.published import PublishedConfig
from qkv.metrics.figure import Figure
from qkv.models.configs.reader import ClassifierConfig
from qkv.tasks.classify.data import EncodedText, as_lines, numbered, read_texts
from qkv.tasks.classify.labeling import LabelBatch, ReaderModel, judge_labels, label_scores, predict, stack
from qkv.tasks.classify.model import Config, build_model
from qkv.tasks.classify.settings import CLASSIFY
from qkv.tasks.folds import Examples
from qkv.tasks.length import expect_readable, length_defaults
from qkv.tasks.notes import reporting, state
from qkv.tasks.origin import Origin
from qkv.tasks.recipe import Recipe, RecipeSettings
from qkv.tasks.streams import format_lines
from qkv.tasks.tokenizing import Unknown, exceeds, learn_tokenizer, sample_of

LabelFiles = Any
"""The files of a task that labels: a table with `data`, `valid_data`, `longest`, `skip` and `columns`."""
LabelSettings = RecipeSettings[LabelFiles, Config]


@dataclass(frozen=True)
class LabelTask(Recipe[LabelFiles, Config, ReaderModel]):
    """Training a model that labels texts or their words.

    Attributes:
        texts: what texts are called.
        read_texts: reads labeled texts from a file or values, by the name of the argument and the columns.

    Args:
        tokenizer: learned from the training texts.
        labels: the names of the labels, sorted.
        train, valid: examples.
        fingerprints: sha256 of the texts of each part.
    """

    published = PublishedConfig
    unit = "labels"
    texts: ClassVar[Unit]
    read_texts: ClassVar["staticmethod[[Any, str, TextColumns], list[Tagged]]"]

    tokenizer: Tokenizer
    labels: tuple[str, ...]
    train: list[EncodedText]
    valid: list[EncodedText]
    fingerprints: dict[str, str]

    @classmethod
    def read(cls, settings: LabelSettings, tokenizer: Tokenizer | None) -> Self:
        """Read and tokenize the training and validation texts."""
        files, wide = settings.data, settings.model.wide if isinstance(settings.model, ClassifierConfig) else None
        with reporting(files.skip):
            train, valid, labels, names = cls._gather(settings)
            if tokenizer is None:
                tokenizer = learn_tokenizer(settings.tokenizer, (word for text in train for word in text.words))
            train, encoded = _encoded(train, tokenizer, labels, files.longest, names[0], wide)
            valid, encoded_valid = _encoded(valid, tokenizer, labels, files.longest, names[1], wide)
            fingerprints = {"train": _digest(train), "valid": _digest(valid)}
            return cls(settings, tokenizer, labels, encoded, encoded_valid, fingerprints)

    @classmethod
    def inspect(cls, settings: LabelSettings) -> None:
        """Read the texts for a report, and tokenize only those that can be too long."""
        train, valid, labels, names = cls._gather(settings)
        longest, words = settings.data.longest, settings.tokenizer
        parts = [[text for text in part if exceeds([" ".join(text.words)], longest, words)] for part in (train, valid)]
        if any(parts):
            tokenizer = learn_tokenizer(words, (word for text in sample_of(train) for word in text.words))
            for part, name in zip(parts, names, strict=True):
                _encoded(part, tokenizer, labels, longest, name, None)

    @classmethod
    def _gather(cls, settings: LabelSettings) -> tuple[list[Tagged], list[Tagged], tuple[str, ...], tuple[str, str]]:
        """Read texts to train on and to validate on, with their labels and the names of the files."""
        files, unit = settings.data, cls.texts
        train = cls.read_texts(files.data, "data", files.columns)
        name = valid_name = _name(files.data, "data")
        if files.valid_data is not None:
            valid = cls.read_texts(files.valid_data, "valid_data", files.columns)
            valid_name = _name(files.valid_data, "valid_data")
            words = [text.words for text in valid]
            message = seen_in_training((text.words for text in train), words, f"validation {unit}")
        else:
            train, valid, message = split(
                train,
                settings.training.seed,
                parts=lambda text: (text.words, text.tags),
                names=(unit, unit),
                share=LABELED_SHARE,
                labels=lambda text: text.tags,
            )
        if message:
            state(message)
        labels = labels_of((label for text in train for label in text.tags), name, unit)
        return train, [text for text in valid if _is_known(text, labels, valid_name)], labels, (name, valid_name)

    @classmethod
    def examples(cls, files: LabelFiles) -> Examples:
        """Return the texts to divide."""
        with reporting(files.skip):
            texts = cls.read_texts(files.data, "data", files.columns)
        whole = cls.texts == "texts"

        def write(indices: Sequence[int]) -> str:
            chosen = (texts[index] for index in indices)
            return format_lines(line for text in chosen for line in as_lines(text, text.tags, cls.texts))

        kinds = [text.tags[0] if whole else "" for text in texts]
        plain = dict.fromkeys((*(f"{name}_col" for name in files.columns.names), "sep"))
        return Examples([text.words for text in texts], kinds, write, ".tsv" if whole else ".conll", plain)

    defaults_of = staticmethod(length_defaults)
    check = staticmethod(expect_readable)

    def build(self) -> ReaderModel:
        """Create the model."""
        return build_model(self.chosen.model, self.tokenizer.size, self.labels, self.tokenizer.unk)

    def adapted(self, origin: Origin | None) -> Self:
        """Take the labels in the order of the run to start from.

        One with other labels is refused, as its outputs would mean something else; a published model gets a new output
        layer.
        """
        if origin is None or not origin.weights:
            return self
        theirs = origin.trained.contents.config.get("labels")
        if isinstance(theirs, list) and sorted(map(str, theirs)) == sorted(self.labels):
            labels, numbers = tuple(map(str, theirs)), {label: number for number, label in enumerate(theirs)}
            train, valid = (
                [one._replace(labels=tuple(numbers[self.labels[number]] for number in one.labels)) for one in texts]
                for texts in (self.train, self.valid)
            )
            return replace(self, labels=labels, train=train, valid=valid)
        if not origin.trained.is_published:
            names = ", ".join(map(str, theirs)) if isinstance(theirs, list) else "none"
            hint = "Train on the same labels, or from scratch without " + setting("from") + "."
            expected = f"a run with the labels {', '.join(self.labels)}"
            raise CheckpointError(setting("from"), expected, names, hint)
        return self

    def identity(self) -> dict[str, Any]:
        """Return what an answer needs, and the texts by their digests."""
        return {"labels": list(self.labels), "longest": self.chosen.data.longest, "text": self.fingerprints}

    def summary(self, model: ReaderModel) -> str:
        """Count the texts and labels."""
        train, valid = quantity(len(self.train), "training text"), quantity(len(self.valid), "validation text")
        return f"{train}, {valid}; {quantity(len(self.labels), 'label')}"

    def count_unknown(self) -> list[Unknown]:
        """Return the number of unknown tokens of the training and of the validation texts."""
        parts = {"training texts": self.train, "validation texts": self.valid}
        alone = all(text.features is None for text in self.train)
        return [
            Unknown.of(part, (text.ids for text in texts), self.tokenizer.unk, alone=alone)
            for part, texts in parts.items()
        ]

    def batches(self, *, tokens: int, seed: int, epoch: int) -> list[list[int]]:
        """Batch texts of about equal length."""
        examples = [Example(item.ids, (), item.line) for item in self.train]
        return token_batches(examples, tokens, seed, epoch, self.chosen.training.batch_size)

    def collate(self, indices: Sequence[int], device: torch.device) -> LabelBatch:
        """Stack texts."""
        return stack([self.train[index] for index in indices], self.tokenizer.pad, device)

    def objective(self, model: ReaderModel, batch: LabelBatch) -> tuple[Tensor, int]:
        """Compute the smoothed cross entropy of each label."""
        loss = F.cross_entropy(
            label_scores(model, batch).float().flatten(0, -2),
            batch.labels.flatten(),
            ignore_index=NO_LABEL,
            reduction="sum",
            label_smoothing=self.chosen.training.label_smoothing,
        )
        return loss, batch.known

    def lines(self, indices: Sequence[int]) -> list[int]:
        """Return the line numbers of texts in the user's file."""
        return [self.train[index].line for index in indices]

    def validate(self, model: ReaderModel) -> list[Figure]:
        """Compute accuracy, F1 and loss on the validation texts."""
        results = predict(model, self.valid, self.tokenizer.pad)
        predicted = [[self.labels[int(number)] for number in scores.argmax(-1)] for scores in results]
        truth = [[self.labels[number] for number in item.labels] for item in self.valid]
        right = torch.cat([torch.tensor(item.labels, dtype=torch.int64, device="cpu") for item in self.valid])
        loss = float(F.cross_entropy(torch.cat(results).double(), right))
        return [*judge_labels(predicted, truth), Figure("loss", loss, "nats per label", higher_is_better=False)]


def _encoded(
    texts: Iterable[Tagged],
    tokenizer: Tokenizer,
    labels: Sequence[str],
    longest: int,
    name: str,
    wide: int | None,
) -> tuple[list[Tagged], list[EncodedText]]:
    """Tokenize texts, and return those that are short enough."""
    kept, encoded = [], []
    for text in texts:
        try:
            encoded.append(numbered(text, tokenizer, labels, longest, name, wide))
            kept.append(text)
        except DataError as error:
            refuse("long", error)
    if not encoded:
        expect_some_left()
    return kept, encoded


def _is_known(text: Tagged, labels: Sequence[str], name: str) -> bool:
    """Return whether training saw all labels of a text; refuse one with others."""
    for label in text.tags:
        if label not in labels:
            hint = "Training never saw it: add examples of it to " + setting("data") + ", or correct the label."
            expected = f"one of {_label_list(labels)}"
            refuse("invalid", DataError(Place(name, text.line), expected, f'"{label}"', hint))
            return False
    return True


def _name(data: object, name: str) -> str:
    """Return what messages call data: the file, or the argument whose values they are."""
    return str(data) if isinstance(data, str | Path) else name


def _digest(texts: Sequence[Tagged]) -> str:
    return fingerprint("\t".join((*text.words, "", *text.tags)) for text in texts)


def _label_list(labels: Sequence[str], limit: int = 12) -> str:
    names = ", ".join(f'"{label}"' for label in labels[:limit])
    return names if len(labels) <= limit else f"{names} and {len(labels) - limit} more"


@final
class ClassifyTask(LabelTask):
    """Training a classifier of texts."""

    settings, texts = CLASSIFY, "texts"
    read_texts = staticmethod(read_texts)


RECIPE = ClassifyTask
"""Training a classifier of texts."""
