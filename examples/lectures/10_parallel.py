"""Sequential against parallel: a recurrence takes n sequential steps, attention computes all positions in a few
products.

The work of attention grows with n², so it is not always faster; only its number of sequential steps is constant.
"""

from pathlib import Path
from time import perf_counter

import torch
from examples.mechanisms.drawing import COLORS, keep, label, panels, run
from torch import Tensor, nn

import qkv

WIDTH, LENGTHS = 64, [2**power for power in range(4, 11)]


def main(folder: Path) -> None:
    """Draw the time of a layer and its number of sequential operations against the length."""
    torch.manual_seed(0)
    layers = {"GRU": nn.GRU(WIDTH, WIDTH, batch_first=True), "attention": qkv.nn.MultiHeadAttention(WIDTH, 4)}
    figure, (time, chain) = panels(2, width=3.6, height=2.7)
    for color, (name, layer) in zip(COLORS, layers.items(), strict=False):
        spent = [milliseconds(layer, torch.randn(8, length, WIDTH)) for length in LENGTHS]
        waits = [depth(layer, torch.randn(1, length, WIDTH)) for length in LENGTHS[:4]]
        time.loglog(LENGTHS, spent, "o-", color=color, label=name)
        chain.loglog(LENGTHS[:4], waits, "o-", color=color)
        print(f"{name:10}", " ".join(f"{t:.1f}" for t in spent), "ms; operations in a row", *waits)
        assert (waits[-1] == waits[0]) == (name == "attention")
    for axis in (time, chain):
        axis.set_xticks(LENGTHS, [str(length) for length in LENGTHS], rotation=45)
        axis.minorticks_off()
    time.legend(fontsize=7, frameon=False)
    label(time, "milliseconds, batch of 8", "length n")
    label(chain, "operations in a row", "length n")
    keep(figure, folder, "10_parallel")


def milliseconds(layer: nn.Module, x: Tensor) -> float:
    """Return the best time of three forward passes."""
    best = float("inf")
    with torch.no_grad():
        for _ in range(3):
            start = perf_counter()
            layer(x)
            best = min(best, perf_counter() - start)
    return 1000 * best


def depth(layer: nn.Module, x: Tensor) -> int:
    """Return the longest chain in the backward graph, which no number of processors can shorten."""
    if isinstance(layer, nn.GRU):
        cell, state = nn.GRUCell(WIDTH, WIDTH), torch.zeros(1, WIDTH)
        for step in x.unbind(1):
            state = cell(step, state)
        out = state
    else:
        out = layer(x)
    longest: dict[object, int] = {}
    todo = [out.grad_fn]
    while todo:
        node = todo[-1]
        after = [other for other, _ in node.next_functions if other is not None]
        missing = [other for other in after if other not in longest]
        todo.extend(missing)
        if not missing:
            longest[todo.pop()] = 1 + max((longest[other] for other in after), default=0)
    return longest[out.grad_fn]


if __name__ == "__main__":
    run(main)
