"""A task that the package does not have: lines that begin with their label. It is added by one registration."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor

from qkv.data.batches import collate_sources
from qkv.data.tokenizer import Tokenizer
from qkv.errors import ConfigError, setting
from qkv.metrics.figure import Figure
from qkv.models.configs.reader import ClassifierConfig
from qkv.models.reader import TextClassifier
from qkv.settings import Option
from qkv.tasks.answering import Answers, Lines, answered
from qkv.tasks.catalog import register
from qkv.tasks.drawing import Drawing
from qkv.tasks.load import load
from qkv.tasks.recipe import Recipe
from qkv.tasks.runs import Trained, rebuild
from qkv.tasks.settings import AnswersEvaluation, LineAnswers, TaskSettings, TokenizerSettings
from qkv.tasks.streams import format_lines
from qkv.tasks.task import Scored
from qkv.tasks.text_attention import read_scene
from qkv.training_settings import Settings as Training
from qkv.view.scene import Scene

Item = tuple[list[int], int]  # tokens, label


@dataclass(frozen=True, kw_only=True)
class Files:
    lines: Annotated[Path | None, Option("Lines that begin with their label")] = None


@dataclass(frozen=True, kw_only=True)
class Model:
    width: Annotated[int, Option("Width of the states", least=4)] = 8


@dataclass(frozen=True, kw_only=True)
class Evaluation(Files, AnswersEvaluation):
    """Score a sorter. Example: qkv evaluate runs/sort --lines test.txt"""


@dataclass(frozen=True, kw_only=True)
class SortAnswers(LineAnswers):
    """Sort standard input. Example: echo "a fine film" | qkv sort runs/sort"""


SORT = TaskSettings(
    "sort",
    "Train a model that sorts lines. Example: qkv train sort --lines lines.txt --out run",
    {"data": Files, "tokenizer": TokenizerSettings, "model": Model, "training": Training},
    {"tokenizer": {"tokenizer": "word"}, "training": {"steps": 40, "warmup": 2, "learning_rate": 0.02}},
    evaluation=Evaluation,
    answers=SortAnswers,
)


def pairs_of(path: Path | None) -> list[tuple[str, str]]:
    if path is None:
        raise ConfigError(setting("lines"), "a file", "none", "Give the lines to learn from.")
    return [(first, rest) for first, _, rest in (line.partition(" ") for line in path.read_text().splitlines())]


def network(width: int, size: int, labels: int, unknown: int) -> TextClassifier:
    config = ClassifierConfig(
        size=size, labels=labels, model="transformer", width=width, heads=1, feed_forward=8, dropout=0.0
    )
    return TextClassifier(config, unknown)


@dataclass(frozen=True)
class SortTask(Recipe[Files, Model, TextClassifier]):
    settings = SORT
    unit = "lines"

    tokenizer: Tokenizer
    labels: list[str]
    items: list[Item]

    @classmethod
    def read(cls, settings: Any, tokenizer: Tokenizer | None) -> "SortTask":
        pairs = pairs_of(settings.data.lines)
        tokenizer = tokenizer or Tokenizer.learn([text for _, text in pairs], "word", 100)
        labels = sorted({label for label, _ in pairs})
        items = [(tokenizer.encode(text), labels.index(label)) for label, text in pairs]
        return cls(settings, tokenizer, labels, items)

    def build(self) -> TextClassifier:
        return network(self.chosen.model.width, self.tokenizer.size, len(self.labels), self.tokenizer.unk)

    def identity(self) -> dict[str, Any]:
        return {"labels": self.labels}

    def summary(self, model: TextClassifier) -> str:
        return f"{len(self.items)} lines"

    def batches(self, *, tokens: int, seed: int, epoch: int) -> list[list[int]]:
        order = torch.randperm(len(self.items), generator=torch.Generator().manual_seed(seed + epoch))
        return [part.tolist() for part in order.split(8)]

    def collate(self, indices: Sequence[int], device: torch.device) -> list[Item]:
        return [self.items[index] for index in indices]

    def objective(self, model: TextClassifier, batch: Sequence[Item]) -> tuple[Tensor, int]:
        sources, lengths = collate_sources([ids for ids, _ in batch], self.tokenizer.pad, torch.device("cpu"))
        labels = torch.tensor([label for _, label in batch])
        return torch.nn.functional.cross_entropy(model(sources, lengths), labels, reduction="sum"), len(batch)

    def validate(self, model: TextClassifier) -> list[Figure]:
        answers = Sorter(model, self.tokenizer, self.labels).best([ids for ids, _ in self.items])
        return [accuracy(answers, [label for _, label in self.items])]

    def lines(self, indices: Sequence[int]) -> list[int]:
        return [index + 1 for index in indices]


def accuracy(answers: Sequence[object], labels: Sequence[object]) -> Figure:
    right = sum(answer == label for answer, label in zip(answers, labels, strict=True))
    return Figure("accuracy", 100 * right / len(labels), "%")


class Sorter:
    """What answers."""

    def __init__(self, model: TextClassifier, tokenizer: Tokenizer, labels: Sequence[str]) -> None:
        self.model, self.tokenizer, self.labels = model, tokenizer, list(labels)

    @classmethod
    def of(cls, trained: Trained, device: str | torch.device = "cpu") -> "Sorter":
        config: Mapping[str, Any] = trained.contents.config
        tokenizer, labels = trained.tokenizer, config["labels"]
        sizes = (config["model"]["width"], tokenizer.size, len(labels), tokenizer.unk)
        return cls(rebuild(lambda: network(*sizes), trained, device), tokenizer, labels)

    @torch.no_grad()
    def best(self, texts: Sequence[list[int]]) -> list[int]:
        self.model.eval()
        sources, lengths = collate_sources(texts, self.tokenizer.pad, torch.device("cpu"))
        return list(map(int, self.model(sources, lengths).argmax(-1)))

    def sort(self, texts: Sequence[str]) -> list[str]:
        return [self.labels[number] for number in self.best([self.tokenizer.encode(text) for text in texts])]

    def score_files(self, files: Evaluation) -> Scored:
        pairs = pairs_of(files.lines)
        answers = self.sort([text for _, text in pairs])
        numbers = [
            [self.labels.index(label) for label in labels] for labels in (answers, [first for first, _ in pairs])
        ]
        return Scored([accuracy(*numbers)], answers)

    def scene(self, text: str, tokens: int | None = None) -> Scene:
        return read_scene(self, self.tokenizer.encode(text)[:tokens], text)

    def export_facts(self, to: str) -> dict[str, Any]:
        return {"labels": self.labels}


def open_answers(runs: Sequence[Path], settings: SortAnswers) -> Answers:
    sorter: Sorter = load(runs[0])

    def labels(parts: Iterable[Lines], file: Path | None = None) -> Iterator[str]:
        for _, answers in answered("sorting", parts, lambda lines, first: sorter.sort(lines), file):
            yield format_lines(answers)

    return Answers(labels, Drawing(settings.attention, terminal=settings.show))


def add() -> None:
    """Register the task."""
    register(SORT, lambda: SortTask, lambda: Sorter, lambda: open_answers)
