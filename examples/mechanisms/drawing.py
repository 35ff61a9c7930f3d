"""The common style of all figures in the documentation."""

from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

BLUE, ORANGE, GREEN, RED, GRAY = "#1f5fa8", "#d97706", "#2f855a", "#b83232", "#8a8f98"
COLORS = (BLUE, ORANGE, GREEN, RED, GRAY)
MAP = "cividis"


def panels(columns: int, rows: int = 1, width: float = 3.4, height: float = 2.7) -> tuple[Figure, list[Axes]]:
    """Create a figure with a row or grid of panels."""
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8)
        axis.title.set_fontsize(10)
    return figure, list(axes)


def label(axis: Axes, title: str, across: str = "", up: str = "") -> None:
    """Set title and axis labels in one size."""
    axis.set_title(title, fontsize=10)
    axis.set_xlabel(across, fontsize=9)
    axis.set_ylabel(up, fontsize=9)


def heat(axis: Axes, matrix: Tensor, title: str, largest: float | None = None) -> None:
    """Draw a matrix of weights: queries downward, keys across."""
    axis.imshow(matrix.detach().numpy(), cmap=MAP, vmin=0, vmax=largest, aspect="auto", interpolation="nearest")
    axis.spines[["top", "right"]].set_visible(True)
    for side in (axis.xaxis, axis.yaxis):
        side.set_major_locator(MaxNLocator(integer=True, nbins=6))
    label(axis, title, "key", "query")


def keep(figure: Figure, folder: Path, name: str) -> None:
    """Save as SVG with the same bytes each time."""
    folder.mkdir(parents=True, exist_ok=True)
    # A fixed salt and no date: the file changes only when the figure does.
    from matplotlib import rc_context

    with rc_context({"svg.hashsalt": "qkv", "svg.fonttype": "none"}):
        figure.savefig(folder / f"{name}.svg", metadata={"Date": None})


def run(main: Callable[[Path], None]) -> None:
    """Run a script as a command, with the folder of its figures after `--out`."""
    parser = ArgumentParser(description=(main.__doc__ or "").strip())
    parser.add_argument("--out", type=Path, default=Path("pictures"), help="folder of the figures (pictures)")
    folder = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    main(folder)
    print(f"The figures are in {folder}.")
