"""The Nadaraya-Watson regression row: the error of each kernel against its bandwidth, and the bandwidth chosen."""

import json
import os
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from examples.mechanisms.drawing import COLORS, GRAY, keep, label, panels
from matplotlib.axes import Axes
from numpy.typing import NDArray

from qkv.models.regression import KernelRegression
from qkv.scores.catalog import KERNELS
from results.row import ResultRow, parts_of_page

NAMES = tuple(sorted(KERNELS))
_GRID = 200

Array = NDArray[np.float64]


ROWS = (ResultRow("nadaraya_watson", "Nadaraya-Watson regression, four kernels"),)


@dataclass(frozen=True)
class Draw:
    """The results for one sample of noisy points.

    Args:
        errors: kernel to the squared error at each bandwidth, against the truth.
        chosen: kernel to the bandwidth chosen by leave-one-out.
        reached: kernel to the squared error at that bandwidth.
    """

    errors: dict[str, list[float]]
    chosen: dict[str, float]
    reached: dict[str, float]


def truth(x: Array) -> Array:
    """Return the true function of the lectures: 2 sin x + x^0.8."""
    return np.asarray(2 * np.sin(x) + x**0.8)


def run_row(row: ResultRow, data: Path, run: Path, *, train: bool) -> None:
    """Fit every kernel at every bandwidth to every sample, and store figures and picture in the repository.

    Args:
        row: the row to run.
        data, run, train: unused; the points are generated here, and there is no run folder.
    """
    settings = tomllib.loads(row.config.read_text(encoding="utf-8"))
    grid = settings["bandwidths"]
    bandwidths = np.geomspace(grid["narrowest"], grid["widest"], grid["count"]).tolist()
    start = time.process_time()
    draws = [one_draw(seed, settings["data"], bandwidths) for seed in range(settings["data"]["draws"])]
    record = {
        "figures": {name: summary(name, draws) for name in NAMES},
        "bandwidths": bandwidths,
        "errors": {name: np.mean([draw.errors[name] for draw in draws], 0).tolist() for name in NAMES},
        "settings": settings["data"],
        "processor_seconds": round(time.process_time() - start, 1),
        "machine": f"{os.cpu_count()} cores, PyTorch {torch.__version__}",
    }
    row.kept.mkdir(parents=True, exist_ok=True)
    row.record.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    _picture(row.kept, draws, bandwidths)
    print(json.dumps(record["figures"], indent=1))


def one_draw(seed: int, data: dict[str, Any], bandwidths: list[float]) -> Draw:
    """Sample points, and fit every kernel to them.

    Args:
        seed: seed of the sample.
        data: number of points, their range and noise.
        bandwidths: the bandwidths to try.

    Returns:
        Errors, choices, and the errors of the choices.
    """
    noise = np.random.default_rng(seed)
    x = np.sort(noise.uniform(data["least"], data["most"], data["points"]))
    y = truth(x) + data["noise"] * noise.standard_normal(data["points"])
    places = np.linspace(data["least"], data["most"], _GRID)
    fitted = {name: KernelRegression(name, degree=0).fit(x[:, None], y) for name in NAMES}
    errors = {
        name: [
            mistake(KernelRegression(name, bandwidth, degree=0).fit(x[:, None], y), places) for bandwidth in bandwidths
        ]
        for name in NAMES
    }
    chosen = {name: float(model.bandwidth_) for name, model in fitted.items()}
    return Draw(errors, chosen, {name: mistake(model, places) for name, model in fitted.items()})


def mistake(model: KernelRegression, places: Array) -> float:
    """Return the mean squared difference from the truth."""
    return float(np.square(model.predict(places[:, None]) - truth(places)).mean())


def summary(name: str, draws: list[Draw]) -> dict[str, float]:
    """Return mean and spread over samples of the leave-one-out choice, and the least error of any bandwidth."""
    chosen = [draw.chosen[name] for draw in draws]
    reached = [draw.reached[name] for draw in draws]
    return {
        "bandwidth": float(np.mean(chosen)),
        "bandwidth_spread": float(np.std(chosen)),
        "error": float(np.mean(reached)),
        "error_spread": float(np.std(reached)),
        "least_error": float(np.mean([min(draw.errors[name]) for draw in draws])),
        "narrowest_error": float(np.mean([draw.errors[name][0] for draw in draws])),
        "widest_error": float(np.mean([draw.errors[name][-1] for draw in draws])),
    }


def _picture(folder: Path, draws: list[Draw], bandwidths: list[float]) -> None:
    figure, (one, mean) = panels(2, width=4.2, height=3.0)
    for color, name in zip(COLORS, NAMES, strict=False):
        _curve(one, bandwidths, draws[:1], name, color)
        _curve(mean, bandwidths, draws, name, color)
    label(one, "one draw", "bandwidth h", "mean squared error against the truth")
    label(mean, f"mean of {len(draws)} draws", "bandwidth h")
    one.legend(fontsize=8, frameon=False)
    mean.plot([], [], "o", color=GRAY, label="chosen by leave-one-out")
    mean.legend(fontsize=8, frameon=False)
    keep(figure, folder, "errors")


def _curve(axis: Axes, bandwidths: list[float], draws: list[Draw], name: str, color: str) -> None:
    """Draw error against bandwidth; the dot is the leave-one-out choice, averaged like the curve."""
    axis.loglog(bandwidths, np.mean([draw.errors[name] for draw in draws], 0), color=color, label=name, lw=1.3)
    bandwidth = np.exp(np.mean([np.log(draw.chosen[name]) for draw in draws]))
    axis.plot(bandwidth, np.mean([draw.reached[name] for draw in draws]), "o", color=color, ms=5)


def section() -> str:
    """Return the section of the page on kernel regression."""
    return parts_of_page(ROWS, _part)


def _part(row: ResultRow, record: Any) -> str:
    folder = f"../../results/runs/{row.name}"
    lines = "".join(_line(name, figures) for name, figures in record["figures"].items())
    narrow, wide = record["bandwidths"][0], record["bandwidths"][-1]
    return f"""{_text(record)}

| kernel | bandwidth chosen | error there | least error | at h = {narrow:.2f} | at h = {wide:.0f} |
|---|---|---|---|---|---|
{lines}
- command: `python -m results --data FOLDER --row {row.name}`
- settings: [`results/{row.name}.toml`](../../results/{row.name}.toml), seeds 0 to {record["settings"]["draws"] - 1}
- processor time: {record["processor_seconds"]:.0f} s; machine: {record["machine"]}

![Error of four kernels against the bandwidth, with the choice of leave-one-out]({folder}/errors.svg)

"""


def _text(record: dict[str, Any]) -> str:
    data, count = record["settings"], len(record["bandwidths"])
    return f"""`qkv.models.KernelRegression` of degree 0 fitted to {data["points"]} points of 2 sin x + x^0.8 with
noise of {data["noise"]}: the mean squared error against the true function, mean ± standard deviation over
{data["draws"]} samples. Leave-one-out chooses the bandwidth from the noisy points alone. The least error is that of the
best of {count} bandwidths for each sample, which takes the true function to find. There is no published figure. The
triangular kernel is what the lectures call Epanechnikov's."""


def _line(name: str, figures: dict[str, float]) -> str:
    return (
        f"| {name} | {figures['bandwidth']:.2f} ± {figures['bandwidth_spread']:.2f} "
        f"| **{figures['error']:.3f}** ± {figures['error_spread']:.3f} | {figures['least_error']:.3f} "
        f"| {figures['narrowest_error']:.3f} | {figures['widest_error']:.3f} |\n"
    )
