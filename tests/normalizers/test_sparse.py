"""Sparsemax and entmax agree with the entmax package and with brute force over every support."""

from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.contract.calls import near
from torch import Tensor

from qkv.normalizers import sparse
from qkv.normalizers.dense import Softmax
from qkv.normalizers.sparse import Entmax, Sparsemax

entmax = pytest.importorskip("entmax")
ALPHAS = (1.05, 1.2, 1.5, 1.8, 2.0, 2.5, 4.0)


def draw(*shape: int, scale: float = 2.0) -> Tensor:
    return (torch.randn(*shape, dtype=torch.float64) * scale).requires_grad_()


def with_gradient(function, s: Tensor) -> tuple[Tensor, Tensor]:
    weights = function(s)
    cotangent = torch.linspace(-1, 1, weights.numel(), dtype=s.dtype).view(weights.shape)
    return weights, torch.autograd.grad(weights, s, cotangent)[0]


@pytest.mark.parametrize("keys", [1, 2, 5, 60])
def test_sparsemax_agrees_with_the_package(keys: int) -> None:
    s = draw(40, keys)
    ours, gradient = with_gradient(Sparsemax(), s)
    theirs, expected = with_gradient(lambda x: entmax.sparsemax(x, -1), s)
    assert near(ours, theirs)
    assert near(gradient, expected)


@pytest.mark.parametrize("keys", [1, 2, 5, 60])
def test_entmax15_agrees_with_the_package(keys: int) -> None:
    s = draw(40, keys)
    ours, gradient = with_gradient(Entmax(), s)
    theirs, expected = with_gradient(lambda x: entmax.entmax15(x, -1), s)
    assert near(ours, theirs, 4000)
    assert near(gradient, expected, 4000)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_any_alpha_agrees_with_the_package(alpha: float) -> None:
    """The package stops after a fixed number of bisections: the tolerance is its own."""
    s = draw(40, 12)
    ours, gradient = with_gradient(Entmax(torch.tensor(alpha, dtype=torch.float64)), s)
    theirs, expected = with_gradient(lambda x: entmax.entmax_bisect(x, alpha, -1, n_iter=60), s)
    assert torch.allclose(ours, theirs, atol=1e-9)
    assert torch.allclose(gradient, expected, atol=1e-6)


