"""Every kernel on few enough numbers to run as plain Python too, where `make coverage` sees its lines."""

from typing import Any

import pytest
import torch
from torch import Tensor

import qkv
from qkv.masks import causal, lengths
from qkv.normalizers import Entmax, Identity, Mean, Sigmoid, Softmax, Sparsemax
from qkv.scores import Additive, Boxcar, Concat, Epanechnikov, Gaussian, ScaledDot, SquaredDistance

# Dropout multiplies counters modulo 2^32 on purpose, and NaN has no exponent; Numba computes both silently, NumPy
# warns.
pytestmark = [
    pytest.mark.kernels,
    pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning"),
]
HEADS, QUERIES, KEYS, WIDTH, COLUMNS = 2, 32, 34, 3, 2
MANY = 70
"""More keys than one pass over 64."""
DENSE = torch.arange(QUERIES * KEYS).view(QUERIES, KEYS) % 3 > 0
BIAS = torch.linspace(-2, 2, QUERIES * KEYS, dtype=torch.float64).view(QUERIES, KEYS)
VECTOR = torch.linspace(-1, 1.5, WIDTH, dtype=torch.float64)
ADDITIVE: dict[str, dict[str, Any]] = {
    "softmax": {},
    "a sink": {"normalizer": Softmax(torch.tensor([0.3, -1.0], dtype=torch.float64))},
    "causal": {"mask": causal()},
    "a table": {"mask": DENSE},
    "a bias": {"bias": BIAS},
    "mean": {"normalizer": Mean()},
    "sigmoid": {"normalizer": Sigmoid()},
    "identity and a table": {"normalizer": Identity(), "mask": DENSE},
    "mean, a table and a bias": {"normalizer": Mean(), "mask": DENSE, "bias": BIAS},
    "dropout": {"dropout": 0.4},
}
PRODUCTS: dict[str, dict[str, Any]] = {
    "dropout": {"dropout": 0.4},
    "a sink": {"normalizer": Softmax(torch.tensor([0.3, -1.0], dtype=torch.float64))},
    "sparsemax": {"normalizer": Sparsemax()},
    "entmax 1.5": {"normalizer": Entmax(), "mask": causal()},
    "entmax 1.3": {"normalizer": Entmax(1.3), "mask": DENSE},
    "entmax of rows that see nothing": {"normalizer": Entmax(), "mask": causal(-3)},
    "softmax of rows that see nothing": {"mask": causal(-3)},
    "mean and a bias": {"normalizer": Mean(), "bias": torch.linspace(-2, 2, KEYS, dtype=torch.float64)},
    "mean and a table": {"normalizer": Mean(), "mask": DENSE},
    "identity and a table": {"normalizer": Identity(), "mask": DENSE},
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


def answers(backend: str, leaves: list[Tensor], learned: Any = None, **given: Any) -> list[Tensor]:
    """The output and the gradients, also of a parameter if a function that builds a mechanism from it is given."""
    fresh = [x.clone().requires_grad_() for x in leaves]
    seed = torch.Generator().manual_seed(3)
    if learned is not None:
        parameter = learned[0].clone().requires_grad_()
        made = learned[1](parameter)
        given["normalizer" if isinstance(made, Entmax) else "score"] = made
        output = qkv.attention(*fresh, backend=backend, **given)
        wanted = [*fresh, parameter]
        return [output, *torch.autograd.grad(output.square().sum(), wanted, materialize_grads=True)]
    output = qkv.attention(*fresh, backend=backend, generator=seed, **given)
    return [output, *torch.autograd.grad(output.square().sum(), fresh, materialize_grads=True)]


def assert_served(backend: str, leaves: list[Tensor], **given: Any) -> None:
    wide = [x.double() for x in leaves]
    limit = 1e-12 if leaves[0].dtype == torch.float64 else 1e-4
    for ours, theirs in zip(answers(backend, leaves, **given), answers("reference", wide, **given), strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=limit, atol=limit)


def inputs(queries: int = QUERIES, scale: float = 1.0, keys: int = KEYS) -> list[Tensor]:
    query = scale * torch.randn(1, HEADS, queries, WIDTH, dtype=torch.float64)
    key = scale * torch.randn(1, HEADS, keys, WIDTH, dtype=torch.float64)
    return [query, key, torch.randn(1, HEADS, keys, COLUMNS, dtype=torch.float64)]


@pytest.mark.parametrize("name", ADDITIVE)
def test_additive_scores(name: str) -> None:
    assert_served("fused", inputs(), score=Additive(VECTOR), **ADDITIVE[name])


@pytest.mark.parametrize("scale", [1e-3, 5.0, 60.0])
def test_additive_scores_of_any_size(scale: float) -> None:
    """Each size selects another way to compute a tanh."""
    assert_served("fused", inputs(scale=scale), score=Additive(VECTOR))


@pytest.mark.parametrize("scale", [1e-3, 1.0, 60.0])
@pytest.mark.parametrize("queries", [1, QUERIES])
def test_additive_scores_in_single_precision(queries: int, scale: float) -> None:
    ours, theirs = (
        answers(backend, [x.to(dtype) for x in leaves], score=Additive(VECTOR.to(dtype)))
        for leaves in [inputs(queries, scale)]
        for backend, dtype in (("fused", torch.float32), ("reference", torch.float64))
    )
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)


