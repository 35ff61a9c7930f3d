"""Products of vectors of extreme width and magnitude."""

import math

import pytest
import torch

from qkv.scores import Cosine
from qkv.scores.products import unit


def test_the_cosine_of_one_dimension_is_a_sign() -> None:
    query, key = torch.tensor([[2.0], [-0.5], [0.0]]), torch.tensor([[3.0], [-4.0]])
    torch.testing.assert_close(Cosine()(query, key), torch.tensor([[1.0, -1.0], [-1.0, 1.0], [0.0, 0.0]]))


def test_the_cosine_of_no_dimension_is_zero() -> None:
    assert torch.equal(Cosine()(torch.ones(3, 0), torch.ones(2, 0)), torch.zeros(3, 2))


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
def test_the_cosine_does_not_depend_on_length(size: float) -> None:
    query, key = torch.randn(5, 4), torch.randn(6, 4)
    torch.testing.assert_close(Cosine(2.0)(query * size, key), Cosine(2.0)(query, key))


@pytest.mark.parametrize("layout", ["rows", "heads"])
@pytest.mark.parametrize("other", [0.0, 3e38, 1e-30, math.inf, math.nan])
def test_no_row_changes_the_bits_of_another(layout: str, other: float) -> None:
    x = torch.randn(2, 6, 5, 37) if layout == "rows" else torch.randn(2, 5, 6, 37).transpose(1, 2)
    spoilt = x.clone()
    spoilt[:, :, 3] = other
    g, rest = torch.randn(x.shape), [0, 1, 2, 4]
    results = []
    for tensor in (x.requires_grad_(), spoilt.requires_grad_()):
        found = unit(tensor)
        results.append((found[:, :, rest], torch.autograd.grad(found, tensor, g)[0][:, :, rest]))
    for one, two in zip(*results, strict=True):
        assert torch.equal(one, two)


def test_a_vector_of_zeros_has_no_slope() -> None:
    x = torch.tensor([[0.0, 0.0], [3.0, 4.0]], requires_grad=True)
    (slope,) = torch.autograd.grad(unit(x), x, torch.ones(2, 2))
    torch.testing.assert_close(slope, torch.tensor([[0.0, 0.0], [0.032, -0.024]]))


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
def test_slopes_at_any_size(size: float) -> None:
    x, g = torch.randn(4, 9, dtype=torch.float64), torch.randn(4, 9, dtype=torch.float64)
    exact = torch.autograd.grad(unit(x.requires_grad_()), x, g)[0]
    y = (x.detach() * size).float().requires_grad_()
    torch.testing.assert_close(
        torch.autograd.grad(unit(y), y, g.float())[0].double() * size, exact, rtol=1e-5, atol=1e-6
    )
    assert torch.autograd.gradcheck(unit, x)
    assert torch.autograd.gradgradcheck(unit, x)
