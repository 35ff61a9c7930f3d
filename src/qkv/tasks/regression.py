"""`qkv train regress`: from columns of a CSV file to a run folder with points and bandwidths."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from qkv.checkpoint.contents import Contents
from qkv.checkpoint.plain import Plain
from qkv.checkpoint.rotation import save_step, step_folder
from qkv.checkpoint.run import open_run
from qkv.data.fingerprints import fingerprint
from qkv.data.table import Columns, Decimal, Missing, read_table
from qkv.errors import ConfigError, DataError, UnsupportedError, error_message, nearest
from qkv.metrics.figure import Figure
from qkv.tasks.launch import run_folder
from qkv.tasks.origin import Origin
from qkv.tasks.settings import build, check_tables, plain
from qkv.train.outcome import Outcome

task = TASK = "regress"
WAYS: Mapping[str, str] = {"cross-validation": "leave-one-out", "learned": "gradient"}
"""How bandwidths are chosen, and what the estimator calls it."""
_TABLES = ("data", "model")
_STEP = 1


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


@dataclass(frozen=True)
class RegressionSettings:
    """All settings of a regression.

    Args:
        data: the columns.
        model: the kernel.
    """

    data: RegressionData
    model: RegressionModel


def load_settings(tables: Mapping[str, Mapping[str, Any]]) -> RegressionSettings:
    """Build settings from nested dicts, checking all of them.

    Args:
        tables: `data`, `model`; missing values get defaults.

    Returns:
        The settings.

    Raises:
        ConfigError: a name is unknown (the message suggests the closest one), or a value is invalid.

    Example:
        >>> load_settings({"model": {"bandwidth": "learned"}}).model.kernel
        'gaussian'
    """
    check_tables(tables, _TABLES)
    found = RegressionSettings(
        build(RegressionData, tables.get("data", {}), "data"), build(RegressionModel, tables.get("model", {}), "model")
    )
    bandwidth = found.model.bandwidth
    if isinstance(bandwidth, str) and bandwidth not in WAYS:
        expected = 'a number above 0, "cross-validation" or "learned"'
        raise ConfigError(error_message("model.bandwidth", expected, f'"{bandwidth}"', nearest(bandwidth, WAYS)))
    return found


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


def show_settings(settings: RegressionSettings) -> dict[str, Any]:
    """Return the settings as nested dicts, the inverse of `load_settings`."""
    return plain(settings)


def train(
    settings: RegressionSettings,
    out: Path | None,
    device: str = "cpu",
    *,
    tensorboard: bool = False,
    origin: Origin | None = None,
) -> Outcome:
    """Fit a regression and save it.

    Args:
        settings: the columns and the kernel.
        out: the run folder; fitting the same again replaces the checkpoint by an equal one.
        device, tensorboard, origin: unused: fitting runs on the CPU, has no steps and starts from nothing.

    Returns:
        How it ended; the first figure is the error of leave-one-out predictions.

    Raises:
        QkvError: any bad input.
    """
    folder = run_folder(out)
    columns = read_columns(settings.data)
    estimator = fit(columns, settings.model)
    contents = Contents(
        {name: tensor.contiguous() for name, tensor in estimator.smoother().state_dict().items()},
        _config(settings, columns),
        figures=_figures(estimator, columns),
    )
    with open_run(folder, contents.config):
        digest = save_step(folder, _STEP, contents, keep=1, best=True).digest
    _announce(estimator, columns, contents.figures)
    first = contents.figures[0]
    return Outcome("finished", _STEP, step_folder(folder, _STEP), digest, contents.figures, first, _STEP)


def read_columns(data: RegressionData) -> Columns:
    """Read the input columns and the target, which comes last.

    Raises:
        ConfigError: the file or a column is not given, or does not exist.
        DataError: a field is not a number; the message gives file and line.
    """
    if data.data is None:
        raise ConfigError(error_message("--data", "--data FILE", "none", "A CSV file, or one with tabs."))
    for flag, given in (("--x", data.x), ("--y", data.y)):
        if not given:
            hint = "As in --x age,income --y rent."
            raise ConfigError(error_message(flag, "the name of a column", "none", hint))
    table = read_table(data.data)
    for flag, names in (("--x", data.x), ("--y", (str(data.y),))):
        table.expect(names, flag)
    both = table.numbers((*data.x, str(data.y)), decimal=data.decimal, missing=data.missing)
    if both.skipped:
        every = both.skipped + len(both.rows)
        print(f"qkv: {data.data}: {both.skipped:,} of {every:,} rows lack a number and are skipped.", file=sys.stderr)  # noqa: T201
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
        raise DataError(error_message("--data", "at least 2 points to choose a bandwidth", f"{len(numbers)}", hint))
    return estimator_class()(model.kernel, bandwidth, model.beyond).fit(numbers[:, :-1], numbers[:, -1])


def estimator_class() -> Any:
    """Return `qkv.models.NadarayaWatson`.

    Raises:
        UnsupportedError: scikit-learn is not installed.
    """
    try:
        from qkv.models.regression import NadarayaWatson
    except ModuleNotFoundError as error:
        hint = "Install it: pip install 'qkv[regression]'."
        raise UnsupportedError(error_message("regress", "scikit-learn", f"no module {error.name}", hint)) from None
    return NadarayaWatson


def _config(settings: RegressionSettings, columns: Columns) -> dict[str, Plain]:
    """Return what defines the run: the numbers themselves, not the location of their file."""
    return {
        "task": TASK,
        "x": list(columns.names[:-1]),
        "y": columns.names[-1],
        "decimal": settings.data.decimal,
        "text": {"train": fingerprint(repr(row) for row in columns.rows)},
        "model": plain(settings.model),
    }


def _figures(estimator: Any, columns: Columns) -> tuple[Figure, ...]:
    """Return the error of predicting each point from the others, and the part of the variance that it explains."""
    targets = np.array([row[-1] for row in columns.rows])
    if len(targets) < 2:
        return (Figure("rmse", float("nan"), "leave-one-out", higher_is_better=False),)
    return judge_regression(targets - estimator.residuals(), targets, "leave-one-out")


def judge_regression(predicted: Any, truth: Any, signature: str) -> tuple[Figure, ...]:
    """Score predictions; used by both training and `qkv evaluate`.

    Args:
        predicted: predictions (n,).
        truth: the targets (n,).
        signature: how they were predicted.

    Returns:
        Root mean squared error, mean absolute error, and R² in percent.

    Example:
        >>> import numpy
        >>> [figure.value for figure in judge_regression(numpy.array([1.0, 2.0]), numpy.array([1.0, 4.0]), "")]
        [1.4142..., 1.0, 11.1...]
    """
    errors = np.asarray(truth) - np.asarray(predicted)
    spread = float(np.square(truth - np.mean(truth)).mean())
    explained = 100 * (1 - float(np.square(errors).mean()) / spread) if spread else float("nan")
    return (
        Figure("rmse", float(np.sqrt(np.square(errors).mean())), signature, higher_is_better=False),
        Figure("mae", float(np.abs(errors).mean()), signature, higher_is_better=False),
        Figure("r2", explained, signature),
    )


def _announce(estimator: Any, columns: Columns, figures: Sequence[Figure]) -> None:
    bandwidths = np.atleast_1d(estimator.bandwidth_).tolist()
    shown = ", ".join(f"{name} {h:.6g}" for name, h in zip(columns.names, bandwidths, strict=False))
    told = "; ".join(f"{figure.name} {figure.value:.6g}" for figure in figures)
    print(  # noqa: T201
        f"{len(columns.rows):,} points; {estimator.kernel} kernel; bandwidth {shown}; leave-one-out: {told}",
        file=sys.stderr,
    )
