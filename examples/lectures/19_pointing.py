"""The pointer network: attention as the output. It learns to sort numbers by pointing at them.

Trained in about 20 s on one core.
"""

from pathlib import Path

import torch
from examples.mechanisms.drawing import heat, keep, panels, run
from torch import Tensor, nn

from qkv.models.pointer import END, PointerConfig, PointerNetwork

SIZE, STEPS = 5, 400


def main(folder: Path) -> None:
    """Train, sort new numbers, and draw where each step points."""
    torch.manual_seed(0)
    model = PointerNetwork(PointerConfig(features=1, cell="gru", hidden=48, attention=48))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.004)
    for _ in range(STEPS):
        numbers, target = draw(64)
        optimizer.zero_grad()
        logarithms = model(numbers, torch.full((64,), SIZE), target[:, :-1])
        nn.functional.nll_loss(logarithms.flatten(0, 1), target[:, 1:].flatten()).backward()
        optimizer.step()
    numbers, target = draw(500)
    with torch.no_grad():
        chances = model.eval()(numbers, torch.full((500,), SIZE), target[:, :-1]).exp()
    right = (chances.argmax(-1) == target[:, 1:]).float().mean()
    print(f"{100 * right:.1f} % of the steps point to the correct number; chance is about {100 / (SIZE + 1):.0f} %")
    assert right > 0.8
    figure, axes = panels(3, width=2.6, height=2.5)
    for row, axis in enumerate(axes):
        heat(axis, chances[row], "where each step points", largest=1.0)
        axis.set_xticks(range(SIZE + 1), ["end", *(f"{float(x):.2f}" for x in numbers[row])], fontsize=7)
        axis.set(xlabel="the numbers as they come", ylabel="step")
    keep(figure, folder, "19_pointing")


def draw(count: int) -> tuple[Tensor, Tensor]:
    """Generate numbers (count, SIZE, 1), and their positions in increasing order between two end tokens."""
    numbers = torch.rand(count, SIZE, 1)
    order = numbers[..., 0].argsort(1) + 1
    ends = torch.full((count, 1), END)
    return numbers, torch.cat([ends, order, ends], 1)


if __name__ == "__main__":
    run(main)
