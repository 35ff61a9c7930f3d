"""A fitted regression, ready to predict, with confidence intervals and attention."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast, final, get_args

import numpy as np
import torch

from qkv.data.holdout import seen_in_training
from qkv.data.table import FieldTable, parse_table, read_table
from qkv.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    Place,
    brief,
    expect_name,
    nearest,
    quantity,
    setting,
)
from qkv.metrics.figure import Figure
from qkv.models.smoother import KernelSmoother
from qkv.recording.recorder import record
from qkv.settings import build
from qkv.tasks.as_trained import with_columns
from qkv.tasks.notes import note
from qkv.tasks.regress.data import category_name, separator_in
from qkv.tasks.regress.model import estimator_class, judge_regression
from qkv.tasks.regress.settings import (
    LEVEL,
    Beyond,
    IntervalKind,
    RegressEvaluation,
    RegressFiles,
    RegressModel,
    TableSettings,
)
from qkv.tasks.runs import Trained
from qkv.tasks.settings import columns_of
from qkv.tasks.task import Scored
from qkv.tasks.text_attention import expect_tokens, title_of
from qkv.values.checked import answering
from qkv.view.alignment import Alignment
from qkv.view.scene import Scene

Array = np.ndarray[Any, np.dtype[np.float64]]
Rows = np.ndarray[Any, np.dtype[Any]]
"""Inputs (m, D): numbers, or objects where some are the names of categories."""
_NEAREST = 16


@final
@dataclass(frozen=True, eq=False)
class Prediction:
    """The prediction for one row.

    Args:
        x: the inputs, one per column, categories by their names.
        y: the prediction.
        low, high: the ends of the confidence interval; NaN if there is none.
        supported: whether points are within the kernel's reach; elsewhere `beyond` decides on the prediction.
    """

    x: tuple[float | str, ...]
    y: float
    low: float
    high: float
    supported: bool


@final
@answering
class Regressor:
    """A kernel regression, ready to use.

    Args:
        model: its attention as a module, for `qkv.record`.
        x, y: the names of the columns.
        table: how the table of the training was written.
        beyond: the prediction out of the kernel's support.
        categories: the categories of the columns that hold some.

    Attributes:
        estimator: the fitted `qkv.models.KernelRegression`.

    Raises:
        UnsupportedError: scikit-learn is not installed.

    Example:
        >>> import qkv  # doctest: +SKIP
        >>> qkv.load("runs/rent").predict([[25.0], [60.0]])  # doctest: +SKIP
        array([412.7, 810.2])
    """

    def __init__(
        self,
        model: KernelSmoother,
        x: Sequence[str],
        y: str,
        table: TableSettings,
        beyond: Beyond,
        categories: Mapping[str, Sequence[str]] = MappingProxyType({}),
    ) -> None:
        self.model = model.eval()
        self.x = tuple(x)
        self.y = y
        self.table = table
        self.categories = {name: tuple(names) for name, names in categories.items()}
        self.estimator = estimator_class().of(self.model, beyond)

    @classmethod
    def of(cls, trained: Trained, device: str | torch.device = "cpu") -> "Regressor":
        """Build the regression of a checkpoint, on the CPU whatever the device, see `Answerer.of`.

        Raises:
            UnsupportedError: scikit-learn is not installed.
        """
        return cls(*_parts(trained))

    @property
    def bandwidths(self) -> dict[str, float]:
        """The bandwidth of each input column, in its units; λ of a column of categories."""
        return dict(zip(self.x, np.atleast_1d(self.estimator.bandwidth_).tolist(), strict=True))

    def predict(self, rows: Any) -> Array:
        """Predict the target.

        Args:
            rows: inputs (m, D), columns in the order of `x`, categories by their names.

        Returns:
            (m,).

        Raises:
            DataError: the inputs are not such numbers, or not finite, or a category is unknown.
        """
        inputs = self._inputs(rows)
        return cast("Array", self.estimator.predict(inputs) if len(inputs) else np.empty(0))

    def predict_fully(
        self,
        rows: Any,
        *,
        interval: str = "robust",
        level: float = LEVEL,
        seed: int = 0,
        simultaneous: bool = False,
    ) -> list[Prediction]:
        """Predict the target, with confidence intervals.

        Args:
            rows: inputs (m, D).
            interval: "robust", "normal", "bootstrap" or "none", see `qkv.models.intervals`.
            level: the probability of covering the curve.
            seed: random seed of the bootstrap.
            simultaneous: whether that is the probability for the whole curve.

        Returns:
            One prediction per row.

        Raises:
            DataError: the inputs are not such numbers, or not finite, or a category is unknown.
            ConfigError: the interval is unknown or does not use a setting, or the level is outside its range.
        """
        expect_name(setting("interval"), interval, get_args(IntervalKind))
        if seed and interval != "bootstrap":
            hint = "Only " + setting("interval", "bootstrap") + " draws by chance."
            raise ConfigError(setting("seed"), f"no seed for the interval {interval}", f"{seed}", hint)
        if level != LEVEL and interval == "none":
            hint = "Omit it, or " + setting("interval", "none") + "."
            raise ConfigError(setting("level"), "no level without an interval", f"{level:g}", hint)
        if simultaneous and interval not in ("robust", "normal"):
            hint = "Omit it, or " + setting("interval") + "."
            raise ConfigError(setting("simultaneous"), "the interval robust or normal", interval, hint)
        inputs = self._inputs(rows)
        if not len(inputs):
            return []
        low = high = np.full(len(inputs), np.nan)
        if interval != "none":
            low, high = self.estimator.interval(inputs, level, interval, seed, simultaneous=simultaneous)
        predicted, supported = self.estimator.predict_supported(inputs)
        columns = (array.tolist() for array in (predicted, low, high, supported))
        return [Prediction(x, *figures) for x, *figures in zip(self._named(inputs), *columns, strict=True)]

    def curve(self, points: int, column: str | None = None) -> Rows:
        """Return evenly spaced inputs over the range of a column, with the others at their middle.

        That is the median, or the most frequent category.

        Args:
            points: number of inputs, at least 2.
            column: the name of a column of numbers; None for the first one.

        Returns:
            (points, D).

        Raises:
            ConfigError: there are too few points, or no such column of numbers.
        """
        if points < 2:
            raise ConfigError(setting("curve"), "at least 2 points", f"{points}", "A hundred suit a picture.")
        numeric = [name for name in self.x if name not in self.categories]
        if not numeric:
            raise ConfigError(setting("curve"), "a column of numbers", "categories", "Predict a row for each.")
        expect_name("column", column := column or numeric[0], numeric, "a column of numbers")
        inputs = self.model.inputs.numpy()
        middle = np.median(inputs, 0)
        for place in self.model.categorical:
            codes, counts = np.unique(inputs[:, place], return_counts=True)
            middle[place] = codes[counts.argmax()]
        rows = np.tile(middle, (points, 1))
        place = self.x.index(column)
        rows[:, place] = np.linspace(inputs[:, place].min(), inputs[:, place].max(), points)
        return self._with_names(rows)

    def rows_of(self, table: FieldTable, how: TableSettings | None = None) -> tuple[Rows, int]:
        """Read the input columns of a table: by name, or by place if its first line has no names.

        Args:
            table: the table, or a part of it.
            how: how it is written; None as in training.

        Returns:
            The rows, and how many were left out because they lack a number.

        Raises:
            DataError: a column is missing, or a field is not a number or no category of training; the message gives
                file and line.
        """
        names = self._names_in(table)
        categories = self._categories_in(names)
        read = (how or self.table).numbers(table, names, categories, fixed=how is None, part=True)
        return self._with_names(np.array(read.rows).reshape(-1, len(names))), read.skipped

    def evaluate(self, table: FieldTable) -> tuple[Array, tuple[Figure, ...]]:
        """Score predictions on a table with inputs and target, in the format of training.

        Returns:
            The predictions (m,), and the figures.

        Raises:
            DataError: as for `rows_of`.
        """
        predicted, target = self._compared(table)
        return predicted, judge_regression(predicted, target, "")

    def _compared(self, table: FieldTable, how: TableSettings | None = None) -> tuple[Array, Array]:
        """Return predictions and targets of a table, and say if it is the one of training."""
        names = (*self._names_in(table, more=1), self.y if table.header else table.columns[-1])
        categories = self._categories_in(names)
        read = (how or self.table).numbers(table, names, categories, fixed=how is None)
        if read.skipped:
            note(f"qkv: {table.name}: {read.without_skipped}")
        points = torch.cat([self.model.inputs, self.model.targets], 1).tolist()
        if (message := seen_in_training(map(tuple, points), read.rows, "rows")) is not None:
            note(f"qkv: {table.name}: {message}")
        numbers = np.array(read.rows)
        return self.estimator.predict(numbers[:, :-1]), numbers[:, -1]

    def _categories_in(self, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Return the categories of columns that stand for those of training."""
        pairs = zip(names, self.x, strict=False)
        return {name: self.categories[column] for name, column in pairs if column in self.categories}

    def _with_names(self, inputs: Array) -> Rows:
        """Return inputs as `predict` takes them."""
        return np.array(self._named(inputs), dtype=object) if self.categories else inputs

    def _named(self, inputs: Array) -> list[tuple[float | str, ...]]:
        """Return inputs with the names of their categories."""
        kinds = [self.categories.get(name) for name in self.x]
        return [
            tuple(number if kind is None else kind[int(number)] for number, kind in zip(row, kinds, strict=True))
            for row in inputs.tolist()
        ]

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
        how = with_columns(files, columns_of(self.table))
        predicted, target = self._compared(read_table(Path(str(files.data)), separator_in(how)), how)
        figures = judge_regression(predicted, target, "")
        lines = (f"{number:.10g}" for number in predicted)
        error = predicted - target
        credits = {"rmse": (-(error**2)).tolist, "mae": (-abs(error)).tolist}
        return Scored(list(figures), lines, credits)

    def scene(self, text: str, tokens: int | None = None) -> Scene:
        """Predict rows, and return which points they attend to, for the viewer.

        Args:
            text: a table of rows.
            tokens: number of rows to read; None for all.

        Raises:
            DataError: there is no row, or a field is no number.
        """
        table = parse_table(expect_tokens(text.split("\n")), setting("text"), separator_in(self.table))
        rows = self._inputs(self.rows_of(table)[0][:tokens])
        with torch.no_grad(), record(self.model) as trace:
            self.model(torch.from_numpy(rows)[None])
        named = self._named(self.model.inputs.numpy())
        points = [shown_point(x, y) for x, y in zip(named, self.model.targets[:, 0].tolist(), strict=True)]
        shown = {"source": points, "target": [shown_row(row) for row in self._named(rows)]}
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
        inputs, targets = self.model.inputs, self.model.targets[:, 0].tolist()
        named = self._named(inputs.numpy())
        weights, nearest_points = self.estimator.attention_map(queries).topk(min(most, len(inputs)))
        alignments = []
        for row, shares, indices in zip(self._named(queries), weights, nearest_points, strict=True):
            order = indices[torch.argsort(inputs[indices, 0])]
            share_of = dict(zip(indices.tolist(), shares.tolist(), strict=True))
            points = tuple(shown_point(named[point], targets[point]) for point in order.tolist())
            ordered = torch.tensor([[share_of[point] for point in order.tolist()]], dtype=torch.float64, device="cpu")
            alignments.append(Alignment(points, (shown_row(row),), ordered, ("points", "estimate")))
        return alignments

    def _inputs(self, rows: Any) -> Array:
        """Return inputs as an array (m, D); refuse what is none."""
        width = len(self.x)
        expected = f"rows of {quantity(width, 'number')}, {', '.join(self.x)}"
        hint = f"For example [[{', '.join(['1.0'] * width)}]]."
        try:
            array = np.asarray(self._coded(rows) if self.categories else rows)
            inputs = None if array.dtype.kind not in "biufO" else array.astype(np.float64)
        except DataError:  # about a category
            raise
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

    def _coded(self, rows: Any) -> list[list[Any]]:
        """Return rows with the positions of their categories."""
        coded = [list(row) for row in rows]
        for number, row in enumerate(coded, start=1):
            for place, (cell, name) in enumerate(zip(row, self.x, strict=False)):
                if name not in self.categories:
                    continue
                text = category_name(cell)
                if text not in self.categories[name]:
                    expected = f'a category of column "{name}": {", ".join(self.categories[name][:12])}'
                    hint = nearest(text, self.categories[name])
                    raise DataError("rows", expected, f"{cell!r} in row {number}", hint)
                row[place] = self.categories[name].index(text)
        return coded

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


