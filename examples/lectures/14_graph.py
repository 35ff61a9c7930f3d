"""Tokens as nodes of a directed graph: a mask is its edges, and L layers carry a message over L edges.

Items of a batch are graphs without edges between them. Weights depend on data: two inputs give two sets of weights.
"""

import torch
from torch import Tensor

import qkv

EDGES = ((1, 0), (2, 1), (3, 2), (4, 3), (4, 0))  # (listener, speaker)
NODES = 5


def main() -> None:
    """Compare who influences whom, measured by gradients, with the paths of the graph."""
    torch.manual_seed(0)
    adjacency = torch.eye(NODES, dtype=torch.bool)
    for listener, speaker in EDGES:
        adjacency[listener, speaker] = True
    layers = [qkv.nn.MultiHeadAttention(8, 1) for _ in range(3)]
    x = torch.randn(2, NODES, 8)
    reach = torch.eye(NODES)
    for depth in range(1, 4):
        reach = ((adjacency.float() @ reach) > 0).float()
        influence = influences(layers[:depth], x, adjacency)
        assert torch.equal(influence[0, :, 0] > 0, reach.bool()), "a message goes one edge further with each layer"
        assert bool((influence[0, :, 1] == 0).all()), "and none goes to the other item"
        print(f"{depth} layers: who hears whom\n", (influence[0, :, 0] > 0).int().numpy())
    first, second = (qkv.attention_with_weights(item, item, item)[1] for item in x)
    assert not torch.allclose(first, second), "the input makes the weights"


def influences(layers: list[qkv.nn.MultiHeadAttention], x: Tensor, mask: Tensor) -> Tensor:
    """Return ‖∂y_(b,i)/∂x_(c,j)‖ for items b, c and nodes i, j, as (b, i, c, j)."""

    def run(x: Tensor) -> Tensor:
        for layer in layers:
            x = layer(x, mask=mask)
        return x

    # (2, N, 8, 2, N, 8): outputs, then inputs.
    return torch.autograd.functional.jacobian(run, x).square().sum((2, 5)).sqrt()


if __name__ == "__main__":
    main()
