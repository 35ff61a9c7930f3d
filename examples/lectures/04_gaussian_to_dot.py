"""From the Gaussian to the dot product: −‖q−k‖²/2 = q·k − ‖k‖²/2 − ‖q‖²/2, and which norms are constant.

Layer normalization makes norms exactly constant. Batch normalization, which the lecture also names, does not; and a
projection after the normalization partly undoes it.
"""

from pathlib import Path

import torch
from examples.mechanisms.drawing import COLORS, keep, label, panels, run
from torch import Tensor, nn

import qkv

WIDTH = 64


def main(folder: Path) -> None:
    """Draw the norms of tokens after each normalization, and how much the weights of the two scores differ."""
    torch.manual_seed(0)
    # Tokens like embeddings: some long, some short.
    raw = torch.randn(256, WIDTH) * (0.6 * torch.randn(256, 1)).exp()
    project = torch.randn(WIDTH, WIDTH) / WIDTH**0.5
    layer = nn.LayerNorm(WIDTH, elementwise_affine=False)(raw)
    kinds = {
        "as they are": raw,
        "batch norm": nn.BatchNorm1d(WIDTH, affine=False)(raw),
        "layer norm": layer,
        "layer norm, then W": layer @ project,
    }
    figure, (norms, apart) = panels(2, width=4.0, height=2.6)
    for place, (name, x) in enumerate(kinds.items()):
        norm = x.norm(dim=-1)
        spread, distance = float(norm.std() / norm.mean()), difference(x)
        norms.hist(norm.tolist(), bins=30, range=(0, 20), color=COLORS[place], alpha=0.6, label=name)
        apart.bar(name.replace(", ", ",\n"), distance, color=COLORS[place])
        print(f"{name:20} spread of norms {spread:.3f}, share of weight that moves {distance:.4f}")
        assert (distance < 1e-3) == (name == "layer norm"), "constant norms, and nothing else, make them one"
    norms.legend(fontsize=7, frameon=False)
    label(norms, "‖k‖ of 256 tokens, √64 = 8", "norm", "tokens")
    label(apart, "weight that moves, Gaussian → dot")
    # Without equal norms, a larger product implies neither a smaller distance nor a smaller angle.
    query, near, far = torch.tensor([1.0, 0.0]), torch.tensor([1.0, 0.1]), torch.tensor([5.0, 5.0])
    assert query @ far > query @ near
    assert (query - far).norm() > (query - near).norm()
    keep(figure, folder, "04_gaussian_to_dot")


def difference(x: Tensor) -> float:
    """Return half the sum of |w − w'| over a row, averaged: 0 for equal weights, 1 for disjoint ones."""
    # The bandwidth for which the product part of the distance is q·k/√d.
    gaussian = qkv.attention_with_weights(x, x, x, score=qkv.scores.SquaredDistance(WIDTH**0.25))[1]
    dot = qkv.attention_with_weights(x, x, x, score=qkv.scores.ScaledDot())[1]
    return float((gaussian - dot).abs().sum(-1).mean()) / 2


if __name__ == "__main__":
    run(main)
