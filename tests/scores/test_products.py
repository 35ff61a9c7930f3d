"""Products of vectors at the edges of width and magnitude."""

import pytest
import torch

from qkv.scores import Cosine


def test_the_cosine_of_one_dimension_is_a_sign() -> None:
    query, key = torch.tensor([[2.0], [-0.5], [0.0]]), torch.tensor([[3.0], [-4.0]])
    torch.testing.assert_close(Cosine()(query, key), torch.tensor([[1.0, -1.0], [-1.0, 1.0], [0.0, 0.0]]))


def test_the_cosine_of_no_dimension_is_zero() -> None:
    assert torch.equal(Cosine()(torch.ones(3, 0), torch.ones(2, 0)), torch.zeros(3, 2))


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
def test_the_cosine_does_not_depend_on_length(size: float) -> None:
    query, key = torch.randn(5, 4), torch.randn(6, 4)
    torch.testing.assert_close(Cosine(2.0)(query * size, key), Cosine(2.0)(query, key))
