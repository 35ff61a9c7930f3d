"""Rows extended in one pass: their products are squared distances."""

import numpy as np
import pytest
import torch

from qkv.algorithms.rowwise import squared_norms
from qkv.algorithms.rowwise.squared_norms_kernel import extend

pytestmark = pytest.mark.kernels


@pytest.mark.parametrize("width", [1, 7, 64, 130])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_with_norm_and_one(width: int, dtype: type) -> None:
    x = np.random.default_rng(0).normal(size=(5, width)).astype(dtype)
    for first in (0, 1):
        wide, norms = np.zeros((5, width + 2), dtype), np.zeros(5, dtype)
        extend.at(np.dtype(dtype))(1, 4, x, dtype(-2), first, wide, norms)
        expected = (x[1:4].astype(np.float64) ** 2).sum(1)
        np.testing.assert_allclose(norms[1:4], expected, rtol=1e-6)
        np.testing.assert_array_equal(wide[1:4, :width], -2 * x[1:4])
        np.testing.assert_array_equal(wide[1:4, width + first], norms[1:4])
        np.testing.assert_array_equal(wide[1:4, width + 1 - first], 1)
        assert (wide[[0, 4]] == 0).all()


def test_operands_are_those_of_several_operations() -> None:
    query, key = torch.randn(2, 3, 9, 10), torch.randn(2, 3, 8, 10)
    found = squared_norms.norms(query, key, with_operands=True)
    plain = squared_norms.norms(query, key, with_operands=False)
    assert found.operands is not None
    assert plain.operands is None
    torch.testing.assert_close(found[:2], plain[:2])
    torch.testing.assert_close(found.operands, squared_norms.distance_operands(query, key, *plain[:2]))
    distances = torch.cdist(query, key).square()
    torch.testing.assert_close(found.operands[0] @ found.operands[1].mT, distances, rtol=1e-4, atol=1e-4)
    # Rows with gaps between them are left to PyTorch.
    assert squared_norms.norms(query.mT, key.mT, with_operands=True).operands is None
