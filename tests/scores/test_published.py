"""Numbers printed in other projects' test suites, and regression as statistics packages compute it."""

import numpy as np
import pytest
import torch
from tests.contract.calls import near
from torch import Tensor

from qkv.functional import attention, attention_with_weights
from qkv.masks.patterns import lengths
from qkv.normalizers.dense import Softmax
from qkv.scores.kernels import Boxcar, Epanechnikov, Gaussian, SquaredDistance
from qkv.scores.products import Bilinear, Cosine, Dot, ScaledDot
from qkv.scores.sums import Additive, Concat


def test_additive_of_allennlp() -> None:
    """AllenNLP, tests/modules/attention/additive_attention_test.py; its matrices multiply from the right."""
    w = torch.tensor([[-0.2, 0.3], [-0.5, 0.5]])
    u = torch.tensor([[0.0, 1.0], [1.0, 1.0], [1.0, -1.0]])
    score = Additive(torch.tensor([1.0, -1.0]), w.T, u.T)
    query = torch.tensor([[0.7, -0.8], [0.4, 0.9]])[:, None]
    key = torch.tensor(
        [
            [[1.0, -1.0, 3.0], [0.5, -0.3, 0.0], [0.2, -1.0, 1.0], [0.7, 0.8, -1.0]],
            [[-2.0, 3.0, -3.0], [0.6, 0.2, 2.0], [0.5, -0.4, -1.0], [0.2, 0.2, 0.0]],
        ]
    )
    published = [[1.975072, -0.04997836, 1.2176098, -0.9205586], [-1.4851665, 1.489604, -1.890285, -1.0672251]]
    assert torch.allclose(score(query, key)[:, 0], torch.tensor(published), atol=1e-6)


def test_bilinear_of_allennlp() -> None:
    """AllenNLP, tests/modules/attention/bilinear_attention_test.py; it adds 0.1 to every score."""
    score = Bilinear(torch.tensor([[-0.3, 0.5], [2.0, -1.0]]))
    result = score(torch.tensor([[1.0, 1.0]]), torch.eye(2)) + 0.1
    assert torch.allclose(result, torch.tensor([[1.8, -0.4]]), atol=1e-6)


def test_cosine_of_allennlp() -> None:
    """AllenNLP, tests/modules/matrix_attention/cosine_matrix_attention_test.py; printed to two decimals."""
    query = torch.tensor([[[0.0, 0, 0], [4, 5, 6]], [[-7, -8, -9], [10, 11, 12]]])
    key = torch.tensor([[[1.0, 2, 3], [4, 5, 6]], [[7, 8, 9], [10, 11, 12]]])
    published = torch.tensor([[[0, 0], [0.97, 1]], [[-1, -0.99], [0.99, 1]]])
    assert torch.allclose(Cosine()(query, key), published, atol=0.015)


def regression_data() -> tuple[Tensor, Tensor, Tensor]:
    """y = 2 sin x + x^0.8 plus noise: the data of the lecture on attention pooling."""
    g = torch.Generator().manual_seed(0)
    x = torch.sort(torch.rand(50, generator=g, dtype=torch.float64) * 5).values
    y = 2 * torch.sin(x) + x**0.8 + 0.5 * torch.randn(50, generator=g, dtype=torch.float64)
    return torch.arange(0, 5, 0.1, dtype=torch.float64)[:, None], x[:, None], y[:, None]


KERNELS = {
    "gaussian": (Gaussian(0.6), lambda u: np.exp(-(u**2) / 2), 0.6),
    "boxcar": (Boxcar(1.0), lambda u: (np.abs(u) <= 1) * 1.0, 1.0),
    "epanechnikov": (Epanechnikov(0.9), lambda u: np.maximum(0, 1 - u**2), 0.9),
    "triangle": (Epanechnikov(0.9, power=1), lambda u: np.maximum(0, 1 - np.abs(u)), 0.9),
}


@pytest.mark.parametrize("name", KERNELS)
def test_nadaraya_watson_by_hand(name: str) -> None:
    """Nadaraya 1964: Σ K((x − x_i)/h) y_i / Σ K((x − x_i)/h)."""
    score, kernel, h = KERNELS[name]
    query, key, value = regression_data()
    k = kernel((query.numpy() - key.numpy().T) / h)
    expected = torch.from_numpy(k @ value.numpy() / k.sum(1, keepdims=True))
    assert near(attention(query, key, value, score=score), expected)


@pytest.mark.slow
@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_nadaraya_watson_with_the_kernels_of_scikit_learn(gamma: float) -> None:
    pairwise = pytest.importorskip("sklearn.metrics.pairwise")
    query, key, value = (torch.randn(n, 3, dtype=torch.float64) for n in (9, 20, 20))
    k = pairwise.rbf_kernel(query, key, gamma=gamma)
    expected = torch.from_numpy(k @ value.numpy() / k.sum(1, keepdims=True))
    output, weights = attention_with_weights(query, key, value, score=Gaussian((2 * gamma) ** -0.5))
    assert near(output, expected)
    assert near(weights, torch.from_numpy(k / k.sum(1, keepdims=True)))


@pytest.mark.slow
def test_boxcar_is_the_radius_regressor_of_scikit_learn() -> None:
    neighbors = pytest.importorskip("sklearn.neighbors")
    query, key, value = (torch.randn(n, 2, dtype=torch.float64) for n in (30, 60, 60))
    model = neighbors.RadiusNeighborsRegressor(radius=1.0).fit(key.numpy(), value.numpy())
    inside = (torch.cdist(query, key) <= 1).any(1)
    expected = torch.from_numpy(model.predict(query[inside].numpy()))
    assert near(attention(query, key, value, score=Boxcar(1.0))[inside], expected)


