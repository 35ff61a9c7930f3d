"""The settings of `qkv train regress`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal

from qkv.data.choices import Decimal, Missing, Thousands
from qkv.errors import ConfigError, setting
from qkv.scores.catalog import KERNELS
from qkv.settings import Option, check, options_of
from qkv.tasks.settings import (
    COLUMNS,
    AnswersEvaluation,
    LineAnswers,
    RequestSettings,
    RunOptions,
    SeparatorSettings,
    SkipSettings,
    TaskSettings,
    column,
    columns_of,
)

if TYPE_CHECKING:
    from qkv.data.table import Columns, FieldTable

    Kernel = str
else:
    Kernel = Literal[KERNELS]
Rows = Path | str | Iterable[Sequence[float]]
"""A file, or rows of numbers that end with the target."""
Beyond = Literal["nearest", "mean", "nan"]
"""What to predict out of the kernel's support."""
IntervalKind = Literal["robust", "normal", "bootstrap", "none"]
LEVEL = 0.95
"""The probability that an interval covers the curve, by default."""
_ADVISED = ("categorical", "decimal", "missing", "thousands")
"""Settings that a message about a field which is no number may propose."""
CURVES = (".svg", ".png")
"""The suffixes of pictures of curves."""


@dataclass(frozen=True, kw_only=True)
class RegressData:
    """Columns of a table, see `qkv.data.table`."""

    data: Annotated[Rows | None, Option("A CSV file, or one with tabs or semicolons, .gz too", needed=True)] = None


@dataclass(frozen=True, kw_only=True)
class TableSettings(SeparatorSettings):
    """How a table writes its fields and its numbers, each None if it is not given."""

    decimal: Annotated[Decimal | None, column("What separates decimals", "point")] = None
    thousands: Annotated[Thousands | None, column("What groups thousands", "nothing")] = None
    missing: Annotated[Missing | None, column("What happens to rows that lack a number", "refuse")] = None
    na: Annotated[
        Sequence[str] | None,
        column("What else stands for a missing number: --na '#N/A' --na 999", "NA, nan, -, …"),
    ] = None

    def numbers(
        self,
        table: "FieldTable",
        names: Sequence[str],
        categories: Mapping[str, Sequence[str]] = MappingProxyType({}),
        *,
        fixed: bool = False,
        part: bool = False,
    ) -> "Columns":
        """Read columns as numbers, see `qkv.data.table.FieldTable.numbers`.

        Args:
            table: the table.
            names: the columns.
            categories: those of columns that hold some.
            fixed: whether the user can choose none of these settings.
            part: whether other rows follow or precede.
        """
        settings: Any = type(self)
        chosen = () if fixed else options_of(settings)
        return table.numbers(
            names,
            decimal=self.decimal or "point",
            missing=self.missing or "refuse",
            fixed=[name for name in _ADVISED if name not in chosen],
            categories=categories,
            na=self.na or (),
            thousands=self.thousands,
            part=part,
        )


@dataclass(frozen=True, kw_only=True)
class RegressEvaluation(AnswersEvaluation, TableSettings, RegressData):
    """Score predictions of a table with inputs and target: errors and R².

    Example: qkv evaluate runs/rent --data test.csv
    """

    as_trained = frozenset(options_of(TableSettings))


@dataclass(frozen=True, kw_only=True)
class RegressRequest(RequestSettings):
    """How the rows of a request are predicted."""

    rows = True

    interval: Annotated[
        IntervalKind,
        Option("Confidence interval: robust covers the true curve, normal and bootstrap the smoothed one"),
    ] = "robust"
    level: Annotated[float, Option("Probability that the interval covers the curve at a point")] = LEVEL
    simultaneous: Annotated[bool, Option("That is the probability that the intervals cover the whole curve")] = False
    seed: Annotated[int, Option("With --interval bootstrap: random seed")] = 0

    @property
    def draws(self) -> bool:
        """Whether the interval is drawn by chance."""
        return self.interval == "bootstrap"


