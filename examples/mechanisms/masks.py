"""The masks, drawn: which keys a query may see."""

from pathlib import Path

import torch
from drawing import heat, keep, panels, run

import qkv

masks = qkv.masks
MASKS = {
    "causal()": masks.causal(),
    "lengths(9)": masks.lengths(9),
    "window(2, 1)": masks.window(2, 1),
    "documents(ids)": masks.documents(torch.tensor([0] * 5 + [1] * 3 + [2] * 4)),
    "causal() & window(3, 0)": masks.causal() & masks.window(3, 0),
    "causal() & documents(ids)": masks.causal() & masks.documents(torch.tensor([0] * 5 + [1] * 3 + [2] * 4)),
    "causal() | lengths(3)": masks.causal() | masks.lengths(3),
    "~window(1, 1)": ~masks.window(1, 1),
}


def main(folder: Path) -> None:
    """Draw each mask over 12 queries and 12 keys."""
    figure, axes = panels(4, rows=2, width=2.3, height=2.4)
    for axis, (name, mask) in zip(axes, MASKS.items(), strict=True):
        heat(axis, masks.matrix(mask, 12, 12), name, largest=1)
    keep(figure, folder, "masks")


if __name__ == "__main__":
    run(main)
