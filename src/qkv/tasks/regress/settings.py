"""The settings of `qkv train regress`."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from qkv.data.choices import Decimal, Missing
from qkv.errors import ConfigError, setting
from qkv.scores.catalog import KERNELS, SCORES
from qkv.settings import Option, check
from qkv.tasks.settings import AnswersEvaluation, LineAnswers, RequestSettings, RunOptions, SkipSettings, TaskSettings

if TYPE_CHECKING:
    Kernel = str
else:
    Kernel = Literal[KERNELS]
Rows = Path | str | Iterable[Sequence[float]]
"""A file, or rows of numbers that end with the target."""
Beyond = Literal["nearest", "mean", "nan"]
"""What to predict where every training point has weight 0."""
IntervalKind = Literal["normal", "bootstrap", "none"]
LEVEL = 0.95
"""The probability that an interval covers the smoothed curve, by default."""
CURVES = (".svg", ".png")
"""The suffixes of pictures of curves."""


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
class RegressRequest(RequestSettings):
    """How the rows of a request are predicted."""

    rows = True

    interval: Annotated[IntervalKind, Option("Confidence interval")] = "normal"
    level: Annotated[float, Option("Probability that the interval covers the smoothed curve")] = LEVEL
    seed: Annotated[int, Option("With --interval bootstrap: random seed")] = 0

    @property
    def draws(self) -> bool:
        """Whether the interval is drawn by chance."""
        return self.interval == "bootstrap"


@dataclass(frozen=True, kw_only=True)
class RegressAnswers(RegressRequest, LineAnswers):
    """Predict the target of the rows of a CSV table from standard input; writes CSV with the interval's ends.

    The first line names the columns, or all fields are numbers in the order of training. The attention that can be
    drawn is that of each prediction to the training points.

    Example: echo 75 | qkv regress runs/rent --show
    """

    curve: Annotated[
        int | None, Option("Instead of reading rows, predict this many points over the range of the first column")
    ] = None
    decimal: Annotated[Decimal, Option("What separates decimals in the rows")] = "point"
    picture: Annotated[
        Path | None, Option("Also draw points, curve and interval: FILE.svg or FILE.png", writes=CURVES)
    ] = None

    def __post_init__(self) -> None:
        if self.curve is not None and self.decimal != "point":
            hint = setting("curve") + " reads no rows: omit one of them."
            raise ConfigError("decimal", "rows to read", setting("curve"), hint)


@dataclass(frozen=True, kw_only=True)
class RegressFiles(SkipSettings, RegressData):
    """A table to fit, and its columns."""

    x: Annotated[Sequence[str], Option("Input columns: --x age,income or --x age --x income")] = ()
    y: Annotated[str | None, Option("The column to predict")] = None
    decimal: Annotated[Decimal, Option("What separates decimals")] = "point"
    missing: Annotated[Missing, Option("What happens to rows that lack a number")] = "refuse"


@dataclass(frozen=True, kw_only=True)
class RegressModel:
    """A kernel and its bandwidths.

    Raises:
        ConfigError: a bandwidth is out of range, or cannot be learned.
    """

    kernel: Annotated[Kernel, Option("The kernel")] = "gaussian"
    bandwidth: Annotated[
        float | Sequence[float] | Literal["cross-validation", "learned"],
        Option(
            "A number, one per column (0.5,20), or found on a grid or by the gradient of leave-one-out errors",
            above=0,
            hint='Or "cross-validation".',
        ),
    ] = "cross-validation"
    beyond: Annotated[Beyond, Option("The prediction where no point has weight")] = "nearest"

    def __post_init__(self) -> None:
        check(self)
        bandwidth = self.bandwidth
        if bandwidth == "learned" and SCORES[self.kernel].cls.piecewise_constant:
            expected, hint = "a kernel that is differentiable in its bandwidth", 'Use "cross-validation".'
            raise ConfigError("bandwidth", expected, f'"learned" for the {self.kernel} kernel', hint)


@dataclass(frozen=True, kw_only=True)
class RegressOptions(RunOptions):
    """What the command has besides."""

    picture: Annotated[
        Path | None,
        Option(f"Also draw points, curve and {100 * LEVEL:g} % interval: FILE.svg or FILE.png.", writes=CURVES),
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
    answers=RegressAnswers,
    requests=RegressRequest,
)
