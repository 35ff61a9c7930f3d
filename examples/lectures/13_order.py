"""Attention is indifferent to order; sinusoidal positions add it; and how orthogonal these really are.

The lecture calls position vectors approximately orthogonal for large widths, hence linearly independent. Neighbors are
far from orthogonal at any width, and no more vectors than the width can be independent.
"""

from pathlib import Path

import torch
from examples.mechanisms.drawing import COLORS, keep, label, panels, run

import qkv


def main(folder: Path) -> None:
    """Draw the cosine of two position vectors against their distance, and the singular values of a table of them."""
    torch.manual_seed(0)
    layer, x, order = qkv.nn.MultiHeadAttention(16, 2), torch.randn(1, 9, 16), torch.randperm(9)
    assert torch.allclose(layer(x[:, order]), layer(x)[:, order], atol=1e-5), "shuffled in, shuffled out"
    placed = x + qkv.nn.sinusoidal(9, 16)
    shuffled = x[:, order] + qkv.nn.sinusoidal(9, 16)
    assert not torch.allclose(layer(shuffled), layer(placed)[:, order], atol=1e-2), "positions tell"
    figure, (cosines, values) = panels(2, width=3.8, height=2.7)
    for color, width in zip(COLORS, (16, 64, 256, 1024), strict=False):
        table = qkv.nn.sinusoidal(512, width, dtype=torch.float64)
        unit = table / table.norm(dim=-1, keepdim=True)
        products = unit @ unit.mT
        cosines.plot(products[0, :128].tolist(), color=color, label=f"width {width}", lw=1)
        singular = torch.linalg.svdvals(table)
        values.semilogy((singular / singular[0]).clamp(min=1e-17).tolist(), color=color, lw=1)
        others = products[~torch.eye(512, dtype=torch.bool)]
        rank = int((singular > 1e-6 * singular[0]).sum())
        print(
            f"width {width:4}: cosine with the neighbor {products[0, 1]:.3f}, mean of all pairs {others.mean():.3f}"
            f", share below 0.1 {float((others.abs() < 0.1).double().mean()):.2f}, rank of 512 positions {rank}"
        )
        assert products[0, 1] > 0.9, "neighbors are nearly parallel"
        assert rank < min(512, width) or width < 256, "fewer directions than positions"
        assert others.mean() > 0.2
    cosines.legend(fontsize=7, frameon=False)
    cosines.set_ylim(-0.3, 1)
    label(cosines, "cosine of PE(0) and PE(k)", "k")
    label(values, "singular values of 512 positions", "rank")
    keep(figure, folder, "13_order")


if __name__ == "__main__":
    run(main)
