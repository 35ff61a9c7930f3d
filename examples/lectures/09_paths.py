"""Why attention: how much of a gradient survives going back through a recurrent network, and through attention.

One task for all: at the last of n tokens, name the first symbol. The gradient of the loss to the first token before any
training, through n steps of a recurrence or one step of attention; and the accuracy after training.
"""

from pathlib import Path

import torch
from examples.mechanisms.drawing import COLORS, keep, label, panels, run
from torch import Tensor, nn

import qkv

WIDTH, SYMBOLS, STEPS = 32, 8, 150
LENGTHS, LEARNED = [2**power for power in range(2, 10)], [8, 16, 32]


def main(folder: Path) -> None:
    """Draw the gradient to the first token against the length."""
    figure, (axis, learned) = panels(2, width=3.9, height=2.7)
    for color, name in zip(COLORS, ("plain RNN", "LSTM", "GRU", "attention"), strict=False):
        slopes = [gradient(name, length) for length in LENGTHS]
        shares = [learn(name, length) for length in LEARNED]
        learned.semilogx(LEARNED, shares, "o-", ms=3, color=color)
        axis.loglog(LENGTHS, [max(slope, 1e-45) for slope in slopes], "o-", ms=3, color=color, label=name)
        right = " ".join(f"{100 * share:.0f} %" for share in shares)
        print(f"{name:10} gradient", *(f"{slope:.0e}" for slope in slopes), "right", right)
        lost = slopes[-1] / slopes[0]
        # One step of attention divides its gradient among n tokens: 1/n, not exponential.
        assert lost > 0.1 * LENGTHS[0] / LENGTHS[-1] if name == "attention" else lost < 1e-12
        assert shares[-1] > 0.8 if name == "attention" else shares[-1] < 0.3
    learned.set_xticks(LEARNED, [str(length) for length in LEARNED])
    learned.minorticks_off()
    label(learned, f"right after {STEPS} steps of training", "n")
    axis.legend(fontsize=7, frameon=False)
    axis.set_ylim(1e-30, 1)
    label(axis, "gradient to the first of n tokens", "n")
    keep(figure, folder, "09_paths")


class Reader(nn.Module):
    """A layer, and a linear output at the last position."""

    def __init__(self, name: str) -> None:
        super().__init__()
        modules = {"plain RNN": nn.RNN, "LSTM": nn.LSTM, "GRU": nn.GRU}
        attends = name == "attention"
        self.layer = qkv.nn.MultiHeadAttention(WIDTH, 1) if attends else modules[name](WIDTH, WIDTH, batch_first=True)
        self.output = nn.Linear(WIDTH, SYMBOLS)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, n, WIDTH) to (B, SYMBOLS)."""
        if isinstance(self.layer, nn.RNNBase):
            return self.output(self.layer(x)[0][:, -1])
        x = x + qkv.nn.sinusoidal(x.shape[1], WIDTH)
        return self.output(self.layer(x[:, -1:], x)[:, 0])


def draw(count: int, length: int) -> tuple[Tensor, Tensor]:
    """Generate a symbol, noise, and a blank that asks for it (count, n, WIDTH); and the symbol's index."""
    answer = torch.randint(0, SYMBOLS, (count,))
    first = 3 * nn.functional.one_hot(answer, WIDTH).float()[:, None]
    noise = torch.randn(count, length - 2, WIDTH)
    return torch.cat([first, noise, torch.zeros(count, 1, WIDTH)], 1), answer


def gradient(name: str, length: int) -> float:
    """Return ‖∂loss/∂x_1‖ before training, averaged over 16 rows."""
    torch.manual_seed(0)
    x, answer = draw(16, length)
    loss = nn.functional.cross_entropy(Reader(name)(x.requires_grad_()), answer, reduction="sum")
    (slope,) = torch.autograd.grad(loss, x)
    return float(slope[:, 0].norm(dim=-1).mean())


def learn(name: str, length: int) -> float:
    """Return the accuracy after training."""
    torch.manual_seed(0)
    model = Reader(name)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        x, answer = draw(32, length)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), answer).backward()
        optimizer.step()
    x, answer = draw(500, length)
    return float((model(x).argmax(-1) == answer).float().mean())


if __name__ == "__main__":
    run(main)
