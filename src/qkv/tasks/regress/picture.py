"""The picture of a regression: points, curve and confidence band, one panel per input column."""

import io
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from qkv.checkpoint.disk import save_file
from qkv.pictures import rendered
from qkv.tasks.regress.predict import Regressor
from qkv.tasks.regress.settings import LEVEL

_POINTS = 200
_CURVE, _DOTS = "#1f5fa8", "#8a919c"


def save_picture(
    regressor: Regressor, path: Path, *, interval: str = "normal", level: float = LEVEL, seed: int = 0
) -> None:
    """Draw a regression to a file.

    With several input columns each has its own panel, whose curve holds the others at their medians.

    Args:
        regressor: the regression.
        path: a file that ends in .svg or .png.
        interval, level, seed: the confidence band, as for `Regressor.predict_fully`.

    Raises:
        ConfigError: the file cannot be written.
        OutOfMemoryError: memory ran out.
    """
    kind = path.suffix.lower().removeprefix(".")
    save_file(path, rendered(lambda: _rendered(regressor, kind, interval, level, seed)))


def _rendered(regressor: Regressor, kind: str, interval: str, level: float, seed: int) -> bytes:
    columns = len(regressor.x)
    figure = Figure(figsize=(4.2 * columns, 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, columns, squeeze=False, sharey=True)[0]
    for column, axis in enumerate(axes):
        _panel(regressor, column, axis, interval, level, seed)
    axes[0].set_ylabel(regressor.y, parse_math=False)
    buffer = io.BytesIO()
    # The same regression gives the same bytes.
    with matplotlib.rc_context({"svg.hashsalt": "qkv", "svg.fonttype": "path"}):
        metadata = {"Date": None, "Creator": "qkv"} if kind == "svg" else None
        figure.savefig(buffer, format=kind, dpi=160, metadata=metadata)
    return buffer.getvalue()


def _panel(regressor: Regressor, column: int, axis: Any, interval: str, level: float, seed: int) -> None:
    inputs = regressor.model.get_buffer("inputs").numpy()
    targets = regressor.model.get_buffer("targets").numpy()[:, 0]
    rows = np.tile(np.median(inputs, 0), (_POINTS, 1))
    rows[:, column] = np.linspace(inputs[:, column].min(), inputs[:, column].max(), _POINTS)
    predictions = regressor.predict_fully(rows, interval=interval, level=level, seed=seed)
    x = rows[:, column]
    axis.plot(inputs[:, column], targets, ".", color=_DOTS, ms=4)
    if interval != "none":
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
    title = f"{regressor.estimator.kernel}, bandwidth {regressor.bandwidths[name]:.4g}"
    axis.set_title(title, fontsize=9, parse_math=False)
    axis.set_xlabel(name, parse_math=False)