@pytest.mark.parametrize("alpha", [1.5, 2.0])
@pytest.mark.parametrize("scale", [1e-5, 0.3, 1.0, 50.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sorting_and_newton_steps_find_the_same_weights(alpha: float, scale: float, dtype: torch.dtype) -> None:
    """Few numbers are sorted, many are not: rows of one call must not depend on the rows beside them."""
    for keys in (1, 2, 40, 700):
        z = torch.randn(12, keys, dtype=dtype) * scale
        z = z - z.amax(-1, keepdim=True)
        few = sparse.projection(z, alpha)[0]
        many = sparse.projection(z.repeat(2 * sparse._FEW // z.numel() + 1, 1), alpha)[0][:12]
        assert (few - many).abs().max() <= 8 * torch.finfo(dtype).eps
        assert (few.sum(-1) - 1).abs().max() <= 4 * keys * torch.finfo(dtype).eps


@pytest.mark.parametrize("normalizer", [Sparsemax(), Entmax()], ids=["sparsemax", "entmax"])
def test_closed_gradients_are_those_of_the_equation(normalizer) -> None:
    s = draw(4, 9)
    assert torch.autograd.gradcheck(normalizer, s)
    assert torch.autograd.gradgradcheck(normalizer, s)
    tangent = torch.randn_like(s)
    expected = torch.autograd.functional.jvp(normalizer, s.detach(), tangent)[1]
    assert near(torch.func.jvp(normalizer, (s.detach(),), (tangent,))[1], expected)


@pytest.mark.parametrize("alpha", [1.2, 1.5, 1.8])
def test_the_gradient_of_alpha_agrees_with_the_package(alpha: float) -> None:
    s, cotangent = draw(40, 12).detach(), torch.randn(40, 12, dtype=torch.float64)
    found = []
    for function in (lambda a: Entmax(a[0])(s), lambda a: entmax.entmax_bisect(s, a, -1, n_iter=60)):
        a = torch.full((1,), alpha, dtype=torch.float64, requires_grad=True)
        found.append(torch.autograd.grad(function(a), a, cotangent)[0])
    assert torch.allclose(*found, rtol=1e-6)


def test_a_number_is_as_exact_as_a_tensor() -> None:
    s = draw(20, 9)
    for alpha in (1.3, 1.5, 1.75):
        assert near(Entmax(alpha)(s), Entmax(torch.tensor(alpha, dtype=torch.float64))(s), 4000)


def hard_rows(keys: int, dtype: torch.dtype) -> Tensor:
    """Rows that need many iterations: all scores alike, a long tail, gaps of every size, one key far above."""
    at = torch.linspace(0, 1, keys, dtype=torch.float64)
    rows = [torch.randn(keys, dtype=torch.float64) * scale for scale in (0.003, 0.1, 1.0, 5.0)]
    rows += [-(10 ** (7 * at - 6)), -3 * at, -at.sqrt(), (at + 1e-9).log(), -(at > 0).double() / 2]
    return torch.stack(rows).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("alpha", [1.001, 1.3, 1.5, 1.9, 1.9999, 2.0])
@pytest.mark.parametrize("as_tensor", [False, True])
def test_rows_sum_to_one_but_for_rounding(alpha: float, dtype: torch.dtype, as_tensor: bool) -> None:
    """Each weight is t^p: rounding the threshold changes each weight by p·t^(p−1) roundoffs."""
    unit = torch.finfo(dtype).eps
    for keys in (1, 2, 40, 3000):
        z = hard_rows(keys, dtype)
        weights = Entmax(torch.tensor(alpha, dtype=torch.float64) if as_tensor else alpha)(z)
        assert weights.dtype == dtype
        slopes = torch.where(weights > 0, weights ** (2 - alpha) / (alpha - 1), 0.0).sum(-1)
        assert ((weights.sum(-1) - 1).abs() <= (8 + 2 * slopes) * unit).all()


def test_above_two_the_largest_weights_are_those_of_the_halved_interval() -> None:
    """For alpha above 2 a weight's slope is infinite at 0: sums can be off by the rounding of the scores."""
    for alpha in (2.2, 3.0):
        z = hard_rows(40, torch.float64)
        assert torch.allclose(Entmax(alpha)(z), entmax.entmax_bisect(z, alpha, -1, n_iter=100), atol=1e-7)


def test_what_is_not_a_number_stays_visible() -> None:
    z = torch.tensor([[0.0, torch.nan, 1.0], [0.0, 1.0, 2.0]])
    for normalizer in (Entmax(), Entmax(1.3), Entmax(torch.tensor(1.7)), Entmax(3.0), Sparsemax()):
        weights = normalizer(z)
        assert weights[0].isnan().any(), normalizer
        assert weights[1].isfinite().all(), normalizer


def test_two_is_sparsemax_and_towards_one_is_softmax() -> None:
    s = draw(20, 9)
    assert near(Entmax(2.0)(s), Sparsemax()(s), 4000)
    assert torch.allclose(Entmax(1.0001)(s), Softmax()(s), atol=1e-3)


def brute_force(s: Tensor) -> Tensor:
    """The nearest point of the simplex: the best over every possible support."""
    best, found = torch.inf, torch.zeros_like(s)
    for size in range(1, len(s) + 1):
        for support in combinations(range(len(s)), size):
            p = torch.zeros_like(s)
            inside = s[list(support)]
            p[list(support)] = inside - (inside.sum() - 1) / size
            distance = (p - s).square().sum().item()
            if (p >= 0).all() and distance < best:
                best, found = distance, p
    return found


scores = st.lists(st.floats(-3, 3, width=32), min_size=1, max_size=7)


@settings(max_examples=40)
@given(scores)
def test_sparsemax_is_the_projection_on_the_simplex(numbers: list[float]) -> None:
    s = torch.tensor(numbers, dtype=torch.float64)
    assert torch.allclose(Sparsemax()(s[None])[0], brute_force(s), atol=1e-9)


@settings(max_examples=40)
@given(scores, st.sampled_from(ALPHAS))
def test_weights_are_a_distribution(numbers: list[float], alpha: float) -> None:
    s = torch.tensor([numbers], dtype=torch.float64)
    for weights in (Entmax(alpha)(s), Sparsemax()(s), Entmax()(s)):
        assert (weights >= 0).all()
        assert abs(weights.sum().item() - 1) < 1e-9
        order = s.argsort()
        assert (weights.gather(-1, order).diff() >= -1e-9).all(), "a larger score has no smaller weight"


@settings(max_examples=40)
@given(scores, st.floats(-1e3, 1e3), st.sampled_from(ALPHAS))
def test_a_constant_added_to_a_row_changes_nothing(numbers: list[float], shift: float, alpha: float) -> None:
    s = torch.tensor([numbers], dtype=torch.float64)
    assert torch.allclose(Entmax(alpha)(s + shift), Entmax(alpha)(s), atol=1e-6)
    assert torch.allclose(Sparsemax()(s + shift), Sparsemax()(s), atol=1e-9)


@pytest.mark.parametrize("normalizer", [Sparsemax(), Entmax(), Entmax(1.3)], ids=repr)
def test_hidden_keys_are_as_if_they_were_not_there(normalizer) -> None:
    s, seen = draw(8, 9), torch.tensor([True] * 6 + [False] * 3)
    assert near(normalizer(s, seen)[:, :6], normalizer(s[:, :6]), 4000)
    assert (normalizer(s, seen)[:, 6:] == 0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_long_rows_in_half_precision_still_sum_to_one(dtype: torch.dtype) -> None:
    """With 4,000 keys, ranks and running sums need more digits than half precision has."""
    s = (torch.randn(3, 4000) / 100).to(dtype)
    for normalizer in (Sparsemax(), Entmax(), Entmax(1.3)):
        total = normalizer(s).double().sum(-1)
        assert ((total - 1).abs() < 8 * torch.finfo(dtype).eps).all(), normalizer
