"""The settings of `qkv train regress`."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from qkv.data.choices import Decimal, Missing
from qkv.scores.catalog import KERNELS
from qkv.settings import Option
from qkv.tasks.settings import AnswersEvaluation, RunOptions, TaskSettings

if TYPE_CHECKING:
    Kernel = str
else:
    Kernel = Literal[KERNELS]
Rows = Path | str | Iterable[Sequence[float]]
"""A file, or rows of numbers that end with the target."""
Beyond = Literal["nearest", "mean", "nan"]
"""What to predict where every training point has weight 0."""
LEVEL = 0.95
"""The probability that an interval covers the smoothed curve, by default."""


@dataclass(frozen=True, kw_only=True)
class RegressData:
    """Columns of a table, see `qkv.data.table`."""

    data: Annotated[Rows | None, Option("A CSV file, or one with tabs or semicolons (.gz too)")] = None


@dataclass(frozen=True, kw_only=True)
class RegressEvaluation(AnswersEvaluation, RegressData):
    """Score predictions of a table with inputs and target: errors and R².

    Example: qkv evaluate runs/rent --data test.csv
    """


@dataclass(frozen=True, kw_only=True)
class RegressFiles(RegressData):
    """A table to fit, and its columns."""

    x: Annotated[Sequence[str], Option("Input columns: --x age,income or --x age --x income")] = ()
    y: Annotated[str | None, Option("The column to predict")] = None
    decimal: Annotated[Decimal, Option("What separates decimals")] = "point"
    missing: Annotated[Missing, Option("What happens to rows that lack a number")] = "refuse"


@dataclass(frozen=True, kw_only=True)
class RegressModel:
    """A kernel and its bandwidths."""

    kernel: Annotated[Kernel, Option("The kernel")] = "gaussian"
    bandwidth: Annotated[
        float | Sequence[float] | Literal["cross-validation", "learned"],
        Option("A number, one per column (0.5,20), or found on a grid or by the gradient of leave-one-out errors"),
    ] = "cross-validation"
    beyond: Annotated[Beyond, Option("The prediction where no point has weight")] = "nearest"


@dataclass(frozen=True, kw_only=True)
class RegressOptions(RunOptions):
    """What the command has besides."""

    picture: Annotated[
        Path | None, Option(f"Also draw points, curve and {100 * LEVEL:g} % interval: FILE.svg or FILE.png.")
    ] = None


REGRESS = TaskSettings(
    "regress",
    """Fit a Nadaraya-Watson regression: predictions are attention over the rows of a table.

    Example: qkv train regress --data rents.csv --x area --y rent --out runs/rent
    """,
    {"data": RegressFiles, "model": RegressModel},
    {},
    options=RegressOptions,
    evaluation=RegressEvaluation,
)
