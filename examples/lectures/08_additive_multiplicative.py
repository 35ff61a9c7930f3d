"""Additive against multiplicative, as the width grows: which one learns to find the right key, and how fast.

The query is a hidden rotation of one of 16 keys, plus noise; a score must learn to undo the rotation. The lecture says
that both are equal at small widths, and that additive beats the unscaled product at large ones. That holds if keys come
from a few symbols, as words do. If every key is new, it is the other way around: a product generalizes.
"""

from pathlib import Path
from time import process_time

import torch
from examples.mechanisms.drawing import COLORS, keep, label, panels, run
from torch import nn

import qkv

WIDTHS, SYMBOLS, KEYS, STEPS = (4, 16, 64, 256, 512), 32, 16, 250


def main(folder: Path) -> None:
    """Draw accuracy and time per step of three scores against the width."""
    figure, (known, new, time) = panels(3, width=3.2, height=2.6)
    reached = {}
    learn("multiplicative", WIDTHS[0], None)  # the first training creates and loads what all need
    for color, name in zip(COLORS, ("multiplicative", "scaled by 1/√d", "additive"), strict=False):
        found = [learn(name, width, SYMBOLS) for width in WIDTHS]
        reached[name] = [share for share, _ in found]
        fresh = [learn(name, width, None)[0] for width in WIDTHS[:3]]
        known.semilogx(WIDTHS, reached[name], "o-", color=color, label=name)
        new.semilogx(WIDTHS[:3], fresh, "o-", color=color)
        time.loglog(WIDTHS, [1000 * seconds for _, seconds in found], "o-", color=color)
        shares = " ".join(f"{100 * share:.0f} %" for share in reached[name])
        print(f"{name:15} d = {WIDTHS}: {shares}; new keys:", *(f"{100 * share:.0f} %" for share in fresh))
        print("  milliseconds per step", *(f"{1000 * seconds:.1f}" for _, seconds in found))
    assert reached["additive"][-1] > reached["multiplicative"][-1] + 0.2, "wide products need the scale"
    assert reached["scaled by 1/√d"][-1] > 0.9
    for axis in (known, new, time):
        axis.set_xticks(WIDTHS, [str(width) for width in WIDTHS])
        axis.minorticks_off()
    known.legend(fontsize=7, frameon=False)
    label(known, f"right key, of {SYMBOLS} symbols", "width d")
    label(new, "right key, keys all new", "width d")
    label(time, "milliseconds of one step, processor", "width d")
    keep(figure, folder, "08_additive_multiplicative")


def build(name: str, width: int) -> nn.Module:
    """A score with parameters; W has entries of unit variance over √d, so that products keep their size."""
    if name == "additive":
        return qkv.nn.AdditiveScore(width, width, hidden=width)
    score = qkv.nn.BilinearScore(width, width, scale=width**-0.5 if name.startswith("scaled") else 1.0)
    nn.init.normal_(score.weight, std=width**-0.5)
    return score


def learn(name: str, width: int, count: int | None) -> tuple[float, float]:
    """Train a score by the value it should find; return the share of correct keys on new data, and seconds per step."""
    torch.manual_seed(0)
    symbols, rotation = torch.randn(SYMBOLS, width), torch.linalg.qr(torch.randn(width, width)).Q
    score, start = build(name, width), process_time()
    optimizer = torch.optim.Adam(score.parameters(), lr=0.01)
    for step in range(STEPS + 1):
        key = symbols[torch.rand(64, count).topk(KEYS).indices] if count else torch.randn(64, KEYS, width)
        answer = torch.randint(0, KEYS, (64,))
        query = (key[torch.arange(64), answer] @ rotation + 0.2 * torch.randn(64, width))[:, None]
        found = qkv.attention(query, key, torch.eye(KEYS).expand(64, -1, -1), score=score.value())[:, 0]
        if step == STEPS:
            break
        optimizer.zero_grad()
        (found - torch.eye(KEYS)[answer]).square().sum(-1).mean().backward()
        optimizer.step()
    return float((found.argmax(-1) == answer).float().mean()), (process_time() - start) / STEPS


if __name__ == "__main__":
    run(main)
