"""The files of a comparison: its table as Markdown, CSV and JSON, and a picture of every training and each mean."""

from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from qkv.checkpoint.disk import replace_file
from qkv.checkpoint.json_values import encode
from qkv.pictures import rendered, saved
from qkv.tasks.compare.comparison import Comparison

_MEAN, _DOTS, _CONTROL = "#1f5fa8", "#8a919c", "#b45309"
_MOST = 60
"""Cells that a picture shows, the best ones."""


def save(comparison: Comparison, folder: Path) -> list[Path]:
    """Write the files into a folder, and return them."""
    contents = {
        "comparison.md": comparison.to_markdown().encode(),
        "comparison.csv": comparison.to_csv().encode(),
        "comparison.json": encode(comparison.to_json_value(), "comparison.json"),
        "comparison.svg": drawn(comparison),
    }
    for name, content in contents.items():
        replace_file(folder / name, content)
    return [folder / name for name in contents]


def drawn(comparison: Comparison) -> bytes:
    """Draw a comparison as SVG: one line for each cell that was trained to its end, the best 60 from the top."""
    return rendered(lambda: _svg(comparison))


def _svg(comparison: Comparison) -> bytes:
    rows = [row for row in comparison.rows if row.main][:_MOST]
    figure = Figure(figsize=(7.5, 1.2 + 0.3 * max(1, len(rows))), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for index, row in enumerate(rows):
        values = [each.value for each in row.main]
        axes.plot(values, [index] * len(values), "o", color=_DOTS, markersize=4, alpha=0.7)
        color = _CONTROL if row.cell.control else _MEAN
        axes.errorbar(row.mean, index, xerr=None if len(values) < 2 else row.deviation, fmt="D", color=color, capsize=3)
    axes.set_yticks(range(len(rows)), [row.cell.name + (" (control)" if row.cell.control else "") for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel(comparison.header[len(comparison.axes)])
    axes.grid(axis="x", alpha=0.3)
    return saved(figure, "svg")
