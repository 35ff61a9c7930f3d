"""Squared distances of small calls against the equation in float64, near and far from 0."""

import pytest
import torch
from torch import Tensor

from qkv.algorithms.matrix import distance_scores
from qkv.scores.base import Score
from qkv.scores.kernels import Boxcar, Epanechnikov, Gaussian, SquaredDistance
from qkv.scores.pointwise import rooted

SCORES = (SquaredDistance(1.5), Gaussian(3.0), Epanechnikov(6.0), Epanechnikov(6.0, power=8), Epanechnikov(6.0, 1))
WIDTHS = (1, 2, 5, 33)
PLACES = {"around 0": 0.0, "far from 0": 1000.0, "farther than products allow": 1e6}
METHODS = {"subtraction": 1 << 40, "products": 0}

by_score = pytest.mark.parametrize("score", SCORES, ids=str)


@pytest.fixture
def method(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    monkeypatch.setattr(distance_scores, "DIFFERENCES", METHODS[name])
    return name


def points(width: int, place: float, shape: tuple[int, ...] = (3,)) -> list[Tensor]:
    draw = torch.Generator().manual_seed(width)
    return [(torch.randn(*shape, n, width, generator=draw) + place).requires_grad_() for n in (17, 23)]


def literal(score: Score, query: Tensor, key: Tensor, dtype: torch.dtype) -> list[Tensor]:
    leaves = [x.detach().to(dtype).requires_grad_() for x in (query, key)]
    scores = score(*leaves)
    return [scores.detach().double(), *(g.double() for g in torch.autograd.grad(scores.square().sum(), leaves))]


@by_score
@pytest.mark.parametrize("method", METHODS, indirect=True)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("width", WIDTHS)
def test_scores_are_as_exact_as_the_equation(score: Score, method: str, place: str, width: int) -> None:
    query, key = points(width, PLACES[place])
    scores = distance_scores.scores(score, query, key)
    if scores is None:
        assert method == "products"
        return
    got = [scores.detach().double(), *torch.autograd.grad(scores.square().sum(), (query, key))]
    truth, equation = (literal(score, query, key, dtype) for dtype in (torch.float64, torch.float32))
    for x, r, m in zip(got, truth, equation, strict=True):
        rounding = 2**-23 * r.abs().max()
        assert (x - r).square().mean().sqrt() <= 1.5 * (m - r).square().mean().sqrt() + rounding
        assert (x - r).abs().max() <= 3 * (m - r).abs().max() + rounding


@pytest.mark.parametrize("method", METHODS, indirect=True)
@pytest.mark.parametrize("apart", [0.0, 1e-6, 1e-4, 1e-2])
@pytest.mark.parametrize("score", [s for s in SCORES if rooted(s.pointwise)] + [Epanechnikov(6.0, 1.5)], ids=str)
def test_roots_of_small_distances_keep_their_digits(score: Score, method: str, apart: float) -> None:
    """A few keys lie beside a query, as far from it as is named, and one at the same point."""
    query, key = (x.detach() for x in points(7, 3.0))
    key[:, :9] = query[:, 4:13] + apart * torch.randn(3, 9, 7, generator=torch.Generator().manual_seed(1))
    key[:, 9] = query[:, 0]
    leaves = query.requires_grad_(), key.requires_grad_()
    scores = distance_scores.scores(score, *leaves)
    assert scores is not None
    got = [scores.detach().double(), *torch.autograd.grad(scores.square().sum(), leaves)]
    for x, r in zip(got, literal(score, *leaves, torch.float64), strict=True):
        assert x.isfinite().all()
        assert (x - r).abs().max() <= 4 * 2**-23 * r.abs().max()


@pytest.mark.parametrize("method", ["products"], indirect=True)
def test_products_refuse_what_would_cancel(method: str) -> None:
    """Both sides far from 0 in units of the bandwidth; numbers that are not finite."""
    query, key = points(5, 0.0)
    assert distance_scores.scores(Gaussian(1.0), query, key) is not None
    assert distance_scores.scores(Gaussian(1.0), query + 1e5, key) is not None
    assert distance_scores.scores(Gaussian(1.0), query + 1e5, key + 1e5) is not None
    assert distance_scores.scores(Gaussian(1.0), query * 1e5, key * 1e5) is None
    assert distance_scores.scores(Gaussian(1e5), query * 1e5, key * 1e5) is not None
    for number in (torch.nan, torch.inf):
        assert distance_scores.scores(Gaussian(1.0), query.detach().clone().fill_(number), key) is None


@pytest.mark.parametrize("method", METHODS, indirect=True)
def test_one_far_key_does_not_reach_the_others(method: str) -> None:
    query, key = points(5, 0.0)
    far = torch.cat([key, torch.full((3, 1, 5), 1e15)], -2)
    near, beside = (distance_scores.scores(Gaussian(2.0), query, x) for x in (key, far))
    assert near is not None
    assert beside is not None
    torch.testing.assert_close(beside[..., :-1], near)
    assert beside[..., -1].abs().max() == 0


@pytest.mark.parametrize("method", METHODS, indirect=True)
def test_bandwidths_of_heads_get_gradients(method: str) -> None:
    query, key = points(4, 0.0)
    bandwidth = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    got = distance_scores.scores(SquaredDistance(bandwidth), query, key)
    assert got is not None
    expected = SquaredDistance(bandwidth)(query, key)
    torch.testing.assert_close(got, expected)
    pairs = (torch.autograd.grad(x.sum(), (query, key, bandwidth)) for x in (got, expected))
    for mine, theirs in zip(*pairs, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("method", METHODS, indirect=True)
def test_shared_keys_broadcast(method: str) -> None:
    """As in grouped-query attention, keys have a dimension of size 1."""
    query, key = points(6, 0.0, (2, 3))
    shared = key[:, :1]
    got = distance_scores.scores(Gaussian(2.0), query, shared)
    assert got is not None
    torch.testing.assert_close(got, Gaussian(2.0)(query, shared))


@pytest.mark.parametrize("method", METHODS, indirect=True)
def test_a_boxcar_has_zero_gradients(method: str) -> None:
    query, key = points(4, 0.0)
    bandwidth = torch.tensor(2.0, requires_grad=True)
    got = distance_scores.scores(Boxcar(bandwidth), query, key)
    assert got is not None
    torch.testing.assert_close(got, Boxcar(2.0)(query, key))
    for gradient in torch.autograd.grad(got.sum(), (query, key, bandwidth)):
        assert not gradient.any()


@pytest.mark.parametrize("method", METHODS, indirect=True)
@pytest.mark.parametrize("score", [Gaussian(2.0), Epanechnikov(9.0, power=1)], ids=str)
def test_second_derivatives_are_those_of_the_equation(score: Score, method: str) -> None:
    query, key = points(3, 0.0, (1,))
    key = torch.cat([key[:, 1:], query[:, :1].detach() + 1e-3], 1)
    answers = []
    for scores in (distance_scores.scores(score, query, key), score(query, key)):
        assert scores is not None
        (slope,) = torch.autograd.grad(scores.square().sum(), query, create_graph=True)
        answers.append(torch.autograd.grad(slope.square().sum(), key)[0])
    torch.testing.assert_close(*answers)


@pytest.mark.parametrize("score", [Gaussian(1.0), Boxcar(1.0), Epanechnikov(1.0, power=1)], ids=str)
def test_nan_stays_visible_in_its_row_or_column(score: Score) -> None:
    query, key = (x.detach() for x in points(4, 0.0))
    key[:, 3, 1] = torch.nan
    got = distance_scores.scores(score, query, key)
    assert got is not None
    assert got[..., 3].isnan().all()
    assert got.isnan().sum() == 3 * 17


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_widened(dtype: torch.dtype) -> None:
    query, key = (x.detach().to(dtype) for x in points(7, 0.0))
    got = distance_scores.scores(Gaussian(2.0), query, key)
    assert got is not None
    torch.testing.assert_close(got, Gaussian(2.0)(query.float(), key.float()))
