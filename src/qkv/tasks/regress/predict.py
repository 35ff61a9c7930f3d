"""A fitted regression, ready to predict, with confidence intervals and attention."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, cast, final, get_args

import numpy as np
import torch

from qkv.data.choices import Decimal
from qkv.data.table import FieldTable, parse_table, read_table
from qkv.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    Place,
    brief,
    expect_name,
    quantity,
    setting,
)
from qkv.metrics.figure import Figure
from qkv.models.smoother import KernelSmoother
from qkv.recording.recorder import record
from qkv.scores.catalog import KERNELS
from qkv.tasks.regress.model import estimator_class, judge_regression
from qkv.tasks.regress.settings import LEVEL, REGRESS, Beyond, IntervalKind, RegressEvaluation
from qkv.tasks.runs import Trained, expect_task, load_trained
from qkv.tasks.task import Scored, reads_no_text
from qkv.tasks.text_attention import expect_tokens, title_of
from qkv.values.checked import answering
from qkv.view.alignment import Alignment
from qkv.view.scene import Scene

Array = np.ndarray[Any, np.dtype[np.float64]]
_NEAREST = 16


@final
@dataclass(frozen=True, eq=False)
class Prediction:
    """The prediction for one row.

    Args:
        x: the inputs, one per column.
        y: the prediction.
        low, high: the ends of the confidence interval; NaN if there is none.
    """

    x: tuple[float, ...]
    y: float
    low: float
    high: float


@final
@answering
class Regressor:
    """A Nadaraya-Watson regression, ready to use.

    Args:
        model: its attention as a module, for `qkv.record`.
        x, y: the names of the columns.
        decimal: what separated the decimals in training.
        beyond: the prediction where no point has weight.

    Attributes:
        estimator: the fitted `qkv.models.NadarayaWatson`.

    Raises:
        UnsupportedError: scikit-learn is not installed.

    Example:
        >>> import qkv  # doctest: +SKIP
        >>> qkv.load("runs/rent").predict([[25.0], [60.0]])  # doctest: +SKIP
        array([412.7, 810.2])
    """

    def __init__(self, model: KernelSmoother, x: Sequence[str], y: str, decimal: Decimal, beyond: Beyond) -> None:
        self.model = model.eval()
        self.x = tuple(x)
        self.y = y
        self.decimal: Decimal = decimal
        self.estimator = estimator_class().of(self.model, beyond)

    @classmethod
    def load(cls, run: str | Path) -> "Regressor":
        """Load a run.

        Raises:
            CheckpointError: the checkpoint is missing, incomplete, corrupted or of another task.
            UnsupportedError: scikit-learn is not installed.
        """
        return cls.of(load_trained(run))

    @classmethod
    def of(cls, trained: Trained, device: str | torch.device = "cpu") -> "Regressor":
        """Build the regression of a checkpoint, on the CPU whatever the device; errors as for `load`."""
        expect_task(trained, REGRESS.name, "a regression")
        return cls(*_parts(trained))

    @property
    def bandwidths(self) -> dict[str, float]:
        """The bandwidth of each input column, in its units."""
        return dict(zip(self.x, np.atleast_1d(self.estimator.bandwidth_).tolist(), strict=True))

    def predict(self, rows: Any) -> Array:
        """Predict the target.

        Args:
            rows: inputs (m, D), columns in the order of `x`.

        Returns:
            (m,).

        Raises:
            DataError: the inputs are not such numbers, or not finite.
        """
        inputs = self._inputs(rows)
        return cast("Array", self.estimator.predict(inputs) if len(inputs) else np.empty(0))

    def predict_fully(
        self, rows: Any, *, interval: str = "normal", level: float = LEVEL, seed: int = 0
    ) -> list[Prediction]:
        """Predict the target, with confidence intervals.

        Args:
            rows: inputs (m, D).
            interval: "normal", "bootstrap" or "none", see `qkv.models.intervals`.
            level: the probability of covering the smoothed curve.
            seed: random seed of the bootstrap.

        Returns:
            One prediction per row.

        Raises:
            DataError: the inputs are not such numbers, or not finite.
            ConfigError: the interval is unknown or does not use a setting, or the level is outside its range.
        """
        expect_name(setting("interval"), interval, get_args(IntervalKind))
        if seed and interval != "bootstrap":
            hint = "Only " + setting("interval", "bootstrap") + " draws by chance."
            raise ConfigError(setting("seed"), f"no seed for the interval {interval}", f"{seed}", hint)
        if level != LEVEL and interval == "none":
            hint = "Omit it, or " + setting("interval", "none") + "."
            raise ConfigError(setting("level"), "no level without an interval", f"{level:g}", hint)
        inputs = self._inputs(rows)
        if not len(inputs):
            return []
        low = high = np.full(len(inputs), np.nan)
        if interval != "none":
            low, high = self.estimator.interval(inputs, level, interval, seed)
        numbers = zip(inputs.tolist(), self.predict(inputs).tolist(), low.tolist(), high.tolist(), strict=True)
        return [Prediction(tuple(x), *figures) for x, *figures in numbers]

    def curve(self, points: int) -> Array:
        """Return evenly spaced inputs over the range of the first column, with the others at their medians.

        Args:
            points: number of inputs, at least 2.

        Returns:
            (points, D).

        Raises:
            ConfigError: there are too few points.
        """
        if points < 2:
            raise ConfigError(setting("curve"), "at least 2 points", f"{points}", "A hundred suit a picture.")
        inputs = self.model.get_buffer("inputs").numpy()
        rows = np.tile(np.median(inputs, 0), (points, 1))
        rows[:, 0] = np.linspace(inputs[:, 0].min(), inputs[:, 0].max(), points)
        return rows

    def rows_of(self, table: FieldTable, decimal: Decimal = "point") -> Array:
        """Read the input columns of a table: by name, or by place if its first line has no names.

        Raises:
            DataError: a column is missing, or a field is not a number; the message gives file and line.
        """
        return np.array(table.numbers(self._names_in(table), decimal=decimal, fixed=("missing",)).rows)

    def evaluate(self, table: FieldTable) -> tuple[Array, tuple[Figure, ...]]:
        """Score predictions on a table with inputs and target, in the format of training.

        Returns:
            The predictions (m,), and the figures.

        Raises:
            DataError: as for `rows_of`.
        """
        predicted, target = self._compared(table)
        return predicted, judge_regression(predicted, target, "")

    def _compared(self, table: FieldTable) -> tuple[Array, Array]:
        """Return predictions and targets of a table."""
        names = (*self._names_in(table, more=1), self.y if table.header else table.columns[-1])
        read = table.numbers(names, decimal=self.decimal, fixed=("decimal", "missing"))
        numbers = np.array(read.rows)
        return self.predict(numbers[:, :-1]), numbers[:, -1]

    def score_files(self, files: RegressEvaluation) -> Scored:
        """Score the model on files, with the code of its training.

        Args:
            files: as `qkv evaluate` is given them.

        Returns:
            The figures, and the predictions.

        Raises:
            DataError: a file is invalid; the message gives file and line.
            ConfigError: a file is missing, or a setting is invalid.
        """
        if files.data is None:
            raise ConfigError(setting("data"), setting("data", "FILE"), "none", "A table with the columns of training.")
        predicted, target = self._compared(read_table(Path(str(files.data))))
        figures = judge_regression(predicted, target, "")
        lines = (f"{number:.10g}" for number in predicted)
        return Scored(list(figures), lines, (-abs(predicted - target)).tolist)

    def export_facts(self, to: str) -> NoReturn:
        """Refuse: other programs have no input for tables of numbers.

        Raises:
            UnsupportedError: always.
        """
        raise reads_no_text("a regression")

    def scene(self, text: str, tokens: int | None = None) -> Scene:
        """Predict rows, and return which points they attend to, for the viewer.

        Args:
            text: a table of rows.
            tokens: number of rows to read; None for all.

        Raises:
            DataError: there is no row, or a field is no number.
        """
        rows = self.rows_of(parse_table(expect_tokens(text.split("\n")), setting("text")))[:tokens]
        with torch.no_grad(), record(self.model) as trace:
            self.model(torch.from_numpy(rows)[None])
        inputs, targets = self.model.get_buffer("inputs"), self.model.get_buffer("targets")[:, 0]
        points = [shown_point(x, y) for x, y in zip(inputs.tolist(), targets.tolist(), strict=True)]
        shown = {"source": points, "target": [shown_row(row) for row in rows.tolist()]}
        return trace.scene(0, shown, title=title_of(text))

    def alignments(self, rows: Any, most: int = _NEAREST) -> list[Alignment]:
        """Return, for each row, the weights of the training points with the largest ones.

        Args:
            rows: inputs (m, D).
            most: number of points shown for each row.

        Returns:
            One alignment for each row; a point is shown as its inputs and target.

        Raises:
            DataError: the inputs are not such numbers, or not finite.
            ConfigError: there are too few points.
        """
        if most < 1:
            raise ConfigError("most", "at least 1 point", f"{most}", f"{_NEAREST} suit a picture.")
        queries = self._inputs(rows)
        if not len(queries):
            return []
        inputs, targets = self.model.get_buffer("inputs"), self.model.get_buffer("targets")
        weights, nearest_points = self.estimator.attention_map(queries).topk(min(most, len(inputs)))
        alignments = []
        for row, shares, indices in zip(queries.tolist(), weights, nearest_points, strict=True):
            order = indices[torch.argsort(inputs[indices, 0])]
            share_of = dict(zip(indices.tolist(), shares.tolist(), strict=True))
            points = tuple(shown_point(inputs[point].tolist(), float(targets[point, 0])) for point in order)
            ordered = torch.tensor([[share_of[point] for point in order.tolist()]], dtype=torch.float64, device="cpu")
            alignments.append(Alignment(points, (shown_row(row),), ordered))
        return alignments

    def _inputs(self, rows: Any) -> Array:
        """Return inputs as an array (m, D); refuse what is none."""
        width = len(self.x)
        expected = f"rows of {quantity(width, 'number')}, {', '.join(self.x)}"
        hint = f"For example [[{', '.join(['1.0'] * width)}]]."
        try:
            array = np.asarray(rows)
            inputs = None if array.dtype.kind not in "biufO" else array.astype(np.float64)
        except (ValueError, TypeError, OverflowError):
            inputs = None
        if inputs is None:
            raise DataError("rows", expected, brief(repr(rows)), hint)
        if inputs.shape == (0,):
            return inputs.reshape(0, width)
        if inputs.shape[1:] != (width,):
            raise DataError("rows", expected, f"an array of shape {inputs.shape}", hint)
        if not np.isfinite(inputs).all():
            row = int(np.flatnonzero(~np.isfinite(inputs).all(-1))[0])
            raise DataError("rows", "finite numbers", f"{inputs[row].tolist()} in row {row + 1}", "Leave that row out.")
        return inputs

    def _names_in(self, table: FieldTable, more: int = 0) -> tuple[str, ...]:
        if table.header:
            table.expect_all((*self.x, self.y) if more else self.x)
            return self.x
        if len(table.columns) != len(self.x) + more:
            columns = "column" if len(self.x) + more == 1 else "columns"
            expected = f"the {columns} {', '.join(self.x)}" + (f" and {self.y}" if more else "")
            got = f"{quantity(len(table.columns), 'column')} without names"
            hint = "Name them in the first line, or give just these columns in this order."
            raise DataError(Place(table.name), expected, got, hint)
        return table.columns[: len(self.x)]


def shown_row(row: Sequence[float]) -> str:
    """Format the inputs of a row, without spaces: names in maps show theirs.

    Example:
        >>> shown_row([0.5, 12345.678])
        '0.5,1.235e+04'
    """
    return ",".join(f"{number:.4g}" for number in row)


def shown_point(row: Sequence[float], target: float) -> str:
    """Format the inputs and the target of a training point.

    Example:
        >>> shown_point([0.5, 2], 7.25)
        '0.5,2→7.25'
    """
    return f"{shown_row(row)}→{target:.4g}"


def _parts(trained: Trained) -> tuple[KernelSmoother, tuple[str, ...], str, Decimal, Beyond]:
    """Return the arguments of `Regressor` that a checkpoint holds."""
    config, tensors = trained.contents.config, dict(trained.contents.model)
    model, x, y = config.get("model"), config.get("x"), config.get("y")
    kernel, beyond = (model.get("kernel"), model.get("beyond")) if isinstance(model, dict) else (None, None)
    has_settings = beyond in get_args(Beyond) and config.get("decimal") in get_args(Decimal)
    fits = has_settings and isinstance(x, list) and isinstance(y, str) and _fits(tensors, len(x))
    if not fits or not isinstance(kernel, str) or kernel not in KERNELS:
        hint = "It was written by another version: fit it again, or install that version."
        raise CheckpointError(str(trained.folder), "points and bandwidths of a regression", "others", hint)
    smoother = KernelSmoother(tensors["inputs"], tensors["targets"], kernel, tensors["bandwidths"])
    names = tuple(str(name) for name in cast("list[object]", x))
    return smoother, names, str(y), cast("Decimal", config["decimal"]), cast("Beyond", beyond)


def _fits(tensors: dict[str, torch.Tensor], columns: int) -> bool:
    if set(tensors) != {"inputs", "targets", "bandwidths"}:
        return False
    inputs, targets, bandwidths = (tensors[name] for name in ("inputs", "targets", "bandwidths"))
    sizes = inputs.ndim == 2 and inputs.shape[1] == columns and targets.shape == (len(inputs), 1) and len(inputs) > 0
    doubles = all(tensor.dtype == torch.float64 and bool(tensor.isfinite().all()) for tensor in tensors.values())
    return sizes and doubles and bandwidths.shape == (columns,) and bool((bandwidths > 0).all())
