"""`qkv train regress`: from columns of a CSV file to a run folder with points and bandwidths."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qkv.data.corpus import fingerprint
from qkv.data.tokenizer import Tokenizer
from qkv.metrics.figure import Figure
from qkv.models.smoother import KernelSmoother
from qkv.settings import defaults_of
from qkv.tasks.folds import Examples
from qkv.tasks.recipe import Recipe, RecipeSettings
from qkv.tasks.regress.data import RegressTable, read_columns
from qkv.tasks.regress.model import estimator_class, fit, judge_regression
from qkv.tasks.regress.settings import REGRESS, RegressFiles, RegressModel, TableSettings
from qkv.tasks.runs import load_model
from qkv.tasks.streams import csv_text

RegressionSettings = RecipeSettings[RegressFiles, RegressModel]


def _read(settings: RegressionSettings, _: Tokenizer | None) -> RegressTable:
    return read_columns(settings.data)


def _build(model: RegressModel, table: RegressTable) -> KernelSmoother:
    return fit(table, model).smoother()  # type: ignore[no-any-return]


def _identity(table: RegressTable, _: RegressionSettings) -> dict[str, Any]:
    categories = {name: list(names) for name, names in table.categories.items()}
    return {
        "x": list(table.x),
        "y": table.y,
        **({"categories": categories} if categories else {}),
        "text": {"train": fingerprint(repr(row) for row in table.rows)},
    }


def _summary(table: RegressTable, smoother: KernelSmoother) -> str:
    units = "bandwidth" if smoother.neighbors is None else f"{int(smoother.neighbors):,} neighbors, in units of"
    columns = zip(table.x, smoother.bandwidths.tolist(), strict=True)
    listed = ", ".join(f"{name}{' λ' * (name in table.categories)} {bandwidth:.6g}" for name, bandwidth in columns)
    fitted = ("mean", "line", "parabola")[smoother.degree]
    return f"{len(table.rows):,} points; local {fitted}; {smoother.kernel} kernel; {units} {listed}; leave-one-out"


def _judge(smoother: KernelSmoother, table: RegressTable, settings: RegressionSettings) -> tuple[Figure, ...]:
    """Return the error of predicting each point from the others, and the part of the variance that it explains."""
    residuals = estimator_class().of(smoother, settings.model.beyond).residuals()
    return judge_regression(table.targets - residuals, table.targets, "leave-one-out")


def _examples(files: RegressFiles) -> Examples:
    table = read_columns(files)
    names = (*table.x, table.y, *(["weight"] if table.weighted else []))

    def shown(row: Sequence[float]) -> list[float | str]:
        codes = (table.categories.get(name) for name in names)
        return [value if code is None else code[int(value)] for value, code in zip(row, codes, strict=True)]

    def write(indices: Sequence[int]) -> str:
        return csv_text([names, *(shown(table.rows[index]) for index in indices)])

    columns = {"x": list(table.x), "y": table.y, "weights": names[-1] if table.weighted else None}
    read = {**columns, "categorical": list(table.categories), **defaults_of(TableSettings)}
    inputs = [row[: len(table.x)] for row in table.rows]
    return Examples(inputs, [""] * len(table.rows), write, ".csv", read)


def _draw(run: Path, picture: Path) -> None:
    from qkv.tasks.regress.picture import save_picture  # matplotlib

    save_picture(load_model(run, task="regress"), picture)


RECIPE: Recipe[RegressFiles, RegressModel, RegressTable, KernelSmoother] = Recipe(
    REGRESS,
    _read,
    _build,
    None,
    _identity,
    _summary,
    judge=_judge,
    draw=_draw,
    examples=_examples,
)
