"""Sparsemax and entmax rows: the equation's weights, exact for any contents, and their derivatives."""

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.pairs import every_pair

from qkv.algorithms.rowwise.row_passes import project, project_back
from qkv.normalizers.sparse import Entmax, Sparsemax

pytestmark = pytest.mark.kernels

EQUATION = {1.1: Entmax(1.1), 1.3: Entmax(1.3), 1.5: Entmax(), 2.0: Sparsemax(), 2.7: Entmax(2.7)}
# The equation in float64 judges both; it sorts and subtracts running sums, which costs it a few digits.
ATOL = {np.float32: 5e-7, np.float64: 1e-13}
by_alpha = pytest.mark.parametrize("alpha", EQUATION)
by_dtype = pytest.mark.parametrize("dtype", ATOL, ids=lambda d: d.__name__)


def weights(scores: np.ndarray, alpha: float) -> np.ndarray:
    found = scores.copy()
    threshold(found, alpha)
    return found


def threshold(scores: np.ndarray, alpha: float) -> np.ndarray:
    """Replaces scores by weights; returns τ."""
    return project(scores[None], np.array([alpha]))[0]


def exact(scores: np.ndarray, alpha: float) -> np.ndarray:
    s = torch.from_numpy(scores).double()
    return EQUATION[alpha](s, s != -torch.inf).numpy()


@pytest.mark.parametrize(
    ("keys", "scale", "dtype", "alpha"),
    every_pair(product((1, 2, 63, 64, 65, 1000), (1e-3, 0.3, 3.0, 1e3), ATOL, EQUATION)),
)
def test_weights_of_the_equation(alpha, dtype, scale, keys):
    scores = (np.random.default_rng(keys).normal(size=(50, keys)) * scale).astype(dtype)
    found = weights(scores, alpha)
    np.testing.assert_allclose(found, exact(scores, alpha), rtol=0, atol=ATOL[dtype])
    np.testing.assert_allclose(found.sum(-1), 1, atol=1e-5 if dtype == np.float32 else 1e-13)


@by_alpha
def test_threshold_gives_the_weights(alpha):
    scores = np.random.default_rng(0).normal(size=(20, 40))
    found = scores.copy()
    tau = threshold(found, alpha)
    again = np.maximum((alpha - 1) * scores - tau[:, None], 0) ** (1 / (alpha - 1))
    np.testing.assert_allclose(again, found, atol=1e-14)


@by_alpha
@by_dtype
def test_hidden_keys_and_empty_rows(alpha, dtype):
    scores = np.random.default_rng(1).normal(size=(6, 30)).astype(dtype)
    scores[:, 10:20] = -np.inf
    scores[3] = -np.inf
    found = scores.copy()
    tau = threshold(found, alpha)
    assert (found[:, 10:20] == 0).all()
    assert (found[3] == 0).all()
    assert tau[3] == np.inf
    np.testing.assert_allclose(found, exact(scores, alpha), rtol=0, atol=ATOL[dtype])


@by_alpha
def test_nan_stays_visible_in_its_row_only(alpha):
    scores = np.random.default_rng(2).normal(size=(3, 30))
    scores[1, 7], scores[1, 8] = np.nan, -np.inf
    clean = scores.copy()
    clean[1] = 0
    found = weights(scores, alpha)
    assert np.isnan(np.delete(found[1], 8)).all()
    assert found[1, 8] == 0
    assert np.array_equal(found[[0, 2]], weights(clean, alpha)[[0, 2]])


def test_each_item_has_its_alpha():
    scores = np.random.default_rng(4).normal(size=(2, 5, 30))
    found = scores.copy()
    project(found, np.array([1.2, 2.0]))
    np.testing.assert_array_equal(found[0], weights(scores[0], 1.2))
    np.testing.assert_array_equal(found[1], weights(scores[1], 2.0))


@pytest.mark.parametrize("alpha", [1.2, 1.5, 2.0, 2.5])
def test_gradients_are_those_of_finite_differences(alpha):
    random = np.random.default_rng(5)
    scores, cotangent, direction = random.normal(size=(3, 1, 4, 12))
    of_tau, step = random.normal(size=(1, 4)), 1e-6

    def loss(s: np.ndarray, a: float) -> float:
        w = s.copy()
        tau = project(w, np.array([a]))
        return (w * cotangent).sum() + (tau * of_tau).sum()

    w, g = scores.copy(), cotangent.copy()
    tau = project(w, np.array([alpha]))
    d_alpha = project_back(w, g, tau, of_tau, np.array([alpha]), True)
    slope = (loss(scores + step * direction, alpha) - loss(scores - step * direction, alpha)) / (2 * step)
    np.testing.assert_allclose((g * direction).sum(), slope, rtol=1e-6)
    slope = (loss(scores, alpha + step) - loss(scores, alpha - step)) / (2 * step)
    np.testing.assert_allclose(d_alpha.sum(), slope, rtol=1e-6)


@by_alpha
def test_ties_share_and_equal_rows_are_uniform(alpha):
    np.testing.assert_allclose(weights(np.full((1, 7), 3.0), alpha), 1 / 7, rtol=1e-14)
    np.testing.assert_allclose(weights(np.array([[5.0, 5.0, -50.0]]), alpha), [[0.5, 0.5, 0.0]], atol=1e-15)


@by_alpha
@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0)])
def test_empty_axes(alpha, shape):
    assert weights(np.zeros(shape), alpha).shape == shape


@given(
    st.integers(0, 2**16),
    st.integers(1, 20),
    st.integers(1, 200),
    st.sampled_from([1.3, 1.5, 2.0]),
    st.floats(1e-6, 1e6),
)
def test_any_rows_sum_to_one_and_agree(seed, rows, keys, alpha, scale):
    scores = np.random.default_rng(seed).normal(size=(rows, keys)) * scale
    found = weights(scores, alpha)
    assert (found >= 0).all()
    np.testing.assert_allclose(found.sum(-1), 1, rtol=1e-11)
    np.testing.assert_allclose(found, exact(scores, alpha), rtol=0, atol=1e-11 + 4e-15 * scale)


def test_same_bits_whatever_the_threads(two_threads):
    scores = np.random.default_rng(3).normal(size=(600, 700)).astype(np.float32)
    both = weights(scores, 1.5)
    torch.set_num_threads(1)
    assert np.array_equal(weights(scores, 1.5), both)
