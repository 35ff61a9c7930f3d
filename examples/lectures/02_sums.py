"""Weights that sum to one keep the output within the values at any length; otherwise it grows with the length."""

from pathlib import Path

import torch
from examples.mechanisms.drawing import COLORS, keep, label, panels, run

import qkv

LENGTHS = [2**power for power in range(2, 13)]
KINDS = {
    "softmax: a convex combination": (qkv.scores.ScaledDot(), qkv.normalizers.Softmax()),
    "1/n: the mean of products": (qkv.scores.ScaledDot(), qkv.normalizers.Mean()),
    "the bare sum of products": (qkv.scores.ScaledDot(), qkv.normalizers.Identity()),
    "the bare sum of a kernel": (qkv.scores.Gaussian(4.0), qkv.normalizers.Identity()),
}


def main(folder: Path) -> None:
    """Draw the size of the output, and of its gradient to the query, as the sequence grows."""
    torch.manual_seed(0)
    figure, (size, slope) = panels(2, width=3.8, height=2.8)
    key, value = torch.randn(LENGTHS[-1], 16), 1 + torch.randn(LENGTHS[-1], 8)
    query = torch.randn(32, 16, requires_grad=True)
    for color, (name, (score, normalizer)) in zip(COLORS, KINDS.items(), strict=False):
        sizes, slopes = [], []
        for length in LENGTHS:
            seen = value[:length]
            output = qkv.attention(query, key[:length], seen, score=score, normalizer=normalizer)
            (gradient,) = torch.autograd.grad(output.sum(), query)
            sizes.append(float(output.detach().norm(dim=-1).mean()))
            slopes.append(float(gradient.norm(dim=-1).mean()))
            if name.startswith("softmax"):
                assert bool((output <= seen.amax(0) + 1e-5).all()), "inside the values' box"
                assert bool((output >= seen.amin(0) - 1e-5).all())
        size.loglog(LENGTHS, sizes, color=color, label=name)
        slope.loglog(LENGTHS, slopes, color=color)
        print(f"{name:30} output {sizes[0]:7.2f} at 4 keys, {sizes[-1]:8.2f} at {LENGTHS[-1]}")
        grows = sizes[-1] / sizes[0]
        assert grows > 100 if name.endswith("kernel") else grows > 10 if name.startswith("the bare") else grows < 1.5
    size.legend(fontsize=7, frameon=False)
    label(size, "norm of the output", "number of keys")
    label(slope, "norm of its gradient to the query", "number of keys")
    keep(figure, folder, "02_sums")


if __name__ == "__main__":
    run(main)
