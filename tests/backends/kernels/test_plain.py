"""Every kernel on a few numbers: few enough to run as plain Python too, where `make coverage` sees their lines."""

from typing import Any

import pytest
import torch
from torch import Tensor

import qkv
from qkv.masks import causal, lengths
from qkv.normalizers import Entmax, Mean, Sigmoid, Softmax, Sparsemax
from qkv.scores import Additive, Boxcar, Epanechnikov, Gaussian, ScaledDot, SquaredDistance

# The counters of dropout are multiplied modulo 2^32 on purpose; Numba does it without a word, NumPy warns.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
HEADS, QUERIES, KEYS, WIDTH, COLUMNS = 2, 9, 11, 3, 2
DENSE = torch.arange(QUERIES * KEYS).view(QUERIES, KEYS) % 3 > 0
VECTOR = torch.linspace(-1, 1.5, WIDTH, dtype=torch.float64)
ADDITIVE: dict[str, dict[str, Any]] = {
    "softmax": {},
    "a sink": {"normalizer": Softmax(torch.tensor([0.3, -1.0], dtype=torch.float64))},
    "causal": {"mask": causal()},
    "a table": {"mask": DENSE},
    "a bias": {"bias": torch.linspace(-2, 2, QUERIES * KEYS, dtype=torch.float64).view(QUERIES, KEYS)},
    "mean": {"normalizer": Mean()},
    "sigmoid": {"normalizer": Sigmoid()},
    "dropout": {"dropout": 0.4},
}
PRODUCTS: dict[str, dict[str, Any]] = {
    "dropout": {"dropout": 0.4},
    "a sink": {"normalizer": Softmax(torch.tensor([0.3, -1.0], dtype=torch.float64))},
    "sparsemax": {"normalizer": Sparsemax()},
    "entmax 1.5": {"normalizer": Entmax(), "mask": causal()},
    "entmax 1.3": {"normalizer": Entmax(1.3), "mask": DENSE},
}
DISTANCES: dict[str, dict[str, Any]] = {
    "squares": {"score": SquaredDistance(2.0)},
    "a bell": {"score": Gaussian(2.0), "mask": causal()},
    "a box": {"score": Boxcar(2.0)},
    "a parabola": {"score": Epanechnikov(3.0), "mask": lengths(7)},
    "a triangle": {"score": Epanechnikov(3.0, power=1)},
    "a cubic": {"score": Epanechnikov(3.0, power=3)},
    "a bell under softmax": {"score": Gaussian(2.0), "normalizer": Softmax(), "mask": DENSE},
}


def answers(backend: str, leaves: list[Tensor], **given: Any) -> list[Tensor]:
    fresh = [x.clone().requires_grad_() for x in leaves]
    seed = torch.Generator().manual_seed(3)
    output = qkv.attention(*fresh, backend=backend, generator=seed, **given)
    return [output, *torch.autograd.grad(output.square().sum(), fresh, materialize_grads=True)]


def assert_served(backend: str, leaves: list[Tensor], **given: Any) -> None:
    wide = [x.double() for x in leaves]
    limit = 1e-9 if leaves[0].dtype == torch.float64 else 1e-4
    for ours, theirs in zip(answers(backend, leaves, **given), answers("reference", wide, **given), strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=limit, atol=limit)


def inputs(queries: int = QUERIES, scale: float = 1.0) -> list[Tensor]:
    query = scale * torch.randn(1, HEADS, queries, WIDTH, dtype=torch.float64)
    key = scale * torch.randn(1, HEADS, KEYS, WIDTH, dtype=torch.float64)
    return [query, key, torch.randn(1, HEADS, KEYS, COLUMNS, dtype=torch.float64)]


@pytest.mark.parametrize("name", ADDITIVE)
def test_additive_scores(name: str) -> None:
    assert_served("fused", inputs(), score=Additive(VECTOR), **ADDITIVE[name])


@pytest.mark.parametrize("scale", [1e-3, 5.0, 60.0])
def test_additive_scores_of_any_size(scale: float) -> None:
    """Each size takes another way to compute a tanh."""
    assert_served("fused", inputs(scale=scale), score=Additive(VECTOR))


@pytest.mark.parametrize("name", ["softmax", "mean", "sigmoid", "dropout"])
def test_additive_scores_of_one_query(name: str) -> None:
    assert_served("fused", inputs(queries=1), score=Additive(VECTOR), **ADDITIVE[name])


@pytest.mark.parametrize("name", PRODUCTS)
def test_passes_over_products(name: str) -> None:
    assert_served("rowwise", inputs(), score=ScaledDot(), **PRODUCTS[name])


@pytest.mark.parametrize("name", DISTANCES)
def test_passes_over_distances(name: str) -> None:
    assert_served("rowwise", [x.float() for x in inputs()], **DISTANCES[name])


def test_sums_over_weights() -> None:
    query, key, _ = (x.float() for x in inputs())
    ours = qkv.attention_map(query, key, mask=causal(2))
    weights = torch.softmax(
        (query @ key.mT * WIDTH**-0.5).masked_fill(~torch.ones(9, 11).bool().tril(2), -torch.inf), -1
    )
    torch.testing.assert_close(ours.received(), weights.double().sum(-2), check_dtype=False, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ours.topk(3)[0], weights.topk(3).values, check_dtype=False, rtol=1e-5, atol=1e-6)
    entropy = torch.special.entr(weights).sum(-1)
    torch.testing.assert_close(ours.entropy(), entropy, check_dtype=False, rtol=1e-5, atol=1e-6)
