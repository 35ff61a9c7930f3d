"""Normalizers where there is nothing to normalize."""

import pytest
import torch

from qkv.normalizers import Hard, Identity, Mean, Sigmoid, Softmax, Sum
from qkv.normalizers.base import Normalizer

ALL = [Softmax(), Softmax(sink=0.5), Sum(), Mean(), Hard(), Identity(), Sigmoid()]


@pytest.mark.parametrize("visible", [None, torch.zeros(3, 0, dtype=torch.bool)], ids=["no mask", "a mask"])
@pytest.mark.parametrize("normalizer", ALL, ids=repr)
def test_no_keys_have_no_weights(normalizer: Normalizer, visible: torch.Tensor | None) -> None:
    assert normalizer(torch.ones(2, 3, 0), visible).shape == (2, 3, 0)


@pytest.mark.parametrize("normalizer", ALL, ids=repr)
def test_a_row_that_sees_nothing_has_no_weight_and_no_gradient(normalizer: Normalizer) -> None:
    scores = torch.ones(2, 4, requires_grad=True)
    weights = normalizer(scores, torch.tensor([[False] * 4, [True] * 4]))
    assert (weights[0] == 0).all()
    assert (weights[1] > 0).any()
    if weights.requires_grad:
        weights.square().sum().backward()
        assert (scores.grad[0] == 0).all()
        assert scores.grad.isfinite().all()


@pytest.mark.parametrize("sink", [None, 0.5])
@pytest.mark.parametrize("empty", [False, True])
def test_softmax_gives_the_same_bits_where_no_value_may_decide(sink: float | None, empty: bool) -> None:
    """Under vmap a row that sees nothing cannot be looked for: every row then takes the longer way."""
    scores = torch.randn(3, 4, 5, requires_grad=True)
    visible = torch.rand(3, 4, 5) < 0.6
    visible[..., 0] = True
    visible[1, 2] = not empty
    normalizer = Softmax(sink)
    eager = normalizer(scores, visible)
    mapped = torch.func.vmap(normalizer)(scores, visible)
    assert torch.equal(eager, mapped)
    upstream = torch.randn(3, 4, 5)
    found, expected = (torch.autograd.grad(w, scores, upstream)[0] for w in (eager, mapped))
    assert torch.equal(found, expected)
    assert bool((found[1, 2] == 0).all()) == empty
    assert bool((eager[1, 2] == 0).all()) == empty
