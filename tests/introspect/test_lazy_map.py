"""The lazy map: every tile equals the same part of the dense weights."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import qkv
from qkv.errors import ShapeError, UnsupportedError

S, N, M = qkv.scores, qkv.normalizers, qkv.masks

SCORES: dict[str, Callable[[], qkv.scores.Score]] = {
    "scaled_dot": S.ScaledDot,
    "softcap": lambda: S.ScaledDot(softcap=2.0),
    "cosine": lambda: S.Cosine(torch.tensor([1.0, 5.0])),
    "bilinear": lambda: S.Bilinear(torch.randn(2, 4, 4)),
    "additive": lambda: S.Additive(torch.randn(2, 4)),
    "concat": lambda: S.Concat(torch.randn(4), torch.randn(4), "leaky_relu"),
    "squared_distance": lambda: S.SquaredDistance(torch.tensor([0.7, 2.0])),
    "gaussian": S.Gaussian,
    "boxcar": lambda: S.Boxcar(2.5),
    "epanechnikov": lambda: S.Epanechnikov(3.0, power=1),
    "callable": lambda: S.Learned(lambda query, key: query @ key.mT),
}
NORMALIZERS: dict[str, Callable[[], qkv.normalizers.Normalizer]] = {
    "softmax": N.Softmax,
    "sink": lambda: N.Softmax(torch.tensor([0.5, -1.0])),
    "sum": N.Sum,
    "mean": N.Mean,
    "identity": N.Identity,
    "hard": N.Hard,
    "sparsemax": N.Sparsemax,
    "entmax": lambda: N.Entmax(torch.tensor([1.3, 1.8])),
    "sigmoid": N.Sigmoid,
}


def masks() -> list[qkv.masks.Mask | None]:
    return [None, M.causal(), M.lengths(torch.tensor([0, 9])), M.causal() | M.window(1, 2)]


def inputs() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(2, 2, 13, 4), torch.randn(2, 2, 11, 4)


@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize("score", SCORES)
def test_tiles_equal_the_dense_weights(score: str, normalizer: str) -> None:
    query, key = inputs()
    made, rule = SCORES[score](), NORMALIZERS[normalizer]()
    if rule.needs_non_negative and not made.non_negative:
        pytest.skip("Sum refuses scores that may be negative")
    for mask in masks():
        options = {"score": made, "normalizer": rule, "mask": mask}
        _, weights = qkv.attention_with_weights(query, key, key, **options)
        amap = qkv.attention_map(query, key, **options)
        assert amap.shape == tuple(weights.shape)
        for part in ((..., slice(2, 7), slice(1, 9)), (1, 0, slice(None), 3), (0, ..., -1, slice(None)), (...,)):
            torch.testing.assert_close(amap[part], weights[part], atol=2e-5, rtol=2e-5)


def test_rows_columns_and_dense() -> None:
    query, key = inputs()
    weights = qkv.attention_with_weights(query, key, key)[1]
    amap = qkv.attention_map(query, key)
    torch.testing.assert_close(amap.row(-1), weights[..., -1, :])
    torch.testing.assert_close(amap.column(4), weights[..., :, 4])
    torch.testing.assert_close(amap.dense(), weights)


def test_state_of_a_forward_pass_is_used() -> None:
    query, key = inputs()
    state = qkv.attention_with_state(query, key, key)[1]
    amap = qkv.attention_map(query, key, state=state)
    assert amap.state.value.data_ptr() == state.value.data_ptr()
    torch.testing.assert_close(amap.dense(), qkv.attention_with_weights(query, key, key)[1])


def test_grouped_heads_and_bias() -> None:
    torch.manual_seed(0)
    query, key, bias = torch.randn(2, 4, 6, 8), torch.randn(2, 2, 7, 8), torch.randn(4, 6, 7)
    weights = qkv.attention_with_weights(query, key, key, bias=bias, enable_gqa=True)[1]
    amap = qkv.attention_map(query, key, bias=bias, enable_gqa=True)
    torch.testing.assert_close(amap[..., 2:5, 1:4], weights[..., 2:5, 1:4])


def test_rows_that_a_bias_hides_follow_the_dense_weights() -> None:
    query, key = inputs()
    bias = torch.zeros(13, 11)
    bias[5] = -torch.inf
    for normalizer in (N.Hard(), N.Softmax()):
        weights = qkv.attention_with_weights(query, key, key, normalizer=normalizer, bias=bias)[1]
        amap = qkv.attention_map(query, key, normalizer=normalizer, bias=bias)
        torch.testing.assert_close(amap.dense(), weights)


def test_state_of_other_rows_is_refused() -> None:
    query, key = inputs()
    state = qkv.attention_with_state(query[..., :3, :], key, key)[1]
    with pytest.raises(ShapeError, match=r"state: expected softmax \(2, 2, 13\); got softmax \(2, 2, 3\)"):
        qkv.attention_map(query, key, state=state)


def test_dense_refuses_above_its_limit() -> None:
    query, key = inputs()
    with pytest.raises(UnsupportedError, match="limit=None"):
        qkv.attention_map(query, key).dense(limit=10)


@pytest.mark.parametrize("index", [(0, 0, 0, 0, 0), (..., slice(0, 4, 2), 1), "x"])
def test_index_that_is_none(index: object) -> None:
    query, key = inputs()
    with pytest.raises(ShapeError, match="index"):
        qkv.attention_map(query, key)[index]  # type: ignore[index]


def test_a_position_out_of_range() -> None:
    query, key = inputs()
    with pytest.raises(IndexError, match="out of range for 11"):
        qkv.attention_map(query, key).column(11)


def test_gradients_reach_query_and_key_through_a_tile() -> None:
    query, key = (x.requires_grad_() for x in inputs())
    qkv.attention_map(query, key)[..., 3:5, 2:4].sum().backward()
    tile_gradient = query.grad
    query.grad = None
    qkv.attention_with_weights(query, key, key)[1][..., 3:5, 2:4].sum().backward()
    torch.testing.assert_close(tile_gradient, query.grad)
