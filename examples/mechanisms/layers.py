"""Self-attention against a convolution and a fully-connected layer: which inputs an output sums, and with which
weights.

A convolution sums neighbors with fixed weights; a fully-connected layer sums all inputs with fixed weights;
self-attention sums all inputs with weights computed from the input. Without parameters (Q = K = V = X) each position
mostly attends to itself.
"""

from pathlib import Path

import torch
from drawing import heat, keep, panels, run
from torch import nn

import qkv

LENGTH, WIDTH = 12, 16


def convolution_weights() -> torch.Tensor:
    """Return the matrix by which a convolution of width 3 mixes positions."""
    layer = nn.Conv1d(1, 1, 3, padding=1, bias=False)
    weights: torch.Tensor = layer(torch.eye(LENGTH)[:, None, :])[:, 0].T.detach()
    return weights


def main(folder: Path) -> None:
    """Draw how each layer mixes positions, for two inputs."""
    torch.manual_seed(0)
    one, other = torch.randn(2, LENGTH, WIDTH).unbind()
    fully_connected = nn.Linear(LENGTH, LENGTH, bias=False).weight.detach()
    query_weight, key_weight = torch.randn(2, WIDTH, WIDTH).unbind()

    def attends(x: torch.Tensor) -> torch.Tensor:
        return qkv.attention_with_weights(x @ query_weight / 4, x @ key_weight / 4, x)[1]

    plain = qkv.attention_with_weights(one, one, one)[1]
    assert bool((plain.argmax(-1) == torch.arange(LENGTH)).all()), "without parameters a position finds itself"
    assert not torch.allclose(attends(one), attends(other)), "the input makes the weights"
    figure, axes = panels(5, width=2.4, height=2.5)
    heat(axes[0], convolution_weights().abs(), "convolution")
    heat(axes[1], fully_connected.abs(), "fully connected")
    heat(axes[2], attends(one), "self-attention, input 1")
    heat(axes[3], attends(other), "self-attention, input 2")
    heat(axes[4], plain, "Q = K = V = X")
    keep(figure, folder, "layers")


if __name__ == "__main__":
    run(main)
