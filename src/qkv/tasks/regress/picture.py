"""The picture of a regression: points, curve and confidence band, one panel per input column."""

from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from qkv.checkpoint.disk import save_file
from qkv.errors import ConfigError, setting
from qkv.pictures import rendered, saved
from qkv.tasks.regress.predict import Regressor, covered
from qkv.tasks.regress.settings import LEVEL

_POINTS = 200
_CURVE, _DOTS = "#1f5fa8", "#8a919c"


def save_picture(
    regressor: Regressor,
    path: Path,
    *,
    interval: str = "robust",
    level: float = LEVEL,
    seed: int = 0,
    simultaneous: bool = False,
) -> None:
    """Draw a regression to a file.

    With several input columns each column of numbers has its own panel, whose curve holds the others at their medians,
    or at the most frequent category.

    Args:
        regressor: the regression.
        path: a file that ends in .svg or .png.
        interval, level, seed, simultaneous: the confidence band, as for `Regressor.predict_fully`.

    Raises:
        ConfigError: the file cannot be written, or all columns hold categories.
        OutOfMemoryError: memory ran out.
    """
    kind = path.suffix.lower().removeprefix(".")
    if not regressor.model.numeric:
        raise ConfigError(setting("picture"), "a column of numbers", "categories", "There is no curve over these.")
    how = {"interval": interval, "level": level, "seed": seed, "simultaneous": simultaneous}
    save_file(path, rendered(lambda: _rendered(regressor, kind, how)))


def _rendered(regressor: Regressor, kind: str, how: dict[str, Any]) -> bytes:
    columns = regressor.model.numeric
    figure = Figure(figsize=(4.2 * len(columns), 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(columns), squeeze=False, sharey=True)[0]
    for column, axis in zip(columns, axes, strict=True):
        _panel(regressor, column, axis, how)
    if how["interval"] != "none":
        figure.supxlabel(covered(how["interval"], how["level"], how["simultaneous"]), fontsize=7)
    axes[0].set_ylabel(regressor.y, parse_math=False)
    return saved(figure, kind, 160)


def _panel(regressor: Regressor, column: int, axis: Any, how: dict[str, Any]) -> None:
    inputs, targets = regressor.model.inputs.numpy(), regressor.model.targets.numpy()[:, 0]
    rows = regressor.curve(_POINTS, regressor.x[column])
    predictions = regressor.predict_fully(rows, **how)
    x = rows[:, column].astype(float)
    axis.plot(inputs[:, column], targets, ".", color=_DOTS, ms=4)
    if how["interval"] != "none":
        axis.fill_between(
            x,
            [prediction.low for prediction in predictions],
            [prediction.high for prediction in predictions],
            color=_CURVE,
            alpha=0.2,
            lw=0,
        )
    axis.plot(x, [prediction.y for prediction in predictions], color=_CURVE, lw=1.6)
    name = regressor.x[column]
    count = regressor.estimator.neighbors_
    width = f"bandwidth {regressor.bandwidths[name]:.4g}" if count is None else f"{count:,} neighbors"
    title = f"{regressor.estimator.kernel}, {width}"
    axis.set_title(title, fontsize=9, parse_math=False)
    axis.set_xlabel(name, parse_math=False)
