"""Program 9: a training step under torch.compile, full graph, with varying sizes."""

import pytest
import torch
from torch import nn

import qkv


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(8, 24)
        self.vector = nn.Parameter(torch.randn(8))

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        query, key, value = self.project(x).chunk(3, -1)
        mask = qkv.masks.lengths(lengths)
        dot = qkv.attention(query, key, value, mask=mask & qkv.masks.causal())
        return dot + qkv.attention(query, key, value, score=qkv.scores.Additive(self.vector), mask=mask)


@pytest.mark.slow
def test_compiled_step() -> None:
    model = Layer()
    # The compiler's front end and its gradients, without waiting for a C++ compiler.
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
    for size in (6, 9, 13):
        x, lengths = torch.randn(2, size, 8), torch.tensor([size, 3])
        found = []
        for run in (model, compiled):
            model.zero_grad()
            output = run(x, lengths)
            output.square().sum().backward()
            found.append([output.detach(), *(p.grad.clone() for p in model.parameters())])
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(*found, strict=True))
