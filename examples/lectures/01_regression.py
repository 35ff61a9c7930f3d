"""Nadaraya-Watson regression is attention: queries are the points to predict, keys and values the training points.

The lecture's kernels, and the error of each against its bandwidth; the dot marks the choice of leave-one-out.
"""

from pathlib import Path

import numpy as np
import torch
from examples.mechanisms.drawing import COLORS, GRAY, keep, label, panels, run

import qkv
from qkv.models.regression import KERNELS, NadarayaWatson

BANDWIDTHS = np.logspace(-1.3, 0.7, 17)


def truth(x: np.ndarray) -> np.ndarray:
    """The true function behind the noisy points."""
    return 2 * np.sin(x) + x**0.8


def main(folder: Path) -> None:
    """Draw the error of each kernel against its bandwidth, and three regressions."""
    noise = np.random.default_rng(0)
    x = np.sort(noise.uniform(0, 5, 60))
    y, grid = truth(x) + 0.5 * noise.standard_normal(60), np.linspace(0, 5, 200)
    figure, (error, curves) = panels(2, width=4.0, height=2.8)
    for color, name in zip(COLORS, sorted(KERNELS), strict=False):
        wrong = [mistake(NadarayaWatson(name, float(h)).fit(x[:, None], y), grid) for h in BANDWIDTHS]
        chosen = NadarayaWatson(name).fit(x[:, None], y)
        error.loglog(BANDWIDTHS, wrong, color=color, label=name)
        error.plot(chosen.bandwidth_, mistake(chosen, grid), "o", color=color)
        found = mistake(chosen, grid)
        print(f"{name:12} bandwidth {chosen.bandwidth_:.2f}: squared error {found:.3f}, minimum {min(wrong):.3f}")
        # The boxcar's error jumps with every point that enters its window, so its minimum is rugged.
        assert name == "boxcar" or found < 1.5 * min(wrong), "leave-one-out finds the valley"
    key, value, query = (torch.from_numpy(part)[:, None] for part in (x, y, grid))
    attended = qkv.attention(query, key, value, score=qkv.scores.Gaussian(0.3))[:, 0].numpy()
    assert np.allclose(attended, NadarayaWatson("gaussian", 0.3).fit(x[:, None], y).predict(grid[:, None]))
    curves.scatter(x, y, s=6, color=GRAY)
    for color, bandwidth in zip(COLORS[1:], (0.05, 0.3, 2.0), strict=False):
        predicted = NadarayaWatson("gaussian", bandwidth).fit(x[:, None], y).predict(grid[:, None])
        curves.plot(grid, predicted, color=color, lw=1.2, label=f"h = {bandwidth}")
    label(error, "error against bandwidth", "bandwidth h", "mean squared error")
    label(curves, "too narrow, about right, too wide", "x")
    for axis in (error, curves):
        axis.legend(fontsize=7, frameon=False)
    keep(figure, folder, "01_regression")


def mistake(model: NadarayaWatson, grid: np.ndarray) -> float:
    """Return the mean squared difference from the truth."""
    return float(np.square(model.predict(grid[:, None]) - truth(grid)).mean())


if __name__ == "__main__":
    run(main)
