"""Squared distances as dot products in PyTorch's fused kernel: the same weights, wherever the guard allows it."""

import pytest
import torch
from torch import Tensor

import qkv
from qkv.algorithms.rowwise import distances
from qkv.errors import UnsupportedError
from qkv.masks import causal, lengths, window
from qkv.normalizers import Softmax
from qkv.scores import Epanechnikov, Gaussian, SquaredDistance

B, H, Q, K, D, V = 2, 3, 40, 33, 5, 7
MASKS = {
    "none": None,
    "causal": causal(),
    "lengths": lengths(torch.tensor([K, 0])),
    "either": window(1, 0) | lengths(torch.tensor([2, 0])),
    "dense": torch.arange(Q * K).view(Q, K) % 3 == 0,
}
PRODUCTS = "requested by name: distances as dot products in PyTorch's fused kernel"


def inputs() -> list[Tensor]:
    return [torch.randn(shape, requires_grad=True) for shape in ((B, H, Q, D), (B, H, K, D), (B, H, K, V))]


def told(*tensors: Tensor, **given: object) -> str:
    try:
        return " ".join(str(qkv.explain(*tensors, backend="rowwise.augmented_dot", **given)).split())  # type: ignore[arg-type]
    except UnsupportedError as error:
        return str(error)


@pytest.mark.kernels
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("score", [SquaredDistance, Gaussian])
def test_weights_are_those_of_the_equation(score: type, mask: str) -> None:
    leaves, h = inputs(), torch.tensor([4.0, 5.0, 7.0], requires_grad=True)
    assert PRODUCTS in told(*leaves, score=score(h), mask=MASKS[mask])
    cotangent = torch.randn(B, H, Q, V)
    answers = []
    for backend, dtype in (("reference", torch.float64), ("rowwise.augmented_dot", torch.float32)):
        tensors = [x.detach().to(dtype).requires_grad_() for x in (*leaves, h)]
        output = qkv.attention(*tensors[:3], score=score(tensors[3]), mask=MASKS[mask], backend=backend)
        answers.append((output, *torch.autograd.grad(output, tensors, cotangent.to(dtype))))
    for expected, got in zip(*answers, strict=True):
        torch.testing.assert_close(got.double(), expected, rtol=1e-4, atol=2e-6)


def test_a_gaussian_far_from_its_keys_weighs_them_as_in_log_space() -> None:
    """Far queries and keys near zero: every e^−x is 0, but their shares are not."""
    query, key, value = 1000 * torch.ones(1, 4), 1e-4 * torch.randn(6, 4), torch.ones(6, 2)
    assert PRODUCTS not in told(query, key, value, score=Gaussian())
    torch.testing.assert_close(qkv.attention(query, key, value, score=Gaussian()), torch.ones(1, 2))


@pytest.mark.parametrize(
    "given",
    [
        {"score": SquaredDistance(9.0), "bias": torch.zeros(K)},
        {"score": SquaredDistance(9.0), "normalizer": Softmax(torch.zeros(()))},
        {"score": SquaredDistance(9.0), "dropout": 0.5},
        {"score": Epanechnikov(9.0)},
    ],
)
def test_what_is_no_plain_softmax_stays_with_the_rows(given: dict[str, object]) -> None:
    assert PRODUCTS not in told(*inputs(), **given)


def test_values_that_are_not_finite_are_no_reason_to_trust_norms() -> None:
    none = float("nan")
    assert not distances.no_row_underflows((none, 0.0), torch.zeros(1, 1), 1.0, True)
    assert not distances.no_row_underflows((0.0, none), torch.tensor([[0.0], [none]]), 1.0, True)


@pytest.mark.kernels
@pytest.mark.parametrize("score", [SquaredDistance, Gaussian])
@pytest.mark.parametrize("far", [30.0, 1e3, 1e7])
def test_a_key_far_from_all_others_leaves_them_to_products(score: type, far: float) -> None:
    leaves = inputs()
    with torch.no_grad():
        leaves[1][..., 5, :] = far
    assert PRODUCTS in told(*leaves, score=score(4.0))
    assert PRODUCTS not in told(*leaves, score=score(4.0), mask=causal())  # the first row sees one key only
    answers = []
    for backend, dtype in (("reference", torch.float64), ("rowwise.augmented_dot", torch.float32)):
        tensors = [x.detach().to(dtype).requires_grad_() for x in leaves]
        output = qkv.attention(*tensors, score=score(4.0), backend=backend)
        answers.append((output, *torch.autograd.grad(output.square().sum(), tensors)))
    for expected, got in zip(*answers, strict=True):
        torch.testing.assert_close(got.double(), expected, rtol=1e-4, atol=2e-6)
