"""The bilinear score qᵀMk: with M = I the dot product; otherwise other directions and other widths."""

from pathlib import Path

import torch
from drawing import heat, keep, panels, run

import qkv


def main(folder: Path) -> None:
    """Draw the weights of the dot product, of M = I, of an M that sees one direction, and of one between two widths."""
    torch.manual_seed(0)
    query, key, narrow = torch.randn(8, 4), torch.randn(12, 4), torch.randn(12, 2)
    one_direction = torch.diag(torch.tensor([3.0, 0.0, 0.0, 0.0]))
    scores = {
        "dot product": (qkv.scores.Dot(), key),
        "bilinear, M = I: the same": (qkv.scores.Bilinear(torch.eye(4)), key),
        "M = diag(3, 0, 0, 0): one direction": (qkv.scores.Bilinear(one_direction), key),
        "M (4 × 2): keys of another width": (qkv.scores.Bilinear(torch.randn(4, 2)), narrow),
    }
    figure, axes = panels(4, width=2.7, height=2.4)
    weights = {}
    for axis, (name, (score, keys)) in zip(axes, scores.items(), strict=True):
        _, weights[name] = qkv.attention_with_weights(query, keys, keys, score=score)
        heat(axis, weights[name], name, largest=1.0)
        axis.title.set_fontsize(8)
    assert torch.allclose(weights["dot product"], weights["bilinear, M = I: the same"]), "M = I is the dot product"
    keep(figure, folder, "bilinear")


if __name__ == "__main__":
    run(main)
