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
