"""`qkv train regress`: from columns of a CSV file to a run folder with points and bandwidths."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

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


@final
@dataclass(frozen=True)
class RegressionTask(Recipe[RegressFiles, RegressModel, KernelSmoother]):
    """Fitting a regression to the rows of a table.

    Args:
        table: the rows.
    """

    settings = REGRESS

    table: RegressTable

    @classmethod
    def read(cls, settings: RegressionSettings, tokenizer: Tokenizer | None) -> "RegressionTask":
        """Read the columns."""
        return cls(settings, read_columns(settings.data))

    @staticmethod
    def examples(files: RegressFiles) -> Examples:
        """Return the rows to divide."""
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

    def build(self) -> KernelSmoother:
        """Fit the regression."""
        return fit(self.table, self.chosen.model).smoother()  # type: ignore[no-any-return]

    def identity(self) -> dict[str, Any]:
        """Return what a prediction needs, and the rows by their digest."""
        categories = {name: list(names) for name, names in self.table.categories.items()}
        return {
            "x": list(self.table.x),
            "y": self.table.y,
            **({"categories": categories} if categories else {}),
            "text": {"train": fingerprint(repr(row) for row in self.table.rows)},
        }

    def summary(self, model: KernelSmoother) -> str:
        """Count the points, and say what was fitted."""
        table = self.table
        units = "bandwidth" if model.neighbors is None else f"{int(model.neighbors):,} neighbors, in units of"
        columns = zip(table.x, model.bandwidths.tolist(), strict=True)
        listed = ", ".join(f"{name}{' λ' * (name in table.categories)} {bandwidth:.6g}" for name, bandwidth in columns)
        fitted = ("mean", "line", "parabola")[model.degree]
        return f"{len(table.rows):,} points; local {fitted}; {model.kernel} kernel; {units} {listed}; leave-one-out"

    def validate(self, model: KernelSmoother) -> tuple[Figure, ...]:
        """Return the error of predicting each point from the others, and the part of the variance it explains."""
        residuals = estimator_class().of(model, self.chosen.model.beyond).residuals()
        return judge_regression(self.table.targets - residuals, self.table.targets, "leave-one-out")

    @staticmethod
    def draw(run: Path, picture: Path) -> None:
        """Draw the regression of a run."""
        from qkv.tasks.regress.picture import save_picture  # matplotlib

        save_picture(load_model(run, task="regress"), picture)


RECIPE = RegressionTask
"""Fitting a regression."""
