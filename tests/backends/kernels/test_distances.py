"""Kernels of a distance on tiles: values and gradients of the equation, hidden keys, one pass."""

import numpy as np
import pytest
import torch

from qkv.backends.kernels.distances import Tile, kernel_slopes, kernel_values
from qkv.scores.pointwise import Bell, Box, Bump

SHAPES = {
    "bell": ("bell", 2.0, Bell()),
    "box": ("box", 2.0, Box()),
    "bump": ("bump", 2.0, Bump(2)),
    "triangle": ("bump", 1.0, Bump(1)),
    "cubic": ("bump", 3.0, Bump(3)),
}
by_shape = pytest.mark.parametrize("name", SHAPES)
by_dtype = pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=lambda d: d.__name__)


def problem(seed: int = 0, mask: bool = False) -> tuple[Tile, torch.Tensor, torch.Tensor]:
    """A tile, x = ‖q−k‖²/h² by subtraction, and what may be seen."""
    random = np.random.default_rng(seed)
    q, k = random.normal(size=(9, 3)), random.normal(size=(40, 3))
    first, last = random.integers(0, 20, 9).astype(np.int32), random.integers(10, 41, 9).astype(np.int32)
    seen = (np.arange(40) >= first[:, None]) & (np.arange(40) < last[:, None])
    table = random.random((9, 40)) < 0.7 if mask else np.zeros((0, 0), bool)
    tile = Tile(q @ k.T, (q**2).sum(-1), (k**2).sum(-1), first, last, table, 0.3)
    x = ((q[:, None] - k[None]) ** 2).sum(-1) * 0.3
    return tile, torch.from_numpy(x), torch.from_numpy(seen & table if mask else seen)


@by_shape
@by_dtype
@pytest.mark.parametrize("mask", [False, True])
def test_values_and_sums(name, dtype, mask):
    shape, power, pointwise = SHAPES[name]
    tile, x, seen = problem(mask=mask)
    out = np.full((9, 40), np.nan, dtype)
    total = kernel_values(tile, shape, power, out)
    expected = torch.where(seen, pointwise(x), 0.0).numpy()
    np.testing.assert_allclose(out, expected, rtol=0, atol=8 * np.finfo(dtype).eps)
    np.testing.assert_allclose(total, expected.sum(-1), rtol=1e-6)


@by_shape
@by_dtype
@pytest.mark.parametrize("mask", [False, True])
def test_gradients_of_the_weights_under_a_sum(name, dtype, mask):
    shape, power, pointwise = SHAPES[name]
    tile, x, seen = problem(1, mask)
    x.requires_grad_()
    s = torch.where(seen, pointwise(x), 0.0)
    sums = s.sum(-1, keepdim=True)
    w = s / torch.where(sums == 0, 1.0, sums)
    g = torch.from_numpy(np.random.default_rng(2).normal(size=(9, 40)).astype(dtype))
    if name == "box":
        expected = torch.zeros_like(x)
    else:
        (expected,) = torch.autograd.grad(w, x, g.double())
    grads, total = g.numpy().copy(), sums[:, 0].detach().numpy()
    share = np.divide(1.0, total, out=np.zeros(9), where=total != 0)
    kernel_slopes(tile, shape, power, share, (w * g).sum(-1).detach().numpy(), grads)
    np.testing.assert_allclose(grads, expected.numpy(), rtol=1e-5 if dtype == np.float32 else 1e-10, atol=1e-9)


@by_shape
def test_far_keys_and_equal_points(name):
    shape, power, pointwise = SHAPES[name]
    ends = np.zeros(1, np.int32), np.full(1, 3, np.int32)
    tile = Tile(np.array([[1.0, 0.0, 1e3]]), np.ones(1), np.array([1.0, 1e6, 1e6]), *ends, np.zeros((0, 0), bool), 1.0)
    out = np.empty((1, 3))
    kernel_values(tile, shape, power, out)
    np.testing.assert_allclose(out, pointwise(torch.tensor([[0.0, 1e6 + 1, 1e6 - 1999.0]], dtype=torch.float64)))
    grads = np.ones((1, 3))
    kernel_slopes(tile, shape, power, np.ones(1), np.zeros(1), grads)
    assert np.isfinite(grads).all()


@by_shape
def test_visible_nan_stays_visible(name):
    shape, power, _ = SHAPES[name]
    tile, _, _ = problem()
    tile.products[4, 12] = np.nan
    tile.first[4], tile.last[4] = 5, 20
    out = np.empty((9, 40))
    total = kernel_values(tile, shape, power, out)
    assert np.isnan(out[4, 12])
    assert np.isnan(total[4])
    assert np.isfinite(np.delete(total, 4)).all()
