"""Why dot products are divided by √d: their variance is d, and the gradient of a softmax of large scores vanishes."""

from pathlib import Path

import torch
from drawing import BLUE, ORANGE, keep, label, panels, run

import qkv

WIDTHS = [4, 16, 64, 256, 1024]


def main(folder: Path) -> None:
    """Draw the spread of dot products, the softmax's largest weight and its gradient against the width."""
    torch.manual_seed(0)
    figure, (spread, largest, gradient) = panels(3, width=3.2)
    for name, score, color in (("q·k", qkv.scores.Dot(), BLUE), ("q·k/√d", qkv.scores.ScaledDot(), ORANGE)):
        deviations, tops, slopes = [], [], []
        for width in WIDTHS:
            query, key = torch.randn(256, width), torch.randn(64, width)
            scores = score(query, key)
            weights = qkv.normalizers.Softmax()(scores)
            deviations.append(scores.std().item())
            tops.append(weights.max(-1).values.mean().item())
            # The trace of ∂w/∂s = diag(w) − wwᵀ: 0 if one weight is 1.
            slopes.append((1 - weights.square().sum(-1)).mean().item())
        spread.loglog(WIDTHS, deviations, "o-", color=color, label=name)
        largest.semilogx(WIDTHS, tops, "o-", color=color)
        gradient.semilogx(WIDTHS, slopes, "o-", color=color)
        expected = [width**0.5 if name == "q·k" else 1.0 for width in WIDTHS]
        assert all(abs(have / want - 1) < 0.1 for have, want in zip(deviations, expected, strict=True))
    spread.legend(fontsize=8, frameon=False)
    label(spread, "standard deviation of scores", "width d")
    label(largest, "largest of 64 weights, mean", "width d")
    label(gradient, "trace of the softmax's Jacobian", "width d")
    gradient.set_ylim(0, 1)
    keep(figure, folder, "scaling")


if __name__ == "__main__":
    run(main)
