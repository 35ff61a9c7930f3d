"""The settings of `qkv train classify`, and the tables that `qkv train tag` shares."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from qkv.data.choices import LABELED_HELD_OUT
from qkv.data.columns import Column, TextColumns
from qkv.models.configs.reader import ClassifierConfig
from qkv.settings import Option, options_of
from qkv.tasks.settings import (
    LEARNING_RATE,
    DeviceSettings,
    LabelsEvaluation,
    Pairs,
    RequestSettings,
    SeparatorSettings,
    ShardAnswers,
    SkipSettings,
    TaskSettings,
    TokenizerSettings,
    column,
    longest_option,
)
from qkv.training_settings import Settings as Training


@dataclass(frozen=True, kw_only=True)
class ClassifyData(SeparatorSettings):
    """Labeled texts."""

    data: Annotated[Pairs | None, Option("label<TAB>text on each line, or a table, .gz too", needed=True)] = None
    label_col: Annotated[
        Column | None,
        column("Column of the label: its position, or its name in the first line", 1),
    ] = None
    text_col: Annotated[Column | None, column("Column of the text, likewise", "2, or the other one")] = None

    @property
    def columns(self) -> TextColumns:
        """The columns."""
        return TextColumns(("label", "text"), (self.label_col, self.text_col), self.sep)


@dataclass(frozen=True, kw_only=True)
class ClassifyEvaluation(LabelsEvaluation, ClassifyData):
    """Score labels with the code of training: accuracy and F1.

    Example: qkv evaluate runs/films --data test.tsv
    """

    as_trained = frozenset(options_of(ClassifyData)) - {"data"}


@dataclass(frozen=True, kw_only=True)
class ClassifyAnswers(ShardAnswers, DeviceSettings):
    """Label standard input, one text per line. Writes the label and its probability, separated by a tab.

    Example: echo "a stirring , funny film" | qkv classify runs/films --show
    """

    probabilities: Annotated[bool, Option("Also write the probabilities of all labels")] = False


@dataclass(frozen=True, kw_only=True)
class ClassifyFiles(SkipSettings, ClassifyData):
    """Labeled texts to train on and to validate on."""

    valid_data: Annotated[Pairs | None, Option(f"The same for validation; {LABELED_HELD_OUT}")] = None
    longest: Annotated[int, longest_option("a text", 512)] = 512


# For a few thousand sentences on a laptop; chosen on the validation part of SST-2.
LOOP: Mapping[str, object] = {
    "steps": 2000,
    "batch_tokens": 2048,
    "learning_rate": LEARNING_RATE,
    "schedule": "cosine",
    "warmup": 100,
    "weight_decay": 0.1,
    "validate_every": 100,
    "log_every": 25,
    "patience": 10,
}


CLASSIFY = TaskSettings(
    "classify",
    """Train a model that labels texts and shows which words decided.

    --score and the other flags of attention set the pooling, and the self-attentions of --model transformer.

    Example: qkv train classify --data films.tsv --out runs/films
    """,
    {"data": ClassifyFiles, "tokenizer": TokenizerSettings, "model": ClassifierConfig, "training": Training},
    # Words determine the label of a text.
    {"tokenizer": {"tokenizer": "word", "vocabulary": 30_000}, "training": LOOP},
    evaluation=ClassifyEvaluation,
    answers=ClassifyAnswers,
    requests=RequestSettings,
)