def covered(interval: str, level: float, simultaneous: bool) -> str:
    """Say what intervals cover.

    Example:
        >>> covered("robust", 0.95, False)
        '95 % intervals for the true curve, at each point by itself'
    """
    curve = "the true curve" if interval == "robust" else "the smoothed curve, without its bias"
    where = "as a whole" if simultaneous else "at each point by itself"
    return f"{100 * level:g} % intervals for {curve}, {where}"


def shown_row(row: Sequence[float | str]) -> str:
    """Format the inputs of a row, without spaces: names in maps show theirs.

    Example:
        >>> shown_row([0.5, 12345.678, "New York"])
        '0.5,1.235e+04,New_York'
    """
    return ",".join("_".join(cell.split()) if isinstance(cell, str) else f"{cell:.4g}" for cell in row)


def shown_point(row: Sequence[float | str], target: float) -> str:
    """Format the inputs and the target of a training point.

    Example:
        >>> shown_point([0.5, 2], 7.25)
        '0.5,2→7.25'
    """
    return f"{shown_row(row)}→{target:.4g}"


def _parts(
    trained: Trained,
) -> tuple[KernelSmoother, tuple[str, ...], str, TableSettings, Beyond, Mapping[str, Sequence[str]]]:
    """Return the arguments of `Regressor` that a checkpoint holds."""
    config, table, tensors = trained.contents.config, trained.model_table, dict(trained.contents.model)
    # As the file names them; older ones have decimal there too.
    columns = {name: config[name] for name in ("x", "y", "decimal") if name in config}
    categories: Any = config.get("categories", {})
    used = {"kernel": table.get("kernel"), "beyond": table.get("beyond"), "degree": table.get("degree", 0)}
    try:
        files, model = build(RegressFiles, {**trained.columns, **columns}), build(RegressModel, used)
        fits = files.y is not None and _known(categories, files.x) and _fits(tensors, files.x, categories)
    except ConfigError:
        fits = False
    if not fits:
        hint = "It was written by another version: fit it again, or install that version."
        raise CheckpointError(str(trained.folder), "points and bandwidths of a regression", "others", hint)
    smoother = KernelSmoother(
        tensors["inputs"],
        tensors["targets"],
        model.kernel,
        tensors["bandwidths"],
        weights=tensors.get("weights"),
        degree=model.degree,
        neighbors=int(tensors["neighbors"]) if "neighbors" in tensors else None,
        categorical=[files.x.index(name) for name in categories],
    )
    return smoother, tuple(files.x), str(files.y), files, model.beyond, categories


