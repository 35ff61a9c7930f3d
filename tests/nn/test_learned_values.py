"""What the value of a score or a normalizer learns belongs to the layer that keeps it.

An optimizer, a state dict and a copy of the layer find it, as they find the parameters of modules.
"""

from copy import deepcopy
from typing import Any

import pytest
import torch
from tests.contract.mechanisms import NORMALIZERS, SCORES, NormalizerCase, ScoreCase
from torch import nn

from qkv.nn import Attention, MultiHeadAttention
from qkv.normalizers import Softmax
from qkv.scores import Gaussian, Learned, ScaledDot

LEARNED_SCORES = [case for case in SCORES if case.shapes(case.width, case.key_width) and case.name != "learned"]
LEARNED_NORMALIZERS = [case for case in NORMALIZERS if case.shapes]


def parameters(case: ScoreCase | NormalizerCase) -> dict[str, nn.Parameter]:
    shapes = case.shapes(case.width, case.key_width) if isinstance(case, ScoreCase) else case.shapes
    positive = case.positive if isinstance(case, ScoreCase) else tuple(shapes)
    drawn = {name: torch.randn(shape) for name, shape in shapes.items()}
    return {name: nn.Parameter(1.5 + x.abs() / 4 if name in positive else x) for name, x in drawn.items()}


def layer_of(case: ScoreCase | NormalizerCase) -> tuple[nn.Module, tuple[torch.Tensor, ...], dict[str, nn.Parameter]]:
    torch.manual_seed(0)
    own = parameters(case)
    width, key_width = (case.width, case.key_width) if isinstance(case, ScoreCase) else (4, 4)
    tensors = torch.randn(2, 2, 5, width), torch.randn(2, 2, 7, key_width), torch.randn(2, 2, 7, 3)
    layer = Attention(case.build(own)) if isinstance(case, ScoreCase) else Attention(normalizer=case.build(own))
    return layer, tensors, own


@pytest.mark.parametrize("case", [*LEARNED_SCORES, *LEARNED_NORMALIZERS], ids=lambda case: case.name)
def test_the_layer_has_what_its_value_learns(case: ScoreCase | NormalizerCase) -> None:
    layer, tensors, own = layer_of(case)
    assert {id(x) for x in layer.parameters()} == {id(x) for x in own.values()}
    before = layer(*tensors).detach()
    copy = deepcopy(layer)
    zeroed = {name: 0.5 * x + 1 for name, x in layer.named_parameters()}
    elsewhere = torch.func.functional_call(layer, zeroed, tensors).detach()
    with torch.no_grad():
        for x in layer.parameters():
            x.mul_(0.5).add_(1)
    after = layer(*tensors).detach()
    assert torch.equal(elsewhere, after)
    assert torch.equal(copy(*tensors).detach(), before)
    copy.load_state_dict(layer.state_dict())
    assert torch.equal(copy(*tensors).detach(), after)


def test_a_layer_of_heads_trains_the_bandwidth_of_a_value() -> None:
    torch.manual_seed(0)
    layer = MultiHeadAttention(8, 2, score=Gaussian(nn.Parameter(torch.tensor([1.0, 2.0]))))
    found = dict(layer.named_parameters())
    bandwidth = found["score.bandwidth"]
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    layer(torch.randn(2, 5, 8)).square().sum().backward()
    optimizer.step()
    assert not torch.equal(bandwidth.detach(), torch.tensor([1.0, 2.0]))
    assert "attention.sink" in dict(
        MultiHeadAttention(8, 2, normalizer=Softmax(nn.Parameter(torch.zeros(2)))).named_parameters()
    )


@pytest.mark.parametrize("wrap", [lambda f: f, Learned], ids=["function", "value"])
def test_a_layer_has_the_network_that_scores_pairs(wrap: Any) -> None:
    class Pairs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
            return (query * self.weight) @ key.mT

    layer = MultiHeadAttention(8, 2, score=wrap(Pairs()))
    assert any(x.shape == (4,) and name.startswith("score.") for name, x in layer.named_parameters())


def test_a_value_that_replaces_another_is_used() -> None:
    layer = Attention(ScaledDot(nn.Parameter(torch.tensor(2.0))))
    query, key, value = torch.randn(3, 4, 8).unbind()
    layer.score = ScaledDot(0.5)
    assert torch.equal(layer(query, key, value), Attention(ScaledDot(0.5))(query, key, value))
