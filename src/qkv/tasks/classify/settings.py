"""The settings of `qkv train classify`, and the tables that `qkv train tag` shares."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from qkv.data.choices import LABELED_HELD_OUT
from qkv.settings import Option
from qkv.tasks.settings import (
    ATTENTION,
    LEARNING_RATE,
    AnswersEvaluation,
    DeviceSettings,
    MechanismSettings,
    Pairs,
    ShardAnswers,
    TaskSettings,
    TokenizerSettings,
)
from qkv.training_settings import Settings as Training


@dataclass(frozen=True, kw_only=True)
class ClassifyData:
    """Labeled texts."""

    data: Annotated[Pairs | None, Option("label<TAB>text on each line (.gz too)")] = None


@dataclass(frozen=True, kw_only=True)
class ClassifyEvaluation(AnswersEvaluation, ClassifyData):
    """Score labels with the code of training: accuracy and F1.

    Example: qkv evaluate runs/films --data test.tsv
    """


@dataclass(frozen=True, kw_only=True)
class ClassifyAnswers(ShardAnswers, DeviceSettings):
    """Label standard input, one text per line. Writes the label and its probability, separated by a tab.

    Example: echo "a stirring , funny film" | qkv classify runs/films --show
    """

    probabilities: Annotated[bool, Option("Also write the probabilities of all labels")] = False


@dataclass(frozen=True, kw_only=True)
class ClassifyFiles(ClassifyData):
    """Labeled texts to train on and to validate on."""

    valid_data: Annotated[Pairs | None, Option(f"The same for validation; {LABELED_HELD_OUT}")] = None
    longest: Annotated[int, Option("Maximum length of a text", "tokens", least=1)] = 512


@dataclass(frozen=True, kw_only=True)
class LabelModel(MechanismSettings):
    """The model of texts or words with labels; None where it has a default."""

    model: Annotated[
        Literal["gru", "lstm", "rnn", "transformer", "none"],
        Option("Encoder; none attends to the words themselves"),
    ] = "gru"
    layers: Annotated[int | None, Option("Layers of the encoder", or_else=1)] = None
    width: Annotated[int | None, Option("Width of the model", or_else=256)] = None
    feed_forward: Annotated[int | None, Option("Hidden width of a Transformer's feed-forward layers", or_else=512)] = (
        None
    )
    residual: Annotated[bool, Option("Add the embeddings to the states of a recurrent encoder")] = False
    positions: Annotated[
        Literal["sinusoidal", "rotary", "alibi", "relative", "none"] | None,
        Option("Positions of a Transformer", or_else="sinusoidal"),
    ] = None
    dropout: Annotated[float | None, Option("Dropout in training", or_else=0.5)] = None
    word_dropout: Annotated[float | None, Option("Fraction of tokens replaced by unknown in training", or_else=0.1)] = (
        None
    )
    heads: Annotated[int | None, Option("Heads of a Transformer's self-attentions", topic=ATTENTION, or_else=4)] = None


@dataclass(frozen=True, kw_only=True)
class ClassifyModel(LabelModel):
    """The model of texts with labels."""

    pool: Annotated[Literal["attention", "mean"] | None, Option("How words become one vector", or_else="attention")] = (
        None
    )
    wide: Annotated[
        int | None,
        Option(
            "Buckets of a linear model of words and n-grams beside the encoder; 131072 suit a few thousand texts",
            or_else="no such model",
        ),
    ] = None


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
    {"data": ClassifyFiles, "tokenizer": TokenizerSettings, "model": ClassifyModel, "training": Training},
    # Words determine the label of a text.
    {"tokenizer": {"tokenizer": "word", "vocabulary": 30_000}, "training": LOOP},
    evaluation=ClassifyEvaluation,
    answers=ClassifyAnswers,
)