@dataclass(frozen=True, kw_only=True)
class RegressAnswers(RegressRequest, LineAnswers, TableSettings):
    """Predict the target of the rows of a CSV table from standard input; writes CSV with the interval's ends.

    The first line names the columns, or all fields are numbers in the order of training. The attention that can be
    drawn is that of each prediction to the training points.

    Example: qkv regress runs/rent --curve 5
    """

    as_trained = frozenset(options_of(TableSettings))

    curve: Annotated[
        int | None, Option("Instead of reading rows, predict this many points over the range of the first column")
    ] = None
    picture: Annotated[
        Path | None, Option("Also draw points, curve and interval: FILE.svg or FILE.png", writes=CURVES)
    ] = None

    def __post_init__(self) -> None:
        for name in columns_of(self) if self.curve is not None else ():
            hint = setting("curve") + " reads no rows: omit one of them."
            raise ConfigError(name, "rows to read", setting("curve"), hint)


@dataclass(frozen=True, kw_only=True)
class RegressFiles(SkipSettings, TableSettings, RegressData):
    """A table to fit, and its columns."""

    x: Annotated[
        Sequence[str], Option("Input columns: --x age,income or --x age --x income", topic=COLUMNS, needed=True)
    ] = ()
    y: Annotated[str | None, Option("The column to predict", topic=COLUMNS, needed=True)] = None
    categorical: Annotated[
        Sequence[str], column("Those input columns that hold categories: --categorical city", "none")
    ] = ()
    weights: Annotated[
        str | None, column("A column with the weight of each row, such as the inverse of its variance", "none")
    ] = None


@dataclass(frozen=True, kw_only=True)
class RegressModel:
    """A kernel, its bandwidths, and what is fitted under it.

    Raises:
        ConfigError: a setting is out of range, or two of them contradict each other.
    """

    kernel: Annotated[Kernel, Option("The kernel")] = "gaussian"
    bandwidth: Annotated[
        float | Sequence[float] | Literal["cross-validation", "aic"],
        Option(
            "A number, one per column (0.5,20), of a column of categories λ from 0 to 1; or what it minimizes, "
            "cross-validation (errors of leaving one out) or aic",
            least=0,
            hint='Or "cross-validation", as learned and gradient are called today.',
        ),
    ] = "cross-validation"
    degree: Annotated[
        int,
        Option(
            "Degree of the polynomial fitted around each row: 1 for a line, 0 for a mean (Nadaraya-Watson)",
            least=0,
            most=2,
        ),
    ] = 1
    neighbors: Annotated[
        int | Literal["auto"] | None,
        Option(
            "Let each row reach so many distinct training rows, auto for the best number; a bandwidth is then the unit "
            "of a column",
            least=1,
        ),
    ] = None
    beyond: Annotated[Beyond, Option("The prediction where no point has weight")] = "nearest"

    def __post_init__(self) -> None:
        check(self)
        if self.neighbors == "auto" and not isinstance(self.bandwidth, str):
            hint = "Omit " + setting("bandwidth") + ", or give the number."
            raise ConfigError("neighbors", "a number beside a bandwidth", '"auto"', hint)


@dataclass(frozen=True, kw_only=True)
class RegressOptions(RunOptions):
    """What the command has besides."""

    picture: Annotated[
        Path | None,
        Option(f"Also draw points, curve and {100 * LEVEL:g} % interval: FILE.svg or FILE.png.", writes=CURVES),
    ] = None


REGRESS = TaskSettings(
    "regress",
    """Fit a kernel regression: predictions are attention over the rows of a table.

    Example: qkv train regress --data rents.csv --x area --y rent --out runs/rent
    """,
    {"data": RegressFiles, "model": RegressModel},
    {},
    options=RegressOptions,
    evaluation=RegressEvaluation,
    answers=RegressAnswers,
    requests=RegressRequest,
)
