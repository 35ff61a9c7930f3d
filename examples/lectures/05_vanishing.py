"""The softmax's gradient does vanish: a query that starts at the wrong key cannot leave it without the scale 1/√d.

The Jacobian diag(w) − wwᵀ is zero if one weight is 1, and large scores make one weight nearly 1.
"""

from pathlib import Path

import torch
from examples.mechanisms.drawing import COLORS, keep, label, panels, run

import qkv

WIDTHS, STEPS = (4, 16, 64, 256), 100


def main(folder: Path) -> None:
    """Draw the loss of such a query during training, for four widths, with and without the scale."""
    figure, axes = panels(2, width=3.6, height=2.6)
    for axis, (name, score) in zip(
        axes, {"q·k": qkv.scores.Dot(), "q·k/√d": qkv.scores.ScaledDot()}.items(), strict=True
    ):
        for color, width in zip(COLORS, WIDTHS, strict=False):
            losses, slope = learn(score, width)
            axis.plot(losses, color=color, label=f"d = {width}")
            print(f"{name:7} d = {width:4}: first gradient {slope:8.1e}, loss {losses[0]:.3f} to {losses[-1]:.3f}")
            if width == WIDTHS[-1]:
                assert (losses[-1] < 0.2) == (name == "q·k/√d"), "only the scaled one gets away"
        label(axis, f"loss of one query, {name}", "step")
        axis.set_ylim(0, None)
    axes[0].legend(fontsize=7, frameon=False)
    keep(figure, folder, "05_vanishing")


def learn(score: qkv.scores.Score, width: int) -> tuple[list[float], float]:
    """Train a query to move from the first of 32 keys to the second, by the value it should return."""
    torch.manual_seed(0)
    key, value = torch.randn(32, width), torch.eye(32)
    query = key[:1].clone().requires_grad_()
    optimizer = torch.optim.Adam([query], lr=0.05)
    losses, first = [], 0.0
    for step in range(STEPS):
        loss = (qkv.attention(query, key, value, score=score) - value[1]).square().sum()
        (gradient,) = torch.autograd.grad(loss, query)
        query.grad = gradient
        optimizer.step()
        losses.append(float(loss.detach()))
        first = float(gradient.norm()) if step == 0 else first
    return losses, first


if __name__ == "__main__":
    run(main)
