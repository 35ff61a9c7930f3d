"""Nadaraya-Watson regression: attention with a kernel for a score, as four kernels see the same points."""

from pathlib import Path

import torch
from drawing import BLUE, COLORS, GRAY, ORANGE, heat, keep, label, panels, run

import qkv

KERNELS = {
    "Gaussian": qkv.scores.Gaussian(bandwidth=0.3),
    "Boxcar": qkv.scores.Boxcar(bandwidth=0.5),
    "Epanechnikov": qkv.scores.Epanechnikov(bandwidth=0.6),
    "Epanechnikov, power 1": qkv.scores.Epanechnikov(bandwidth=0.6, power=1),
}


def main(folder: Path) -> None:
    """Draw each kernel, its regression of noisy points, and its weights."""
    torch.manual_seed(0)
    key = torch.sort(torch.rand(50, 1) * 5, dim=0).values
    value = 2 * torch.sin(key) + key**0.8 + 0.5 * torch.randn_like(key)
    query = torch.linspace(0, 5, 200)[:, None]
    figure, axes = panels(4, rows=3, width=2.7, height=2.1)
    for column, (name, kernel) in enumerate(KERNELS.items()):
        distance = torch.linspace(-1, 1, 401)[:, None]
        shape = kernel(distance, torch.zeros(1, 1))
        axes[column].plot(distance[:, 0], shape[:, 0], color=COLORS[column])
        label(axes[column], name, "q − k", "score" if column == 0 else "")
        prediction, weights = qkv.attention_with_weights(query, key, value, score=kernel)
        axes[4 + column].scatter(key[:, 0], value[:, 0], s=6, color=GRAY)
        axes[4 + column].plot(query[:, 0], 2 * torch.sin(query[:, 0]) + query[:, 0] ** 0.8, color=BLUE, lw=1)
        axes[4 + column].plot(query[:, 0], prediction[:, 0], color=ORANGE, lw=1.5)
        label(axes[4 + column], "truth and regression", "q")
        heat(axes[8 + column], weights, "weights")
    keep(figure, folder, "kernels")


if __name__ == "__main__":
    run(main)
