"""The settings of `qkv train tag`."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from qkv.data.choices import LABELED_HELD_OUT
from qkv.data.columns import Column, TextColumns
from qkv.models.configs.reader import ReaderConfig
from qkv.settings import Option, options_of
from qkv.tasks.classify.settings import LOOP
from qkv.tasks.settings import (
    DeviceSettings,
    LabelsEvaluation,
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

Sentences = Path | str | Iterable[Iterable[tuple[str, str]]]
"""A file with words in columns, or sentences of pairs of a word and its tag."""


@dataclass(frozen=True, kw_only=True)
class TagData(SeparatorSettings):
    """Sentences whose words have tags."""

    data: Annotated[Sentences | None, Option("Words in columns, word first, tag last; .gz too", needed=True)] = None
    word_col: Annotated[
        Column | None,
        column("Column of the word: its position, or its name in the first line", "1, or as the format has it"),
    ] = None
    tag_col: Annotated[
        Column | None,
        column("Column of the tag, likewise", "the last, or as the format has it"),
    ] = None

    @property
    def columns(self) -> TextColumns:
        """The columns."""
        return TextColumns(("word", "tag"), (self.word_col, self.tag_col), self.sep)


@dataclass(frozen=True, kw_only=True)
class TagEvaluation(LabelsEvaluation, TagData):
    """Score tags with the code of training: accuracy and F1.

    Example: qkv evaluate runs/names --data test.conll
    """

    as_trained = frozenset(options_of(TagData)) - {"data"}


@dataclass(frozen=True, kw_only=True)
class TagAnswers(ShardAnswers, DeviceSettings):
    """Tag standard input, one sentence per line, words separated by spaces. Writes word and tag in columns.

    Example: echo "Ada wrote the first program" | qkv tag runs/names
    """


@dataclass(frozen=True, kw_only=True)
class TagFiles(SkipSettings, TagData):
    """Labeled sentences to train on and to validate on."""

    valid_data: Annotated[Sentences | None, Option(f"The same for validation; {LABELED_HELD_OUT}")] = None
    longest: Annotated[int, longest_option("a sentence", 512)] = 512


TAG = TaskSettings(
    "tag",
    """Train a model that tags words.

    --score and the other flags of attention set the self-attentions of --model transformer.

    Example: qkv train tag --data train.conll --out runs/names
    """,
    {"data": TagFiles, "tokenizer": TokenizerSettings, "model": ReaderConfig, "training": Training},
    # A tag can depend on a word's ending.
    {"tokenizer": {"tokenizer": "bpe", "vocabulary": 4000}, "training": LOOP},
    evaluation=TagEvaluation,
    answers=TagAnswers,
    requests=RequestSettings,
)
