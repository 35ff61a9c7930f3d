"""Attention as a lookup in a soft database: one row, the average of all rows, and everything in between."""

from pathlib import Path

import torch
from drawing import COLORS, GRAY, keep, label, panels, run

import qkv


def main(folder: Path) -> None:
    """Draw the weights of four lookups, and their results among the values."""
    torch.manual_seed(0)
    key = torch.eye(6)
    value = torch.tensor([[0.0, 0.0], [2.0, 0.2], [2.6, 1.8], [1.2, 2.8], [-0.4, 1.7], [1.0, 1.2]])
    query = key[2:3] + 0.25 * torch.randn(1, 6)
    lookups = {
        "one row: Hard": (qkv.scores.ScaledDot(), qkv.normalizers.Hard()),
        "sharp: Softmax, scale 6": (qkv.scores.ScaledDot(scale=6.0), None),
        "soft: Softmax, scale 2": (qkv.scores.ScaledDot(scale=2.0), None),
        "the average: Uniform": (qkv.scores.Uniform(), None),
    }
    figure, (bars, plane) = panels(2, width=4.2, height=3.0)
    hull = value[[0, 1, 2, 3, 4, 0]]
    plane.fill(*hull.T.tolist(), color=GRAY, alpha=0.15, lw=0)
    plane.scatter(value[:, 0].tolist(), value[:, 1].tolist(), color=GRAY, s=25)
    for place, (name, (score, normalizer)) in enumerate(lookups.items()):
        output, weights = qkv.attention_with_weights(query, key, value, score=score, normalizer=normalizer)
        assert torch.allclose(weights.sum(), torch.tensor(1.0)), "a convex combination"
        at = torch.arange(6) + 0.2 * (place - 1.5)
        bars.bar(at.tolist(), weights[0].tolist(), width=0.2, color=COLORS[place], label=name)
        plane.scatter(output[:, 0].tolist(), output[:, 1].tolist(), color=COLORS[place], s=45, zorder=3)
    bars.legend(fontsize=7, frameon=False)
    label(bars, "weights of one query", "key", "weight")
    label(plane, "results stay in the convex hull of the values")
    keep(figure, folder, "lookup")


if __name__ == "__main__":
    run(main)
