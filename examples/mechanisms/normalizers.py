"""From the same scores to weights: six normalizers."""

from pathlib import Path

import torch
from drawing import BLUE, keep, label, panels, run

import qkv

NORMALIZERS = {
    "Softmax()": qkv.normalizers.Softmax(),
    "Softmax(sink=1.0)": qkv.normalizers.Softmax(sink=1.0),
    "Entmax(alpha=1.5)": qkv.normalizers.Entmax(),
    "Sparsemax()": qkv.normalizers.Sparsemax(),
    "Sigmoid()": qkv.normalizers.Sigmoid(),
    "Hard()": qkv.normalizers.Hard(),
}


def main(folder: Path) -> None:
    """Draw the weights that each gives to one row of scores."""
    scores = torch.tensor([[2.0, 1.4, 1.1, 0.3, -0.5, -2.0]])
    figure, axes = panels(3, rows=2, width=2.8, height=1.9)
    for axis, (name, normalizer) in zip(axes, NORMALIZERS.items(), strict=True):
        weights = normalizer(scores)[0]
        axis.bar([f"{score:g}" for score in scores[0].tolist()], weights.tolist(), color=BLUE)
        axis.set_ylim(0, 1)
        label(axis, f"{name}: sum {float(weights.sum()):.2f}")
    keep(figure, folder, "normalizers")


if __name__ == "__main__":
    run(main)
