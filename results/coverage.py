"""The coverage of confidence intervals of kernel regression: at each place, at the worst, and of the whole curve."""

import json
import os
import time
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from qkv.models.regression import KernelRegression
from results.regression import truth
from results.row import ResultRow, parts_of_page

Array = NDArray[np.float64]
ROWS = (ResultRow("interval_coverage", "Confidence intervals of kernel regression"),)
CURVES: Mapping[str, Callable[[Array], Array]] = {"2 sin x + x^0.8": truth, "sin 4x": lambda x: np.sin(4 * x)}
DEGREES = {0: "mean", 1: "line"}
INTERVALS: Mapping[str, tuple[Literal["normal", "robust"], bool]] = {
    "normal": ("normal", False),
    "robust": ("robust", False),
    "robust, simultaneous": ("robust", True),
}


def run_row(row: ResultRow, data: Path, run: Path, *, train: bool) -> None:
    """Count how often each interval covers the curve, and store the figures in the repository.

    Args:
        row: the row to run.
        data, run, train: unused; the points are generated here, and there is no run folder.
    """
    settings = tomllib.loads(row.config.read_text(encoding="utf-8"))
    start = time.process_time()
    figures = {
        curve: {
            fitted: coverage(curve, degree, settings["data"], settings["interval"]["level"])
            for degree, fitted in DEGREES.items()
        }
        for curve in CURVES
    }
    record = {
        "figures": figures,
        "settings": {**settings["data"], **settings["interval"]},
        "processor_seconds": round(time.process_time() - start, 1),
        "machine": f"{os.cpu_count()} cores, PyTorch {torch.__version__}",
    }
    row.kept.mkdir(parents=True, exist_ok=True)
    row.record.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(figures, indent=1))


def coverage(curve: str, degree: int, data: Mapping[str, Any], level: float) -> dict[str, dict[str, float]]:
    """Fit samples of a curve, with the bandwidth that cross-validation chooses, and count what is covered.

    Args:
        curve: a name in `CURVES`.
        degree: of the polynomial.
        data: number of samples, points and places, the range and the noise.
        level: the probability with which intervals are to cover.

    Returns:
        For each interval the shares of samples in which a place is covered, on average and at the worst place, and in
        which all places are; and the mean width.
    """
    places = np.linspace(data["least"], data["most"], data["places"])
    inside: dict[str, list[NDArray[np.bool_]]] = {name: [] for name in INTERVALS}
    widths: dict[str, list[float]] = {name: [] for name in INTERVALS}
    for seed in range(data["draws"]):
        noise = np.random.default_rng(seed)
        x = noise.uniform(data["least"], data["most"], data["points"])
        y = CURVES[curve](x) + data["noise"] * noise.standard_normal(data["points"])
        model = KernelRegression(degree=degree).fit(x[:, None], y)
        for name, (how, simultaneous) in INTERVALS.items():
            low, high = model.interval(places[:, None], level, how, simultaneous=simultaneous)
            inside[name].append((low <= CURVES[curve](places)) & (CURVES[curve](places) <= high))
            widths[name].append(float(np.mean(high - low)))
    return {
        name: {
            "mean": float(np.mean(rows)),
            "worst": float(np.mean(rows, 0).min()),
            "whole": float(np.mean(np.all(rows, 1))),
            "width": float(np.mean(widths[name])),
        }
        for name, rows in inside.items()
    }


def section() -> str:
    """Return the section of the page on intervals."""
    return parts_of_page(ROWS, _part)


def _part(row: ResultRow, record: Any) -> str:
    settings = record["settings"]
    lines = "".join(
        f"| {curve} | {fitted} | {interval} | {shares['mean']:.1%} | {shares['worst']:.1%} | {shares['whole']:.1%} "
        f"| {shares['width']:.2f} |\n"
        for curve, by_degree in record["figures"].items()
        for fitted, by_interval in by_degree.items()
        for interval, shares in by_interval.items()
    )
    return f"""How often intervals of {settings["level"]:.0%} cover the true curve, in {settings["draws"]} samples
of {settings["points"]} points with noise of {settings["noise"]}, at {settings["places"]} places from
{settings["least"]:g} to {settings["most"]:g}: on average over places, at the worst one, and at all of them at once. The
kernel is Gaussian, with the bandwidth that cross-validation chooses for each sample. The mean is `--degree 0`, the line
`--degree 1`.

| curve | fit | interval | on average | worst place | whole curve | mean width |
|---|---|---|---|---|---|---|
{lines}
- command: `python -m results --data FOLDER --row {row.name}`
- settings: [`results/{row.name}.toml`](../../results/{row.name}.toml), seeds 0 to {settings["draws"] - 1}
- processor time: {record["processor_seconds"]:.0f} s; machine: {record["machine"]}

"""
