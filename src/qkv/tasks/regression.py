"""`qkv train regress`: from columns of a CSV file to a run folder with points and bandwidths."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from qkv.data.fingerprints import fingerprint
from qkv.data.table import Columns, FieldTable, read_table
from qkv.data.tokenizer import Tokenizer
from qkv.errors import ConfigError, DataError, Place, UnsupportedError, expect_room, setting
from qkv.metrics.figure import Figure
from qkv.models.smoother import KernelSmoother
from qkv.scores.catalog import SCORES
from qkv.settings import build, plain
from qkv.tasks.notes import note
from qkv.tasks.recipe import ModelTable, Recipe
from qkv.tasks.recipe import RecipeSettings as AllSettings
from qkv.tasks.regress.settings import REGRESS, RegressFiles, RegressModel

WAYS: Mapping[str, str] = {"cross-validation": "leave-one-out", "learned": "gradient"}
"""How bandwidths are chosen, and what the estimator calls it."""


RegressionSettings = AllSettings[RegressFiles, RegressModel]


def read_columns(data: RegressFiles) -> Columns:
    """Read the input columns and the target, which comes last.

    Raises:
        ConfigError: the file or a column is not given, or does not exist.
        DataError: a field is not a number; the message gives file and line.
    """
    if data.data is None:
        raise ConfigError(setting("data"), setting("data", "FILE"), "none", "A CSV file, or one with tabs.")
    if isinstance(data.data, str | Path):
        _expect_names(data)
        table = read_table(Path(data.data))
    else:
        data, table = _as_table(data, [tuple(row) for row in data.data])
        _expect_names(data)
    every = (*data.x, str(data.y))
    for flag, names in ((setting("x"), data.x), (setting("y"), every[-1:])):
        table.expect(names, flag)
    both = table.numbers(every, decimal=data.decimal, missing=data.missing)
    if both.skipped:
        total = both.skipped + len(both.rows)
        note(f"qkv: {table.name}: {both.skipped:,} of {total:,} rows lack a number and are skipped.")
    return both


def _expect_names(data: RegressFiles) -> None:
    """Refuse settings that name no columns, or one of them twice."""
    for flag, given in ((setting("x"), data.x), (setting("y"), data.y)):
        if not given:
            hint = f"As in {setting('x', 'age,income')} {setting('y', 'rent')}."
            raise ConfigError(flag, "the name of a column", "none", hint)
    for place, name in enumerate(every := (*data.x, data.y)):
        if name in every[:place]:
            expected = f"columns that differ from each other and {setting('y')}"
            raise ConfigError(setting("x"), expected, f'"{name}" twice', "Name each column once.")


def _as_table(data: RegressFiles, rows: Sequence[tuple[Any, ...]]) -> tuple[RegressFiles, FieldTable]:
    """Return rows of numbers as a table, and the settings with the names of its columns; usually the last is y."""
    if not rows:
        raise DataError("data", "at least one item", "none", "Was an iterator already read?")
    count = len(rows[0]) - 1
    x = data.x or (tuple(f"x{n}" for n in range(1, count + 1)) if count > 1 else ("x",))
    names = (*x, data.y or "y")
    for number, row in enumerate(rows, start=1):
        if len(row) != len(names) or not all(isinstance(cell, int | float) for cell in row):
            expected = f"{len(names)} numbers, for {', '.join(names)}"
            raise DataError(Place("data", number), expected, repr(row)[:80], "For example (1.5, 20.0).")
    fields = tuple((number, tuple(repr(float(cell)) for cell in row)) for number, row in enumerate(rows, start=1))
    return replace(data, x=x, y=names[-1], decimal="point"), FieldTable("data", names, fields, header=True)


def fit(columns: Columns, model: RegressModel) -> Any:
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


def _config(table: Mapping[str, Any]) -> RegressModel:
    model = build(RegressModel, table, "model")
    bandwidth = model.bandwidth
    if bandwidth == "learned" and SCORES[model.kernel].cls.piecewise_constant:
        expected, hint = "a kernel that is differentiable in its bandwidth", 'Use "cross-validation".'
        raise ConfigError("model.bandwidth", expected, f'"learned" for the {model.kernel} kernel', hint)
    numbers = () if isinstance(bandwidth, str) else (bandwidth,) if isinstance(bandwidth, float) else bandwidth
    if not all(0 < number < math.inf for number in numbers):
        hint = 'Or "cross-validation".'
        raise ConfigError("model.bandwidth", "a finite number above 0", f"{bandwidth!r}", hint)
    return model


def _read(settings: RegressionSettings, _: Tokenizer | None) -> Columns:
    return read_columns(settings.data)


def _build(model: RegressModel, columns: Columns) -> KernelSmoother:
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


RECIPE: Recipe[RegressFiles, RegressModel, Columns, KernelSmoother] = Recipe(
    REGRESS,
    ModelTable(_config, plain),
    _read,
    _build,
    None,
    _identity,
    _summary,
    judge=_judge,
)
load_settings, show_settings, train = RECIPE.load_settings, RECIPE.show_settings, RECIPE.train
