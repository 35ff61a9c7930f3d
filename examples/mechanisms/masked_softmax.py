"""The masked softmax on the lecture's three sentences, and why zeroing the values is not masking."""

from pathlib import Path

import torch
from drawing import heat, keep, panels, run

import qkv

SENTENCES = ["Dive into Deep Learning", "Learn to code", "Hello world"]


def main(folder: Path) -> None:
    """Draw the weights with a mask, and what remains of them if padding values are only set to zero."""
    torch.manual_seed(0)
    lengths = torch.tensor([len(sentence.split()) for sentence in SENTENCES])
    x = torch.randn(3, 4, 8)
    padding = torch.arange(4) >= lengths[:, None]
    masked, weights = qkv.attention_with_weights(x, x, x, mask=qkv.masks.lengths(lengths, lengths))
    zeroed = torch.where(padding[..., None], torch.zeros(()), x)
    cheated, leaking = qkv.attention_with_weights(x, x, zeroed)
    # Zeroed values add nothing, but their weights still take a share of the row.
    share = torch.where(padding[:, None, :], leaking, torch.zeros(())).sum(-1)
    assert torch.allclose(masked[0], cheated[0], atol=1e-6), "a full sentence has nothing to hide"
    assert not torch.allclose(masked[2, :2], cheated[2, :2]), "a short one loses weight to its padding"
    assert float(share[2].min()) > 0
    figure, axes = panels(3, rows=2, width=2.6, height=2.3)
    for item, sentence in enumerate(SENTENCES):
        words = [*sentence.split(), *["‹blank›"] * (4 - int(lengths[item]))]
        for row, matrix, title in ((0, weights, "masked"), (1, leaking, "values zeroed")):
            axis = axes[3 * row + item]
            heat(axis, matrix[item], title, largest=1.0)
            axis.set_xticks(range(4), words, rotation=30, fontsize=7)
            axis.set_yticks(range(4), words, fontsize=7)
            axis.set_xlabel("")
            axis.set_ylabel("")
    keep(figure, folder, "masked_softmax")


if __name__ == "__main__":
    run(main)
