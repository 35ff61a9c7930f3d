"""The plot for the table: speedup over the full tensor, by mechanism, at each n."""

from pathlib import Path
from typing import Any

from benchmarks.engine.findings import Rows
from benchmarks.engine.rivals import FULL
from benchmarks.engine.rows import TABLE, TABLE_SIZES

COLORS = {"forward": "#1f6fb4", "forward + backward": "#d9731a"}


def draw(rows: Rows, path: Path) -> None:
    """Draw one panel for each n: a dot at the median, a line over the quartiles.

    Args:
        rows: the stored rows.
        path: an SVG file.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    with mpl.rc_context({"svg.hashsalt": "qkv", "font.size": 9}):
        figure, panels = plt.subplots(1, len(TABLE_SIZES), figsize=(11, 6), sharey=True, layout="constrained")
        for panel, n in zip(panels, TABLE_SIZES, strict=True):
            _panel(panel, rows, n)
        panels[0].set_yticks(range(len(TABLE)), [name.replace("_", " ") for name in TABLE])
        panels[0].invert_yaxis()
        figure.legend(*panels[-1].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)


def _panel(panel: Any, rows: Rows, n: int) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for offset, (what, color) in zip((-0.17, 0.17), COLORS.items(), strict=True):
        found = [
            (place + offset, rows[f"{name}_{n}"]["passes"][what]["times"][FULL])
            for place, name in enumerate(TABLE)
            if FULL in rows.get(f"{name}_{n}", {}).get("passes", {}).get(what, {}).get("times", {})
        ]
        places = [place for place, _ in found]
        panel.hlines(places, [x["low"] for _, x in found], [x["high"] for _, x in found], color=color, alpha=0.5)
        panel.plot([x["middle"] for _, x in found], places, "o", color=color, markersize=4, label=what)
    panel.axvline(1, color="#888888", linewidth=0.8)
    panel.set_xscale("log")
    # Few plain numbers: powers of ten with factors overlap.
    panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=12))
    panel.xaxis.set_major_formatter(FuncFormatter(lambda times, _: f"{times:g}"))
    panel.xaxis.set_minor_formatter(NullFormatter())
    panel.set(title=f"n = {n:,}", xlabel="times as fast as the full tensor")
    panel.grid(axis="y", color="#eeeeee")
