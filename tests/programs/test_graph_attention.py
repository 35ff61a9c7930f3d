"""Program 2: one layer of graph attention (GAT) on an edge mask, compared with its equations."""

import torch
from torch import nn
from torch.nn import functional as F

import qkv


class GraphAttention(nn.Module):
    """Veličković et al. 2018, eq. 1-4."""

    def __init__(self, width: int, heads: int, out: int) -> None:
        super().__init__()
        self.project = nn.Linear(width, heads * out, bias=False)
        self.left = nn.Parameter(torch.randn(heads, out))
        self.right = nn.Parameter(torch.randn(heads, out))
        self.heads = heads

    def forward(self, nodes: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        h = self.project(nodes).unflatten(-1, (self.heads, -1)).transpose(0, 1)  # (H, N, out)
        score = qkv.scores.Concat(self.left, self.right, activation="leaky_relu")
        return qkv.attention(h, h, h, score=score, mask=edges).transpose(0, 1).flatten(1)


def test_graph_attention() -> None:
    layer = GraphAttention(6, 3, 4).double()
    nodes = torch.randn(8, 6, dtype=torch.float64)
    edges = (torch.rand(8, 8) < 0.4) | torch.eye(8, dtype=torch.bool)
    edges[5] = False  # a node without neighbors
    output = layer(nodes, edges)

    h = layer.project(nodes).unflatten(-1, (3, 4))
    for head in range(3):
        z = h[:, head]
        e = F.leaky_relu((z @ layer.left[head])[:, None] + (z @ layer.right[head])[None, :], 0.2)
        alpha = torch.softmax(e.masked_fill(~edges, -torch.inf), -1).nan_to_num(0.0)
        assert torch.allclose(output.unflatten(1, (3, 4))[:, head], alpha @ z)
    assert (output[5] == 0).all()
    output.sum().backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters())
