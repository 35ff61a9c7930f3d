"""What the commands and `qkv.load` need of every task: a trained model that answers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, runtime_checkable

import torch

from qkv.data.tokenizer import Tokenizer
from qkv.errors import ConfigError, setting
from qkv.metrics.figure import Figure
from qkv.tasks.runs import Trained

if TYPE_CHECKING:
    from qkv.metrics.labels import LabelReport
    from qkv.tasks.answering import Answers
    from qkv.view.live import LiveModel
    from qkv.view.scene import Scene


class Scored(NamedTuple):
    """How a model did on files.

    Attributes:
        figures: the metrics, the most important one first.
        lines: the model's answers, as they are written to a file.
        credits: how good each answer is, more for better ones, by the figures that follow from a mean over answers; the
            first stands for all others. None for a task without answers.
        report: returns how well each label, or type of spans, is found; None for a task without labels.
    """

    figures: list[Figure]
    lines: Iterable[str]
    credits: Mapping[str, Callable[[], Sequence[float]]] = MappingProxyType({})
    report: "Callable[[], LabelReport | None]" = lambda: None


class Answerer(Protocol):
    """A trained model with all that it needs to answer. Each task has one such class: `qkv.tasks.catalog`."""

    @property
    def model(self) -> torch.nn.Module:
        """The network."""

    @classmethod
    def of(cls, trained: Trained, device: str | torch.device = "cpu") -> Self:
        """Build the model of a checkpoint of the task; `qkv.load` refuses others.

        Raises:
            CheckpointError: the checkpoint is invalid.
        """

    def score_files(self, files: Any) -> Scored:
        """Score the model on files, with the code of its training.

        Args:
            files: what `qkv evaluate` is given for this task: the table `evaluation` of its settings.

        Raises:
            DataError: a file is invalid; the message gives file and line.
            ConfigError: a setting is invalid, or a file is missing.
        """

    def scene(self, text: str, tokens: int | None = None) -> "Scene":
        """Run the model on a text, and return what every layer attends to, for the viewer.

        Args:
            text: one text.
            tokens: number of tokens to read; None for all.

        Raises:
            DataError: the text has no tokens.
            ConfigError: the model has no attention.
        """


class OpenAnswers(Protocol):
    """What the command of a task's name does: `open_answers` in the folder of each task."""

    def __call__(self, runs: Sequence[Path], settings: Any) -> "Answers":
        """Load a model, for answers as the settings of the command say.

        Args:
            runs: the run folders that the command is given: one, unless `AnswerSettings.several`.
            settings: the table `answers` of the task's settings.

        Raises:
            CheckpointError: a checkpoint is invalid, or of another task.
            ConfigError: a setting does not fit the model.
        """


@runtime_checkable
class TextAnswerer(Answerer, Protocol):
    """An answerer that reads text, and can be exported: other programs have no input for anything else."""

    @property
    def tokenizer(self) -> Tokenizer:
        """Text to tokens and back."""

    def export_facts(self, to: str) -> Mapping[str, Any]:
        """Return what another program must know of the model besides its weights and tokenizer.

        Args:
            to: one of `qkv.tasks.exporting.TARGETS`.

        Returns:
            Names and values for `about.json`: `task`, for which `hub/answers` has a script; `longest`, the tokens of
            the longest text that it reads; `labels`, if it has some; of a translator `longest_answer` and
            `longest_targets`, the tokens that an answer can have, and `alignment`, the attention that aligns words.

        Raises:
            UnsupportedError: no program of that kind has such models.
        """


@runtime_checkable
class ReadsColumns(Protocol):
    """A model that can be trained on columns of a table, and then read other ones."""

    def with_columns(self, source_col: int | None = None, features_col: int | None = None) -> TextAnswerer:
        """Return the model for lines of other columns, numbered from 1; None for those of its training.

        Raises:
            ConfigError: it was not trained on columns, or a column is out of range.
        """


@runtime_checkable
class ComputesInPage(TextAnswerer, Protocol):
    """A model that a page can compute in a browser, see `qkv.tasks.live`."""

    def in_page(self) -> "tuple[Self, LiveModel]":
        """Return the same model with the weights of its page, and what the page needs of it.

        Raises:
            UnsupportedError: it has a part that a page cannot compute.
        """

    def page_answers(self, texts: Sequence[str]) -> list[str]:
        """Return the answers to texts that are compared before and after rounding the weights."""


def reads_no_columns(name: str) -> ConfigError:
    """Return the error about a setting that names a column of plain text.

    Example:
        >>> reads_no_columns("source_col").got
        'one of plain text'
    """
    hint = "Omit it: each line is a source."
    return ConfigError(setting(name), "a model that was trained on columns", "one of plain text", hint)