OF_ONE = {
    **{name: ADDITIVE[name] for name in ("softmax", "mean", "sigmoid", "dropout")},
    "a table": {"mask": DENSE[:1]},
    "a bias": {"bias": torch.linspace(-2, 2, KEYS, dtype=torch.float64)},
    "nothing to see": {"mask": lengths(0)},
    "a table that hides all": {"mask": torch.zeros(1, KEYS, dtype=torch.bool)},
}


@pytest.mark.parametrize("name", OF_ONE)
def test_additive_scores_of_one_query(name: str) -> None:
    assert_served("fused", inputs(queries=1), score=Additive(VECTOR), **OF_ONE[name])


@pytest.mark.parametrize(
    ("backend", "given"),
    [
        ("fused", {"score": Additive(VECTOR)}),
        ("rowwise", {"bias": torch.linspace(-2, 2, MANY, dtype=torch.float64)}),
        ("rowwise", {"normalizer": Entmax()}),
    ],
)
@pytest.mark.parametrize("queries", [1, 5])
def test_rows_of_many_keys(queries: int, backend: str, given: dict[str, Any]) -> None:
    assert_served(backend, inputs(queries, keys=MANY), **given)


@pytest.mark.parametrize("name", PRODUCTS)
def test_passes_over_products(name: str) -> None:
    assert_served("rowwise", inputs(), score=ScaledDot(), **PRODUCTS[name])


@pytest.mark.parametrize("scale", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("name", DISTANCES)
def test_passes_over_distances(name: str, scale: float) -> None:
    """Near points and far points use different types for products."""
    assert_served("rowwise", [x.float() for x in inputs(scale=scale)], **DISTANCES[name])


@pytest.mark.parametrize("score", [SquaredDistance, Gaussian, Epanechnikov, lambda h: Epanechnikov(h, power=3)])
@pytest.mark.parametrize("scale", [0.1, 3.0], ids=["near", "far"])
def test_gradients_of_a_bandwidth_for_each_head(score: Any, scale: float) -> None:
    leaves = inputs(scale=scale)
    ours, theirs = (
        answers(backend, [*(x.to(dtype) for x in leaves)], learned=(torch.tensor([2.0, 4.0], dtype=dtype), score))
        for backend, dtype in (("rowwise", torch.float32), ("reference", torch.float64))
    )
    assert len(ours) == 5
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("alpha", [1.3, 1.5, 2.0])
def test_gradients_of_alpha(alpha: float) -> None:
    leaves = inputs()
    ours, theirs = (
        answers(backend, leaves, learned=(torch.tensor(alpha, dtype=torch.float64), Entmax))
        for backend in ("rowwise", "reference")
    )
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("normalizer", [Softmax(), Sparsemax(), Entmax(), Entmax(1.3)])
def test_what_a_row_sees_and_is_no_number_stays_visible(normalizer: Any) -> None:
    query, key, value = inputs()
    key[0, 0, 4] = torch.nan
    output = qkv.attention(query, key, value, normalizer=normalizer, mask=causal(), backend="rowwise")
    assert output[0, 0, 4:].isnan().all()
    assert not output[0, 0, :4].isnan().any()
    assert not output[0, 1].isnan().any()


def test_sums_over_weights() -> None:
    query, key, _ = (x.float() for x in inputs())
    ours = qkv.attention_map(query, key, mask=causal(2))
    weights = torch.softmax(
        (query @ key.mT * WIDTH**-0.5).masked_fill(~torch.ones(QUERIES, KEYS).bool().tril(2), -torch.inf), -1
    )
    torch.testing.assert_close(ours.received(), weights.double().sum(-2), check_dtype=False, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ours.topk(3)[0], weights.topk(3).values, check_dtype=False, rtol=1e-5, atol=1e-6)
    entropy = torch.special.entr(weights).sum(-1)
    torch.testing.assert_close(ours.entropy(), entropy, check_dtype=False, rtol=1e-5, atol=1e-6)


ON_A_LINE: dict[str, dict[str, Any]] = {
    "a box": {"score": Boxcar(0.5)},
    "a parabola": {"score": Epanechnikov(0.5), "mask": lengths(7)},
    "a triangle": {"score": Epanechnikov(0.5, power=1)},
    "a parabola under mean": {"score": Epanechnikov(0.5), "normalizer": Mean()},
}
BENT: dict[str, dict[str, Any]] = {
    "a rectified sum": {"score": Concat(VECTOR, VECTOR), "normalizer": Mean()},
    "a leaky sum": {"score": Concat(VECTOR, VECTOR, "leaky_relu"), "normalizer": Identity(), "mask": lengths(7)},
    "a leaky sum under softmax": {"score": Concat(VECTOR, VECTOR, "leaky_relu")},
}


@pytest.mark.parametrize("name", [*ON_A_LINE, *BENT])
def test_sorted_numbers(name: str) -> None:
    query, key, value = inputs()
    if name in ON_A_LINE:
        query, key = query[..., :1], key[..., :1]
    assert_served("sorted", [query, key, value], **(ON_A_LINE | BENT)[name])
