"""The settings of `qkv train point`."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from qkv.data.choices import Elements
from qkv.models.configs.pointer import PointerConfig
from qkv.settings import Option, options_of
from qkv.tasks.settings import (
    DATA,
    AnswersEvaluation,
    DeviceSettings,
    LineAnswers,
    LoopOptions,
    RequestSettings,
    SkipSettings,
    TaskSettings,
    TextPairColumns,
)
from qkv.training_settings import Settings as Training

Listed = str | Sequence[str] | Sequence[float] | Sequence[Sequence[float]]
"""A text with spaces, or a list of words, numbers or vectors."""
Lists = Path | str | Iterable[Listed]
"""A file, or lists of elements or positions."""
ListPairs = Path | str | Iterable[tuple[Listed, str | Sequence[int]]]
"""A file, or pairs of elements and positions."""
AnswerOrder = Literal["sequence", "cycle", "set"]


@dataclass(frozen=True, kw_only=True)
class PointData(TextPairColumns):
    """Elements and positions, see `qkv.data.pointing`."""

    source: Annotated[Lists | None, Option("Elements separated by spaces, one line per example (.gz too)")] = None
    target: Annotated[Lists | None, Option("Positions of elements, from 1, line by line")] = None
    data: Annotated[ListPairs | None, Option("Or one file with elements<TAB>positions on each line, or a table")] = None


Beam = Annotated[int, Option("Beam width; 1 is greedy", least=1)]


@dataclass(frozen=True, kw_only=True)
class PointEvaluation(AnswersEvaluation, PointData):
    """Score answers with the code of training: right positions and exact answers.

    Example: qkv evaluate runs/sort --data test.tsv
    """

    as_trained = frozenset(options_of(TextPairColumns))

    beam: Beam = 1


@dataclass(frozen=True, kw_only=True)
class PointRequest(RequestSettings):
    """How the elements of a request are pointed at."""

    beam: Beam = 1


@dataclass(frozen=True, kw_only=True)
class PointAnswers(PointRequest, LineAnswers, DeviceSettings):
    """Point at elements of standard input, one line per example. Writes positions, counted from 1.

    Example: echo "30 10 20" | qkv point runs/sort --show
    """

    write: Annotated[Literal["positions", "elements"], Option("What to write")] = "positions"


@dataclass(frozen=True, kw_only=True)
class PointFiles(SkipSettings, PointData):
    """Lines to train on and to validate on."""

    valid_source: Annotated[Lists | None, Option("Elements to validate on; held out if not given")] = None
    valid_target: Annotated[Lists | None, Option("Their positions")] = None
    valid_data: Annotated[ListPairs | None, Option("Or one file with elements<TAB>positions")] = None
    elements: Annotated[
        Elements | None,
        Option("What elements are, also vectors as 0.3,0.7", or_else="as in the first line"),
    ] = None
    order: Annotated[
        AnswerOrder, Option("What makes an answer exact: the same sequence, cycle (corners) or set", topic=DATA)
    ] = "sequence"
    vocabulary: Annotated[int, Option("Maximum number of words", "words", least=2)] = 30_000


POINT = TaskSettings(
    "point",
    """Train a pointer network: sorting, convex hulls, spans, and whatever else selects elements of its input.

    Example: qkv train point --data sort.tsv --out runs/sort
    """,
    {"data": PointFiles, "model": PointerConfig, "training": Training},
    {
        "training": {
            "steps": 5000,
            "batch_tokens": 2048,
            "learning_rate": 2e-3,
            "schedule": "cosine",
            "warmup": 200,
            "weight_decay": 0.01,
            "label_smoothing": 0.0,
            "validate_every": 500,
            "log_every": 100,
        }
    },
    options=LoopOptions,
    evaluation=PointEvaluation,
    answers=PointAnswers,
    requests=PointRequest,
)
