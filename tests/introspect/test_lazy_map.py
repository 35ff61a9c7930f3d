"""The lazy map: every tile equals the same part of the dense weights."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from tests.contract.calls import by_part
from tests.here import here
from tests.pairs import in_turn
from torch import Tensor

import qkv
from qkv.errors import ArgumentError, QkvError, ShapeError, UnsupportedError

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


def legal(score: str, normalizer: str) -> bool:
    """Whether a sum of weights, if that is the normalizer, has scores that are never negative."""
    return normalizer != "sum" or SCORES[score]().summable


@pytest.mark.parametrize(
    ("score", "normalizer"), [pair for pair in in_turn(SCORES, NORMALIZERS) if legal(*pair.values)]
)
def test_tiles_equal_the_dense_weights(score: str, normalizer: str) -> None:
    query, key = inputs()
    made, rule = SCORES[score](), NORMALIZERS[normalizer]()
    for mask in masks():
        options = {"score": made, "normalizer": rule, "mask": mask}
        _, weights = qkv.attention_with_weights(query, key, key, **options)
        amap = qkv.attention_map(query, key, **options)
        assert amap.shape == tuple(weights.shape)
        parts = [(..., slice(2, 7), slice(1, 9)), (1, 0, slice(None), 3), (0, ..., -1, slice(None)), (...,)]
        for part in (*parts, (..., slice(-5, -1), slice(-4, None)), (..., slice(3, 1), slice(9, 2))):
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
    assert torch.equal(amap.state.value, state.value)
    other = replace(state, value=state.value + 1)
    assert torch.equal(qkv.attention_map(query, key, state=other).state.value, other.value)
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


@pytest.mark.parametrize("index", [(0, 0, 0, 0, 0), "x", (..., "x")])
def test_index_that_is_none(index: object) -> None:
    query, key = inputs()
    with pytest.raises(ShapeError, match="index"):
        qkv.attention_map(query, key)[index]  # type: ignore[index]


def test_a_position_out_of_range() -> None:
    query, key = inputs()
    with pytest.raises(IndexError, match="below 11"):
        qkv.attention_map(query, key).column(11)


@pytest.mark.parametrize("last", [0, 3])
@pytest.mark.parametrize("wrong", [7, -8, 1.5, [0, 9], torch.tensor(9), slice(0, 1.5), (0,) * 9])
def test_an_index_that_a_map_does_not_have_is_named(wrong: object, last: int) -> None:
    amap = qkv.attention_map(torch.randn(3, 5, 4), torch.randn(3, 7, 4))
    index = wrong if isinstance(wrong, tuple) else (0, wrong) if last else wrong
    with pytest.raises(ShapeError) as caught:
        amap[index]  # type: ignore[index]
    assert caught.value.argument == "index"
    assert "(3, 5, 7)" in caught.value.expected


def test_iteration_over_a_map_ends() -> None:
    query, key = torch.randn(3, 5, 4), torch.randn(3, 7, 4)
    amap = qkv.attention_map(query, key)
    assert [tuple(row.shape) for row in amap] == [(5, 7)] * 3
    assert torch.equal(torch.stack(list(amap)), amap.dense())


@pytest.mark.parametrize("index", [(0, True), (True,), (0, 0, True), (0, np.int64(2)), (..., np.int32(-1))])
def test_bools_and_integers_of_numpy_select_as_in_the_matrix(index: tuple[object, ...]) -> None:
    amap = qkv.attention_map(torch.randn(3, 5, 4), torch.randn(3, 7, 4))
    assert torch.equal(amap[index], amap.dense()[index])  # type: ignore[index]


@pytest.mark.parametrize("rows", [0, -1, True, 2.5])
def test_the_number_of_checked_rows_is_a_number_from_1(rows: Any) -> None:
    amap = qkv.attention_map(torch.randn(5, 4), torch.randn(7, 4))
    with pytest.raises(QkvError) as caught:
        amap.error(rows)
    assert caught.value.argument == "rows"


@pytest.mark.parametrize("method", ["row", "column", "topk", "dense", "error"])
@pytest.mark.parametrize("wrong", [True, [1], 1.5, "1"])
def test_numbers_of_every_method_are_whole(method: str, wrong: Any) -> None:
    amap = qkv.attention_map(torch.randn(5, 4), torch.randn(7, 4))
    with pytest.raises(ArgumentError):
        getattr(amap, method)(wrong)


def test_gradients_reach_query_and_key_through_a_tile() -> None:
    query, key = (x.requires_grad_() for x in inputs())
    qkv.attention_map(query, key)[..., 3:5, 2:4].sum().backward()
    tile_gradient = query.grad
    query.grad = None
    qkv.attention_with_weights(query, key, key)[1][..., 3:5, 2:4].sum().backward()
    torch.testing.assert_close(tile_gradient, query.grad)


STATED = ("additive", "bilinear", "cosine", "concat", "scaled_dot")
HALVES = (torch.float32, torch.bfloat16, torch.float16)


@by_part
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("score", STATED)
def test_a_state_of_its_own_is_taken_and_one_of_other_rows_is_not(score: str, dtype: torch.dtype, whole: bool) -> None:
    """Scores of 30 and more: rounding to half would change them, and sums of e^s, by 0.1."""
    g = torch.Generator().manual_seed(0)
    query, key = (10 * torch.randn(2, n, 8, generator=g) for n in (6, 40))
    query, key = query.to(dtype), key.to(dtype)
    weights = [torch.randn(8, 8, generator=g) for _ in range(2)]
    vector = 10 * torch.randn(8, generator=g)
    made = {
        "additive": S.Additive(vector, *weights),
        "bilinear": S.Bilinear(weights[0], 0.2),
        "cosine": S.Cosine(100.0),
        "concat": S.Concat(vector, vector.flip(0)),
        "scaled_dot": S.ScaledDot(torch.tensor([0.1, 1.3])),
    }[score]
    normalizers = (N.Softmax(), N.Sparsemax(), N.Softmax(1.0), N.Entmax(), N.Entmax(4.0), N.Entmax(1.3))
    turn = STATED.index(score) + HALVES.index(dtype)
    for normalizer in normalizers if whole else normalizers[turn % 3 :: 3]:
        options = {"score": made, "normalizer": normalizer}
        expected = qkv.attention_with_weights(query.float(), key.float(), key.float(), **options)[1]
        for backend in ("auto", "reference", "blocked", "rowwise", "fused", "sdpa"):
            try:
                state = qkv.attention_with_state(query, key, key, **options, backend=backend)[1]
            except UnsupportedError:
                continue
            amap = qkv.attention_map(query, key, **options, state=state)
            # A score of 300 is off by a few roundoffs of float32, its weight by the same relative error.
            torch.testing.assert_close(amap.dense(), expected, atol=2e-4, rtol=2e-3)
            amap.error()
            amap.statistics("received")
        if not isinstance(normalizer, N.Entmax):
            other = qkv.RowState(state.kind, state.value + 0.5)
            with pytest.raises(ShapeError, match="state"):
                qkv.attention_map(query, key, **options, state=other).error()


@pytest.mark.parametrize("shape", [(), (1,), (11,), (13, 1), (1, 11), (1, 1), (2, 1, 1)])
@pytest.mark.parametrize("backend", here("auto", "reference", "blocked", "rowwise", "sdpa"))
def test_a_bias_of_any_shape_that_broadcasts(shape: tuple[int, ...], backend: str) -> None:
    query, key = inputs()
    bias = torch.randn(shape)
    whole = bias.expand(2, 2, 13, 11).contiguous()
    expected = qkv.attention_with_weights(query, key, key, bias=whole, backend="reference")
    output, weights = qkv.attention_with_weights(query, key, key, bias=bias, backend=backend)
    state = qkv.attention_with_state(query, key, key, bias=bias, backend=backend)[1]
    amap = qkv.attention_map(query, key, bias=bias, state=state)
    for one, other in ((output, expected[0]), (weights, expected[1]), (amap.dense(), expected[1])):
        torch.testing.assert_close(one, other)
    torch.testing.assert_close(amap[0, 1, 3:5, 2:7], expected[1][0, 1, 3:5, 2:7])
    # Sums in float64, of weights that float32 rounded differently in each algorithm.
    torch.testing.assert_close(amap.received().float(), expected[1].double().sum(-2).float())


@pytest.mark.parametrize("sizes", [(3, 4, 0), (3, 0, 4), (0, 4, 4)])
@pytest.mark.parametrize(
    ("score", "normalizer"),
    [
        pair
        for pair in product(["scaled_dot", "cosine", "gaussian", "callable"], [*NORMALIZERS, "steep"])
        if legal(*pair)
    ],
)
def test_an_empty_axis_has_a_map(score: str, normalizer: str, sizes: tuple[int, int, int]) -> None:
    """Width 0 makes all scores equal; no keys or no queries give no weights."""
    queries, keys, width = sizes
    made = S.Cosine() if score == "cosine" else SCORES[score]()
    rule = N.Entmax(5.0) if normalizer == "steep" else NORMALIZERS[normalizer]()
    query, key = torch.randn(2, 2, queries, width), torch.randn(2, 2, keys, width)
    options = {"score": made, "normalizer": rule}
    _, weights = qkv.attention_with_weights(query, key, key[..., :0], **options)
    amap = qkv.attention_map(query, key, **options)
    torch.testing.assert_close(amap.dense(), weights)
    torch.testing.assert_close(amap.received(), weights.double().sum(-2))
    if rule.convex:
        torch.testing.assert_close(amap.entropy(), torch.special.entr(weights.double()).sum(-1), atol=1e-6, rtol=1e-6)
    for backend in ("blocked", "reference"):
        leaves = [x.clone().requires_grad_() for x in (query, key, torch.randn(2, 2, keys, 3))]
        output = qkv.attention(*leaves, **options, backend=backend)
        gradients = torch.autograd.grad(output.sum(), leaves, allow_unused=True)
        assert output.shape == (2, 2, queries, 3)
        assert all(x is None or x.isfinite().all() for x in gradients)


@pytest.mark.parametrize(
    ("score", "normalizer"), [pair for pair in in_turn(SCORES, NORMALIZERS) if legal(*pair.values)]
)
@pytest.mark.parametrize("keys", [11, 300], ids=["short", "long"])
def test_what_is_not_a_number_stays_visible(score: str, normalizer: str, keys: int) -> None:
    """A row of NaN is NaN in every part and every statistic, and a key that it may not see has weight 0."""
    torch.manual_seed(0)
    query, key = torch.randn(2, 2, 3, 4), torch.randn(2, 2, keys, 4)
    query[0, 0, 1, 2] = torch.nan
    mask = M.lengths(torch.tensor([keys, keys - 2]))
    arguments: dict[str, Any] = {"score": SCORES[score](), "normalizer": NORMALIZERS[normalizer](), "mask": mask}
    state = None if normalizer == "hard" else qkv.attention_with_state(query, key, key, **arguments)[1]
    for learns, given in ((False, None), (True, None), (False, state)):
        amap = qkv.attention_map(query.requires_grad_(learns), key, state=given, **arguments)
        bad = torch.zeros(2, 2, 3, dtype=torch.bool)
        bad[0, 0, 1] = True
        weights = amap.dense()
        assert torch.equal(weights.isnan().any(-1), bad)
        assert weights[1, :, :, keys - 2 :].eq(0).all()
        for part in (slice(2, 7), slice(keys - 1, keys)):
            assert torch.equal(amap[..., part].isnan(), weights[..., part].isnan())
        assert torch.equal(amap.peak().isnan(), bad)
        assert torch.equal(amap.topk(1)[0][..., 0].isnan(), bad)
        assert torch.equal(amap.received().isnan(), weights.isnan().any(-2))
        if weights[~bad].min() >= 0 and normalizer not in ("mean", "identity"):
            assert torch.equal(amap.entropy().isnan(), bad)
