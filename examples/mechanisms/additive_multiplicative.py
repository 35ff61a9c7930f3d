"""Additive against multiplicative scores: the same interface, different cost.

The equations: vᵀtanh(W_q q + W_k k) builds a hidden layer for every pair; qᵀMk takes one product; M = I is the dot
product.
"""

from pathlib import Path
from time import perf_counter

import torch
from drawing import BLUE, GREEN, ORANGE, keep, label, panels, run

import qkv

WIDTHS = [8, 16, 32, 64, 128, 256]


def main(folder: Path) -> None:
    """Draw the time and the memory of both, computed as the equations are written, on the full matrix."""
    torch.manual_seed(0)
    figure, (time, memory) = panels(2, width=3.6)
    query, key = torch.randn(2, 256, 1).expand(2, 256, 64).unbind()
    dot = qkv.attention(query, key, key, score=qkv.scores.Dot())
    identity = qkv.attention(query, key, key, score=qkv.scores.Bilinear(torch.eye(64)))
    assert torch.allclose(dot, identity, atol=1e-5), "M = I is the dot product"
    for name, color in (("dot", GREEN), ("bilinear", ORANGE), ("additive", BLUE)):
        time.loglog(WIDTHS, [milliseconds(name, width) for width in WIDTHS], "o-", color=color, label=name)
        memory.loglog(WIDTHS, [written_out(name, width) for width in WIDTHS], "o-", color=color)
    time.legend(fontsize=8, frameon=False)
    label(time, "milliseconds, 256 queries and keys", "width")
    label(memory, "bytes of the equation written out", "width")
    keep(figure, folder, "additive_multiplicative")


def scores(name: str, width: int) -> qkv.scores.Score:
    """Build a score of each kind."""
    match name:
        case "dot":
            return qkv.scores.Dot()
        case "bilinear":
            return qkv.scores.Bilinear(torch.randn(width, width))
        case _:
            return qkv.scores.Additive(torch.randn(width), torch.randn(width, width), torch.randn(width, width))


def milliseconds(name: str, width: int) -> float:
    """Return the best time of 5 runs of the full equation, on one thread."""
    x, score = torch.randn(256, width), scores(name, width)
    best, threads = float("inf"), torch.get_num_threads()
    torch.set_num_threads(1)
    for _ in range(5):
        start = perf_counter()
        qkv.attention(x, x, x, score=score, backend="reference")
        best = min(best, perf_counter() - start)
    torch.set_num_threads(threads)
    return 1000 * best


def written_out(name: str, width: int) -> int:
    """Return the memory of the full equation according to `qkv.explain`."""
    x = torch.zeros(256, width)
    return qkv.explain(x, x, x, score=scores(name, width), backend="reference").bytes


if __name__ == "__main__":
    run(main)
