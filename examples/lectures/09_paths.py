"""Why attention: what is left of a gradient that goes back through a recurrent network, and through attention.

One task for all: the answer depends on the first of n tokens. The gradient of the loss to that token's embedding,
before any training: through n steps of a recurrence, or through one step of attention.
"""

import sys
from pathlib import Path

import torch
from examples.mechanisms.drawing import COLORS, keep, label, panels
from torch import Tensor, nn

import qkv

WIDTH, LENGTHS = 32, [2**power for power in range(2, 10)]


def main(folder: Path) -> None:
    """Draw the gradient to the first token against the length."""
    figure, (axis,) = panels(1, width=4.6, height=2.9)
    for color, name in zip(COLORS, ("plain RNN", "LSTM", "GRU", "attention"), strict=False):
        slopes = [gradient(name, length) for length in LENGTHS]
        axis.loglog(LENGTHS, [max(slope, 1e-45) for slope in slopes], "o-", ms=3, color=color, label=name)
        print(f"{name:10}", " ".join(f"{slope:.0e}" for slope in slopes))
        lost = slopes[-1] / slopes[0]
        # One step of attention shares its gradient among n tokens: 1/n, not an exponential.
        assert lost > 0.1 * LENGTHS[0] / LENGTHS[-1] if name == "attention" else lost < 1e-12
    axis.legend(fontsize=7, frameon=False)
    axis.set_ylim(1e-30, 1)
    label(axis, "gradient to the first of n tokens", "n")
    keep(figure, folder, "09_paths")


def gradient(name: str, length: int) -> float:
    """‖∂loss/∂x_1‖ of predicting the class of the first token at the last one, the mean over 16 rows."""
    torch.manual_seed(0)
    x = torch.randn(16, length, WIDTH, requires_grad=True)
    answer = torch.randint(0, 8, (16,))
    loss = nn.functional.cross_entropy(nn.Linear(WIDTH, 8)(last(name, x)), answer, reduction="sum")
    (slope,) = torch.autograd.grad(loss, x)
    return float(slope[:, 0].norm(dim=-1).mean())


def last(name: str, x: Tensor) -> Tensor:
    """What the last position knows."""
    if name == "attention":
        layer = qkv.nn.MultiHeadAttention(WIDTH, 1)
        return layer(x[:, -1:], x)[:, 0]
    module = {"plain RNN": nn.RNN, "LSTM": nn.LSTM, "GRU": nn.GRU}[name]
    states, _ = module(WIDTH, WIDTH, batch_first=True)(x)
    return states[:, -1]


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("docs/pictures/lectures"))
