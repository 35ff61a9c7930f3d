"""`qkv train regress`: from columns of a CSV file to a run folder with points and bandwidths."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from qkv.data.fingerprints import fingerprint
from qkv.data.table import Columns, Decimal, Missing, read_table
from qkv.data.tokenizer import Tokenizer
from qkv.errors import ConfigError, DataError, UnsupportedError, expect_room, nearest, setting
from qkv.metrics.figure import Figure
from qkv.models.smoother import KernelSmoother
from qkv.tasks.notes import note
from qkv.tasks.recipe import ModelTable, Recipe
from qkv.tasks.recipe import RecipeSettings as AllSettings
from qkv.tasks.settings import build, plain

TASK = "regress"
WAYS: Mapping[str, str] = {"cross-validation": "leave-one-out", "learned": "gradient"}
"""How bandwidths are chosen, and what the estimator calls it."""


@dataclass(frozen=True)
class RegressionData:
    """Columns of a CSV file, see `qkv.data.table`.

    Args:
        data: the file.
        x: names of the input columns.
        y: name of the target column.
        decimal: what separates the decimals.
        missing: whether a row with a missing number is refused, or skipped and counted.
    """

    data: Path | None = None
    x: tuple[str, ...] = ()
    y: str | None = None
    decimal: Decimal = "point"
    missing: Missing = "refuse"


@dataclass(frozen=True)
class RegressionModel:
    """A kernel and its bandwidths.

    Args:
        kernel: the kernel's name.
        bandwidth: one number for all columns, or one for each; or "cross-validation" or "learned", see
            `qkv.models.NadarayaWatson`.
        beyond: the prediction where no point is within the kernel's support.
    """

    kernel: Literal["gaussian", "epanechnikov", "triangular", "boxcar"] = "gaussian"
    bandwidth: float | tuple[float, ...] | str = "cross-validation"
    beyond: Literal["nearest", "mean", "nan"] = "nearest"


RegressionSettings = AllSettings[RegressionData, RegressionModel]


def as_bandwidth(text: str | None) -> float | list[float] | str | None:
    """Return what `--bandwidth` says: a number, several, or the name of a way to choose it.

    Example:
        >>> as_bandwidth("0.5"), as_bandwidth("0.5,20"), as_bandwidth("learned")
        (0.5, [0.5, 20.0], 'learned')
    """
    if text is None:
        return None
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        return text
    return numbers[0] if len(numbers) == 1 else numbers


def read_columns(data: RegressionData) -> Columns:
    """Read the input columns and the target, which comes last.

    Raises:
        ConfigError: the file or a column is not given, or does not exist.
        DataError: a field is not a number; the message gives file and line.
    """
    if data.data is None:
        raise ConfigError(setting("data"), setting("data", "FILE"), "none", "A CSV file, or one with tabs.")
    for flag, given in ((setting("x"), data.x), (setting("y"), data.y)):
        if not given:
            hint = f"As in {setting('x', 'age,income')} {setting('y', 'rent')}."
            raise ConfigError(flag, "the name of a column", "none", hint)
    for place, name in enumerate(every := (*data.x, str(data.y))):
        if name in every[:place]:
            hint = "Name each column once."
            raise ConfigError(
                setting("x"), f"columns that differ from each other and {setting('y')}", f'"{name}" twice', hint
            )
    table = read_table(data.data)
    for flag, names in ((setting("x"), data.x), (setting("y"), (str(data.y),))):
        table.expect(names, flag)
    both = table.numbers((*data.x, str(data.y)), decimal=data.decimal, missing=data.missing)
    if both.skipped:
        total = both.skipped + len(both.rows)
        note(f"qkv: {data.data}: {both.skipped:,} of {total:,} rows lack a number and are skipped.")
    return both


def fit(columns: Columns, model: RegressionModel) -> Any:
    """Fit scikit-learn's estimator `qkv.models.NadarayaWatson`.

    Args:
        columns: inputs, then the target.
        model: the kernel.

    Returns:
        The fitted estimator.

    Raises:
        UnsupportedError: scikit-learn is not installed.
        ConfigError: a bandwidth is invalid.
        DataError: there are too few points to choose a bandwidth.
    """
    numbers = np.array(columns.rows)
    bandwidth = WAYS.get(model.bandwidth, "") if isinstance(model.bandwidth, str) else model.bandwidth
    if isinstance(bandwidth, str) and len(numbers) < 2:
        hint = "Give more rows, or a bandwidth."
        raise DataError(setting("data"), "at least 2 points to choose a bandwidth", f"{len(numbers)}", hint)
    return estimator_class()(model.kernel, bandwidth, model.beyond).fit(numbers[:, :-1], numbers[:, -1])


def estimator_class() -> Any:
    """Return `qkv.models.NadarayaWatson`.

    Raises:
        UnsupportedError: scikit-learn is not installed.
    """
    try:
        from qkv.models.regression import NadarayaWatson
    except ImportError as error:
        expect_room(error)
        hint = "Install it: in the checkout, pip install '.[regression]'."
        raise UnsupportedError("regress", "scikit-learn", str(error), hint) from None
    return NadarayaWatson


def judge_regression(predicted: Any, truth: Any, signature: str) -> tuple[Figure, ...]:
    """Score predictions; used by both training and `qkv evaluate`.

    Args:
        predicted: predictions (n,).
        truth: the targets (n,).
        signature: how they were predicted.

    Returns:
        Root mean squared error, mean absolute error, and R², of 1, over the points that have a prediction; if some have
        none (NaN), the signature says how many have one.

    Example:
        >>> import numpy
        >>> [figure.value for figure in judge_regression(numpy.array([1.0, 2.0]), numpy.array([1.0, 4.0]), "")]
        [1.4142..., 1.0, 0.111...]
    """
    known = np.isfinite(predicted)
    if not known.all():
        signature = ", ".join(filter(None, (signature, f"{known.sum():,} of {len(known):,} points")))
    if not known.any():
        return (Figure("rmse", math.nan, signature, higher_is_better=False),)
    truth = np.asarray(truth)[known]
    errors = truth - np.asarray(predicted)[known]
    spread = float(np.square(truth - np.mean(truth)).mean())
    explained = 1 - float(np.square(errors).mean()) / spread if spread else math.nan
    return (
        Figure("rmse", float(np.sqrt(np.square(errors).mean())), signature, higher_is_better=False),
        Figure("mae", float(np.abs(errors).mean()), signature, higher_is_better=False),
        Figure("r2", explained, signature),
    )


def _config(table: Mapping[str, Any]) -> RegressionModel:
    if isinstance(kernel := table.get("kernel"), str):
        table = {**table, "kernel": kernel.lower()}
    model = build(RegressionModel, table, "model")
    bandwidth = model.bandwidth
    if isinstance(bandwidth, str) and bandwidth not in WAYS:
        expected = 'a number above 0, "cross-validation" or "learned"'
        raise ConfigError("model.bandwidth", expected, f'"{bandwidth}"', nearest(bandwidth, WAYS))
    if bandwidth == "learned" and model.kernel == "boxcar":
        expected, hint = "a kernel that is differentiable in its bandwidth", 'Use "cross-validation".'
        raise ConfigError("model.bandwidth", expected, '"learned" for the boxcar kernel', hint)
    numbers = () if isinstance(bandwidth, str) else bandwidth if isinstance(bandwidth, tuple) else (bandwidth,)
    if not all(0 < number < math.inf for number in numbers):
        hint = 'Or "cross-validation".'
        raise ConfigError("model.bandwidth", "a finite number above 0", f"{bandwidth!r}", hint)
    return model


def _read(settings: RegressionSettings, _: Tokenizer | None) -> Columns:
    return read_columns(settings.data)


def _build(model: RegressionModel, columns: Columns) -> KernelSmoother:
    return fit(columns, model).smoother()  # type: ignore[no-any-return]


def _identity(columns: Columns, settings: RegressionSettings) -> dict[str, Any]:
    return {
        "x": list(columns.names[:-1]),
        "y": columns.names[-1],
        "decimal": settings.data.decimal,
        "text": {"train": fingerprint(repr(row) for row in columns.rows)},
    }


def _summary(columns: Columns, smoother: KernelSmoother) -> str:
    bandwidths = zip(columns.names, smoother.get_buffer("bandwidths").tolist(), strict=False)
    shown = ", ".join(f"{name} {bandwidth:.6g}" for name, bandwidth in bandwidths)
    return f"{len(columns.rows):,} points; {smoother.kernel} kernel; bandwidth {shown}; leave-one-out"


def _judge(smoother: KernelSmoother, columns: Columns, settings: RegressionSettings) -> tuple[Figure, ...]:
    """Return the error of predicting each point from the others, and the part of the variance that it explains."""
    targets = np.array([row[-1] for row in columns.rows])
    residuals = estimator_class().of(smoother, settings.model.beyond).residuals()
    return judge_regression(targets - residuals, targets, "leave-one-out")


RECIPE: Recipe[RegressionData, RegressionModel, Columns, KernelSmoother] = Recipe(
    TASK,
    RegressionData,
    ModelTable(_config, plain),
    {},
    _read,
    _build,
    None,
    _identity,
    _summary,
    tables=("data", "model"),
    judge=_judge,
)
load_settings, show_settings, train = RECIPE.load_settings, RECIPE.show_settings, RECIPE.train