def _known(categories: Any, x: Sequence[str]) -> bool:
    """Return whether a checkpoint's categories are lists of texts of columns."""
    return isinstance(categories, dict) and all(
        name in x and isinstance(names, list) and names and all(isinstance(text, str) for text in names)
        for name, names in categories.items()
    )


def _fits(tensors: Mapping[str, torch.Tensor], x: Sequence[str], categories: Mapping[str, Sequence[str]]) -> bool:
    """Return whether tensors are those of a smoother with these columns."""
    needed, optional = {"inputs", "targets", "bandwidths"}, {"weights", "neighbors"}
    if not needed <= set(tensors) <= needed | optional:
        return False
    numbers = {name: tensor for name, tensor in tensors.items() if name != "neighbors"}
    if not all(tensor.dtype == torch.float64 and bool(tensor.isfinite().all()) for tensor in numbers.values()):
        return False
    inputs, targets, bandwidths = (tensors[name] for name in ("inputs", "targets", "bandwidths"))
    if inputs.ndim != 2 or inputs.shape[1] != len(x) or targets.shape != (len(inputs), 1) or len(inputs) == 0:
        return False
    coded = [x.index(name) for name in categories]
    numeric = [column for column in range(len(x)) if column not in coded]
    if bandwidths.shape != (len(x),) or not bool((bandwidths[numeric] > 0).all()):
        return False
    for column, names in zip(coded, categories.values(), strict=True):
        codes = inputs[:, column]
        if not (0 <= float(bandwidths[column]) <= 1 and bool(((codes >= 0) & (codes < len(names))).all())):
            return False
    weights, neighbors = tensors.get("weights"), tensors.get("neighbors")
    places = len(inputs[:, numeric].unique(dim=0))
    return (weights is None or (weights.shape == (len(inputs),) and bool((weights > 0).all()))) and (
        neighbors is None or (neighbors.dtype == torch.int64 and neighbors.ndim == 0 and 1 <= int(neighbors) <= places)
    )
