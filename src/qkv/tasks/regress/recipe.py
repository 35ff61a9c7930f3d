"""`qkv train regress`: from columns of a CSV file to a run folder with points and bandwidths."""

from pathlib import Path
from typing import Any

import numpy as np

from qkv.data.corpus import fingerprint
from qkv.data.table import Columns
from qkv.data.tokenizer import Tokenizer
from qkv.metrics.figure import Figure
from qkv.models.smoother import KernelSmoother
from qkv.tasks.recipe import Recipe, RecipeSettings
from qkv.tasks.regress.data import gather, read_columns
from qkv.tasks.regress.model import estimator_class, fit, judge_regression
from qkv.tasks.regress.predict import Regressor
from qkv.tasks.regress.settings import REGRESS, RegressFiles, RegressModel

RegressionSettings = RecipeSettings[RegressFiles, RegressModel]


def _read(settings: RegressionSettings, _: Tokenizer | None) -> Columns:
    return read_columns(settings.data)


def _inspect(settings: RegressionSettings) -> None:
    gather(settings.data)


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
    listed = ", ".join(f"{name} {bandwidth:.6g}" for name, bandwidth in bandwidths)
    return f"{len(columns.rows):,} points; {smoother.kernel} kernel; bandwidth {listed}; leave-one-out"


def _judge(smoother: KernelSmoother, columns: Columns, settings: RegressionSettings) -> tuple[Figure, ...]:
    """Return the error of predicting each point from the others, and the part of the variance that it explains."""
    targets = np.array([row[-1] for row in columns.rows])
    residuals = estimator_class().of(smoother, settings.model.beyond).residuals()
    return judge_regression(targets - residuals, targets, "leave-one-out")


def _draw(run: Path, picture: Path) -> None:
    from qkv.tasks.regress.picture import save_picture  # matplotlib

    save_picture(Regressor.load(run), picture)


RECIPE: Recipe[RegressFiles, RegressModel, Columns, KernelSmoother] = Recipe(
    REGRESS,
    _read,
    _build,
    None,
    _identity,
    _summary,
    judge=_judge,
    draw=_draw,
    inspect=_inspect,
)