@pytest.mark.slow
def test_cosine_of_scikit_learn() -> None:
    pairwise = pytest.importorskip("sklearn.metrics.pairwise")
    query, key = torch.randn(5, 4, dtype=torch.float64), torch.randn(7, 4, dtype=torch.float64)
    assert near(Cosine()(query, key), torch.from_numpy(pairwise.cosine_similarity(query, key)))


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def test_gaussian_under_sum_is_squared_distance_under_softmax() -> None:
    query, key, value = draw(5, 4), draw(7, 4), draw(7, 2)
    gaussian = attention(query, key, value, score=Gaussian(1.3))
    assert near(gaussian, attention(query, key, value, score=SquaredDistance(1.3)))


def test_a_gaussian_under_its_sum_does_not_underflow() -> None:
    query, key, value = torch.zeros(1, 1), torch.tensor([[50.0], [51.0]]), torch.tensor([[1.0], [2.0]])
    assert (Gaussian()(query, key) == 0).all()
    for score in (Gaussian(), SquaredDistance()):
        assert attention(query, key, value, score=score).item() == pytest.approx(1.0)


def test_unit_vectors_make_distance_a_dot_product() -> None:
    """‖q−k‖² = 2 − 2q·k for unit vectors: the same softmax."""
    query, key = (torch.nn.functional.normalize(draw(n, 6), dim=-1) for n in (5, 7))
    value = draw(7, 2)
    assert near(attention(query, key, value, score=SquaredDistance()), attention(query, key, value, score=Dot()))


def test_bilinear_compares_vectors_of_different_widths() -> None:
    query, key, weight = draw(5, 3), draw(7, 4), draw(3, 4)
    expected = torch.stack([torch.stack([q @ weight @ k for k in key]) for q in query])
    assert near(Bilinear(weight)(query, key), expected)


def test_bilinear_with_the_identity_is_the_dot_product() -> None:
    query, key = draw(5, 4), draw(7, 4)
    assert near(Bilinear(torch.eye(4, dtype=torch.float64))(query, key), Dot()(query, key))


def test_additive_over_a_concatenation_is_one_matrix() -> None:
    """Luong's "concat": W [q; k] is W_q q + W_k k."""
    query, key, vector, whole = draw(5, 3), draw(7, 4), draw(6), draw(6, 7)
    pairs = torch.cat([query[:, None].expand(5, 7, 3), key.expand(5, 7, 4)], -1)
    expected = torch.tanh(pairs @ whole.T) @ vector
    assert near(Additive(vector, whole[:, :3], whole[:, 3:])(query, key), expected)


def test_projected_keys_are_projected_once() -> None:
    query, key, vector, left, right = draw(5, 3), draw(7, 4), draw(6), draw(6, 3), draw(6, 4)
    assert near(Additive(vector, left)(query, key @ right.T), Additive(vector, left, right)(query, key))


def test_concat_is_a_vector_over_the_concatenation() -> None:
    query, key, whole = draw(5, 3), draw(7, 4), draw(7)
    pairs = torch.cat([query[:, None].expand(5, 7, 3), key.expand(5, 7, 4)], -1) @ whole
    assert near(Concat(whole[:3], whole[3:])(query, key), pairs.relu())
    leaky = torch.nn.functional.leaky_relu(pairs, 0.2)
    assert near(Concat(whole[:3], whole[3:], "leaky_relu")(query, key), leaky)


def test_scaled_dots_have_unit_variance() -> None:
    """Vaswani et al. 2017, footnote 4: the variance of q·k is D, which 1/√D cancels."""
    for width in (4, 64, 1024):
        scores = ScaledDot()(torch.randn(400, width), torch.randn(400, width))
        assert scores.var().item() == pytest.approx(1.0, abs=0.1)


def test_softcap_bounds_and_leaves_small_scores() -> None:
    query, key = torch.ones(1, 1), torch.tensor([[-1e6], [1e-3], [1e6]])
    capped = ScaledDot(scale=1.0, softcap=50.0)(query, key)
    assert torch.allclose(capped, torch.tensor([[-50.0, 1e-3, 50.0]]))


def test_zeroing_values_is_not_masking() -> None:
    """The weights given to padding are lost to the rest of the row."""
    query, key, value = draw(2, 3, 4), draw(2, 5, 4), torch.ones(2, 5, 1, dtype=torch.float64)
    seen = lengths(torch.tensor([5, 2]))
    zeroed = value.clone()
    zeroed[1, 2:] = 0
    assert near(attention(query, key, value, mask=seen), torch.ones(2, 3, 1, dtype=torch.float64))
    assert (attention(query, key, zeroed)[1] < 0.999).all()


def test_softmax_of_equal_scores_is_the_mean() -> None:
    value = draw(7, 2)
    output = attention(torch.zeros(1, 3, dtype=torch.float64), draw(7, 3), value, normalizer=Softmax())
    assert near(output, value.mean(0, keepdim=True))


@pytest.mark.parametrize("power", [1, 2, 3, 4])
def test_epanechnikov_of_any_power_is_its_equation(power: int) -> None:
    query, key = torch.randn(5, 3, dtype=torch.float64), torch.randn(7, 3, dtype=torch.float64)
    expected = (1 - (torch.cdist(query, key) / 2.5) ** power).clamp(min=0)
    torch.testing.assert_close(Epanechnikov(2.5, power)(query, key), expected)
