"""Tiles of near points against the same equation in float64, at sizes where tables, tiles and groups have edges."""

import pytest
import torch
from torch import Tensor

import qkv
from qkv.errors import UnsupportedError
from qkv.scores import Boxcar, Epanechnikov, Gaussian, SquaredDistance
from qkv.scores.base import Score

pytestmark = pytest.mark.kernels

SCORES = [SquaredDistance(9.0), Gaussian(9.0), Boxcar(5.0), Epanechnikov(9.0)]
SIZES = [(1, 1, 1, 1), (5, 40, 3, 20), (130, 17, 16, 1), (257, 530, 20, 33)]


def inputs(queries: int, keys: int, width: int, wide: int) -> list[Tensor]:
    torch.manual_seed(queries)
    shapes = (2, 3, queries, width), (2, 3, keys, width), (2, 3, keys, wide)
    return [torch.randn(shape).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("score", SCORES, ids=str)
def test_outputs_are_those_of_the_equation(score: Score, size: tuple[int, ...]) -> None:
    given = [x.detach() for x in inputs(*size)]
    found = qkv.attention(*given, score=score, backend="rowwise.distance_tiles")
    exact = qkv.attention(*(x.double() for x in given), score=score, backend="reference")
    torch.testing.assert_close(found, exact.float(), rtol=3e-5, atol=3e-6)


@pytest.mark.parametrize("size", SIZES)
def test_gradients_are_those_of_the_equation(size: tuple[int, ...]) -> None:
    score, given = Boxcar(5.0), inputs(*size)
    probe = torch.randn(2, 3, size[0], size[3])
    found = torch.autograd.grad(
        (qkv.attention(*given, score=score, backend="rowwise.distance_tiles") * probe).sum(), given
    )
    exact = [x.detach().double().requires_grad_() for x in given]
    wanted = torch.autograd.grad((qkv.attention(*exact, score=score, backend="reference") * probe).sum(), exact)
    for own, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(own, other.float(), rtol=3e-4, atol=3e-5)
        own.mul_(2)


def test_both_passes_see_the_same_neighbors() -> None:
    """The output is linear in the values: its sum is their gradient's, even if a row's only key is at the edge."""
    torch.manual_seed(0)
    query, key = torch.randn(50, 2000, 16) * 0.05, torch.randn(50, 1, 16) * 0.05
    query = key + torch.nn.functional.normalize(query - key, dim=-1)
    value = torch.ones(50, 1, 1, requires_grad=True)
    for score in (Boxcar(1.0), Epanechnikov(1.0)):
        output = qkv.attention(query, key, value, score=score, backend="rowwise")
        (gradient,) = torch.autograd.grad(output.sum(), value)
        torch.testing.assert_close(output.detach().sum((1, 2)), gradient[:, 0, 0])


# PyTorch's kernel, which computes Gaussians of large values, also divides at the end.
@pytest.mark.parametrize(("score", "size"), [*((score, 1e-33) for score in SCORES), *((x, 1e37) for x in SCORES[2:])])
def test_values_may_be_of_any_size(score: Score, size: float) -> None:
    query, key, value = (x.detach() for x in inputs(20, 100, 4, 3))
    value = value.abs() + 0.5
    found = qkv.attention(query, key, value * size, score=score, backend="rowwise") / size
    exact = qkv.attention(query.double(), key.double(), value.double(), score=score, backend="reference")
    torch.testing.assert_close(found, exact.float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("keys", [30, 32, 520])
def test_a_bandwidth_beyond_float32_is_flat(keys: int) -> None:
    query, key, value = (x.detach() for x in inputs(40, keys, 4, 2))
    found = qkv.attention(query, key, value, score=Gaussian(1e23))
    torch.testing.assert_close(found, value.mean(-2, keepdim=True).expand_as(found), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("narrow", [False, True])
def test_a_boxcar_pulls_the_values_of_its_neighbors(narrow: bool) -> None:
    query, key, value = inputs(300, 300, *((2, 1) if narrow else (16, 16)))
    score = Boxcar(3.0 if narrow else 5.0)
    output = qkv.attention(query, key, value, score=score, backend="rowwise.distance_tiles")
    (found,) = torch.autograd.grad(output.square().sum(), value)
    seen = torch.cdist(query.detach(), key.detach()) <= score.bandwidth
    weights = (seen / seen.sum(-1, keepdim=True).clamp(min=1)).double()
    wanted = weights.mT @ (2 * weights @ value.detach().double())
    torch.testing.assert_close(found, wanted.float(), rtol=1e-5, atol=1e-5)


def test_deep_gaussians_are_left_to_others() -> None:
    query, key, value = (x.detach() for x in inputs(20, 30, 4, 4))
    key[..., 0] += 20
    with pytest.raises(UnsupportedError, match=r"sums of the values may leave float32|too far"):
        qkv.attention(query, key, value, score=Gaussian(2.0), backend="rowwise.distance_tiles")
    found = qkv.attention(query, key, value, score=Gaussian(2.0))
    exact = qkv.attention(query.double(), key.double(), value.double(), score=Gaussian(2.0), backend="reference")
    torch.testing.assert_close(found, exact.float(), rtol=1e-4, atol=1e-5)


def test_a_row_without_neighbors_is_zero_and_pulls_nothing() -> None:
    query, key, value = inputs(40, 50, 3, 5)
    with torch.no_grad():
        query[0, 0, 7] = 5.0
    output = qkv.attention(query, key, value, score=Boxcar(2.0), backend="rowwise")
    assert (output[0, 0, 7] == 0).all()
    gradients = torch.autograd.grad(output[0, 0, 7].sum(), (query, key, value))
    assert all((x == 0).all() for x in gradients)


def test_explain_tells_of_the_tiles() -> None:
    query, key, value = inputs(20, 30, 4, 4)
    found = qkv.explain(query, key, value, score=Boxcar(9.0), backend="rowwise.distance_tiles")
    assert "stay in the caches" in found.why
    assert "single precision" in found.why
    with pytest.raises(UnsupportedError, match="only boxcars have a backward pass"):
        qkv.explain(query, key, value, score=Gaussian(9.0), backend="rowwise.distance_tiles")
