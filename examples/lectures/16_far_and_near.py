"""Heads that attend far and heads that attend near, found in a trained model.

The text: each line starts with its key, followed by triples of two random symbols and an answer, which is determined by
the symbol one position back and the line's key. So one input is near, the other as far as the line is long.
"""

from pathlib import Path

import torch
from examples.mechanisms.drawing import heat, keep, panels, run
from torch import Tensor, nn

import qkv
from qkv.models.decoder import DecoderConfig, LanguageModel

SYMBOLS, LENGTH, STEPS = 5, 19, 300
DUE = slice(2, None, 3)  # where an answer comes next


def main(folder: Path) -> None:
    """Train, measure how far each head attends where an answer is due, and draw its weights."""
    torch.manual_seed(0)
    sizes = {"width": 64, "heads": 2, "feed_forward": 96, "layers": 1}
    config = DecoderConfig(size=2 * SYMBOLS + SYMBOLS**2, positions="rotary", context=LENGTH, dropout=0.0, **sizes)
    model = LanguageModel(config)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.004)
    for _ in range(STEPS):
        text = lines(64)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(text[:, :-1])[:, DUE].flatten(0, 1), text[:, 1:][:, DUE].flatten())
        loss.backward()
        optimizer.step()
    model.eval()
    text = lines(64)
    with qkv.record(model) as trace, torch.no_grad():
        right = (model(text[:, :-1])[:, DUE].argmax(-1) == text[:, 1:][:, DUE]).float().mean()
    weights = torch.stack([trace.weights(layer) for layer in trace.layers])[0].mean(0)  # (heads, queries, keys)
    place = torch.arange(LENGTH - 1)
    looked = (weights * (place[:, None] - place)).sum(-1)[:, DUE][:, 1:]
    first = weights[:, DUE, 0][:, 1:].mean(-1)
    before = weights.diagonal(offset=-1, dim1=-2, dim2=-1)[:, 1::3][:, 1:].mean(-1)
    print(f"{100 * right:.0f} % of the answers are right")
    for head in range(2):
        away = f"{looked[head].mean():.1f} positions back on average"
        print(f"head {head}: {away}, {first[head]:.2f} of its weight on the first, {before[head]:.2f} one back")
    assert right > 0.95
    assert float(looked.mean(-1).max()) > 3 * float(looked.mean(-1).min()), "one looks far, one near"
    figure, axes = panels(2, width=2.8, height=2.6)
    for head, axis in enumerate(axes):
        heat(axis, weights[head], f"head {head}: {looked[head].mean():.1f} places back", largest=1.0)
    keep(figure, folder, "16_far_and_near")


def lines(count: int) -> Tensor:
    """Generate (count, LENGTH): the key, then triples of two symbols and the answer."""
    key = torch.randint(0, SYMBOLS, (count, 1))
    drawn, other = torch.randint(0, SYMBOLS, (2, count, LENGTH // 3))
    answer = 2 * SYMBOLS + SYMBOLS * drawn + key
    return torch.cat([SYMBOLS + key, torch.stack([drawn, other, answer], -1).flatten(1)], 1)


if __name__ == "__main__":
    run(main)
