"""Statistics of a map equal those of the dense weights, for every mechanism, without the matrix."""

from typing import Any

import pytest
import torch
from tests.contract.calls import MECHANISMS, Call
from tests.contract.mechanisms import MASKS, MaskCase
from tests.contract.test_memory import Largest
from torch import Tensor

import qkv
from qkv.errors import ConfigError, QkvError, ShapeError, UnsupportedError
from qkv.introspect import compiled, sweep
from qkv.introspect.attention_rollout import rollout
from qkv.introspect.lazy_map import AttentionMap, attention_map
from qkv.masks.patterns import causal, lengths, window
from qkv.normalizers.dense import Identity, Mean, Softmax, Sum
from qkv.normalizers.sparse import Sparsemax
from qkv.scores.free import Uniform
from qkv.scores.kernels import Gaussian
from qkv.scores.products import Dot, ScaledDot

QUERIES, KEYS = 9, 12


def mapped(call: Call) -> AttentionMap:
    return attention_map(call.leaves["query"], call.leaves["key"], **call.arguments(call.leaves))


def expect(amap: AttentionMap, w: Tensor, name: str) -> None:
    """Compare every statistic of one pass with the dense weights, in float64."""
    non_negative = bool((w >= 0).all())
    names = ("received", "peak", "total", *(("entropy",) if non_negative else ()))
    try:
        found = amap.statistics(*names, topk=3)
    except UnsupportedError:
        found = amap.statistics("received", "peak", "total", topk=3)
    close = {"rtol": 1e-9, "atol": 1e-9} if w.dtype == torch.float64 else {"rtol": 2e-5, "atol": 2e-5}
    same: Any = lambda one, other: torch.testing.assert_close(one, other, **close, check_dtype=False, msg=name)  # noqa: E731
    same(found.received, w.double().sum(-2))
    same(found.total, w.double().sum(-1))
    same(found.peak, w.amax(-1))
    if found.entropy is not None:
        same(found.entropy, torch.special.entr(w.double()).sum(-1))
    same(found.weights, w.topk(3, -1).values)
    same(w.gather(-1, found.keys)[found.weights > 0], found.weights[found.weights > 0])
    same(amap.pooled(4, 5, "max"), blocks(w).amax((-1, -3)))
    assert found.error is None or found.error < 1e-5
    assert (found.error is None) == (amap.error(3) is None)


def blocks(w: Tensor) -> Tensor:
    """Blocks of 3 × 4 from a matrix padded by its last row and column, (..., 4, 3, 5, 4)."""
    rows = [[min(a, QUERIES - 1) for a in range(-(-b * QUERIES // 4), -(-(b + 1) * QUERIES // 4))] for b in range(4)]
    columns = [[min(a, KEYS - 1) for a in range(-(-b * KEYS // 5), -(-(b + 1) * KEYS // 5))] for b in range(5)]
    rows, columns = ([(block + block[-1:] * 4)[:4] for block in side] for side in (rows, columns))
    return w[..., torch.tensor(rows), :][..., torch.tensor(columns)]


FEW = ("none", "causal_offset", "lengths_both")


@pytest.mark.parametrize(
    "mask", [pytest.param(m, id=m.name, marks=() if m.name in FEW else pytest.mark.slow) for m in MASKS]
)
def test_statistics_equal_those_of_the_dense_weights(mask: MaskCase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "WEIGHTS", 300)
    monkeypatch.setattr(sweep, "_WIDTH", 7)
    made = mask.build(QUERIES, KEYS, torch.Generator().manual_seed(0))
    for score, normalizer in MECHANISMS:
        call = Call.draw(score, normalizer, ((2, 2), QUERIES, KEYS), mask=made)
        expect(mapped(call), call.weights("reference")[1], f"{call} under {mask.name}")


@pytest.mark.kernels
@pytest.mark.parametrize("mask", [None, causal(), causal(2), lengths(torch.tensor([0, 9])), window(2, 1)])
@pytest.mark.parametrize("normalizer", [Softmax(), Softmax(torch.tensor([0.5, -1.0]))])
def test_the_compiled_pass_equals_the_dense_weights(mask: Any, normalizer: Softmax) -> None:
    query, key = torch.randn(2, 2, QUERIES, 8), torch.randn(2, 2, KEYS, 8)
    for score in (ScaledDot(), Dot(), ScaledDot(torch.tensor([0.3, 2.0]))):
        options: Any = {"score": score, "normalizer": normalizer, "mask": mask}
        amap = attention_map(query, key, **options)
        assert compiled.serves(amap._source.call, "softmax", 3)
        w = qkv.attention_with_weights(query.double(), key.double(), key.double(), **options)[1]
        expect(amap, w.float(), str(score))


def test_the_compiled_pass_goes_over_many_tiles() -> None:
    query, key = torch.randn(1, 700, 16), torch.randn(1, 5000, 16)
    found = attention_map(query, key).statistics("received", "entropy", topk=8)
    w = torch.softmax(query.double() @ key.double().mT / 4, -1)
    torch.testing.assert_close(found.received, w.sum(-2), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found.entropy, torch.special.entr(w).sum(-1), rtol=2e-6, atol=0)
    weights, keys = w.topk(8, -1)
    torch.testing.assert_close(found.weights.double(), weights, rtol=1e-5, atol=0)
    assert (found.keys == keys).double().mean() > 0.999


def test_grouped_heads_and_bias() -> None:
    query, key, bias = torch.randn(2, 4, QUERIES, 8), torch.randn(2, 2, KEYS, 8), torch.randn(4, QUERIES, KEYS)
    for given in (None, bias):
        w = qkv.attention_with_weights(query, key, key, bias=given, enable_gqa=True)[1]
        expect(attention_map(query, key, bias=given, enable_gqa=True), w, "grouped")


def test_of_equal_weights_the_first_keys_are_largest() -> None:
    query, key = torch.zeros(3, 4), torch.zeros(KEYS, 4)
    for dtype in (torch.float32, torch.float64):
        weights, keys = attention_map(query.to(dtype), key.to(dtype)).topk(3)
        assert keys.tolist() == [[0, 1, 2]] * 3
        assert torch.equal(weights, torch.full_like(weights, weights[0, 0].item()))


@pytest.mark.parametrize("what", ["received", "entropy"])
def test_gradients_are_those_of_the_dense_weights(what: str) -> None:
    leaves = [torch.randn(2, n, 3, dtype=torch.float64, requires_grad=True) for n in (4, 5)]
    bias = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    for normalizer in (Softmax(), Softmax(0.3), Sparsemax()):

        def function(query: Tensor, key: Tensor, bias: Tensor, rule: Any = normalizer) -> Tensor:
            return getattr(attention_map(query, key, normalizer=rule, mask=causal(1), bias=bias), what)()

        assert torch.autograd.gradcheck(function, (*leaves, bias), fast_mode=True)


def test_gradients_reach_what_a_function_closes_over() -> None:
    factor = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    query, key = torch.randn(4, 3, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)
    attention_map(query, key, score=lambda q, k: q @ k.mT * factor).entropy().sum().backward()
    (expected,) = torch.autograd.grad(torch.special.entr(torch.softmax(query @ key.mT * factor, -1)).sum(), factor)
    torch.testing.assert_close(factor.grad, expected)


@pytest.mark.parametrize("what", ["peak", "topk", "pooled", "statistics"])
def test_a_gradient_that_is_not_there_is_named(what: str) -> None:
    query, key = torch.randn(4, 3, requires_grad=True), torch.randn(5, 3)
    amap = attention_map(query, key)
    results = {
        "peak": amap.peak,
        "topk": lambda: amap.topk(2)[0],
        "pooled": lambda: amap.pooled(2, 2),
        "statistics": lambda: amap.statistics("entropy").entropy,
    }
    with pytest.raises(UnsupportedError, match=r"received\(\) and entropy\(\) have gradients"):
        results[what]().sum().backward()


def test_nothing_of_queries_times_keys_is_held() -> None:
    count = 3000
    query, key = torch.randn(1, count, 8), torch.randn(1, count, 8)
    for options in ({}, {"normalizer": Sparsemax()}):
        amap = attention_map(query, key, **options)
        with Largest() as seen:
            amap.statistics("received", "entropy", topk=4)
        assert seen.numbers < count * count // 8, seen.operation


def test_a_state_of_other_rows_is_found_out() -> None:
    query, other, key = torch.randn(3, 40, 8).unbind()
    state = qkv.attention_with_state(3 * other, key, key)[1]
    amap = attention_map(query, key, state=state)
    with pytest.raises(ShapeError, match="expected the state of these rows"):
        amap.error()
    with pytest.raises(ShapeError, match="Pass the state that attention_with_state returned"):
        amap.received()


def test_what_cannot_be_asked_is_named() -> None:
    amap = attention_map(torch.randn(4, 3), torch.randn(5, 3))
    cases: list[tuple[Any, str]] = [
        (lambda: amap.statistics("entropie"), 'Did you mean "entropy"'),  # type: ignore[arg-type]
        (lambda: amap.topk(6), "topk: expected from 0 to 5 keys; got 6"),
        (lambda: amap.topk(0), "count: expected 1 or more"),
        (lambda: amap.pooled(5, 2), r"height, width: expected from 1 up to \(4, 5\)"),
        (lambda: amap.pooled(2, 2, "min"), 'how: expected "mean" or "max"'),  # type: ignore[arg-type]
        (lambda: rollout([], [0]), "at least one map"),
        (lambda: rollout([amap], [0]), "maps: expected"),
    ]
    for call, message in cases:
        with pytest.raises(ConfigError if "maps: " not in message else QkvError, match=message):
            call()
    signed = attention_map(torch.randn(4, 3), torch.randn(5, 3), normalizer=qkv.normalizers.Identity())
    with pytest.raises(UnsupportedError, match="entropy: expected weights that are never negative"):
        signed.entropy()


def test_pooled_means_are_those_of_blocks() -> None:
    amap = attention_map(torch.randn(2, 9, 4, dtype=torch.float64), torch.randn(2, 12, 4, dtype=torch.float64))
    w = amap.dense()
    expected = w.reshape(2, 3, 3, 4, 3).mean((2, 4))
    torch.testing.assert_close(amap.pooled(3, 4), expected)
    torch.testing.assert_close(amap.pooled(9, 12, "max"), w)


def test_rollout_is_the_product_of_layers() -> None:
    x = torch.randn(3, 2, 7, 4, dtype=torch.float64)
    maps = [attention_map(layer, layer, mask=causal()) for layer in x]
    product = torch.eye(7, dtype=torch.float64)
    for amap in maps:
        product = (0.4 * torch.eye(7) + 0.6 * amap.dense().mean(0)) @ product
    torch.testing.assert_close(rollout(maps, [0, 6, 3], residual=0.4, stripe=2), product[[0, 6, 3]])


def test_a_learned_sink_is_looked_at_without_a_warning() -> None:
    """Row counts of a map are read as numbers, which need no gradient."""
    query, key = torch.randn(2, QUERIES, 4), torch.randn(2, KEYS, 4)
    amap = attention_map(query, key, normalizer=Softmax(torch.zeros(2, requires_grad=True)))
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # otherwise PyTorch warns once per process
    try:
        assert amap.peak().shape == (2, QUERIES)
    finally:
        torch.set_warn_always(before)


def test_a_bias_makes_weights_of_a_kernel_signed() -> None:
    """A kernel is never negative, but a bias is added to it."""
    query, key = torch.randn(2, 5, 3).unbind()
    for normalizer in (Identity(), Mean()):
        kernel = attention_map(query[None], key[None], score=Gaussian(), normalizer=normalizer)
        assert kernel.entropy().isfinite().all()
        biased = attention_map(query[None], key[None], score=Gaussian(), normalizer=normalizer, bias=-torch.ones(5, 5))
        with pytest.raises(UnsupportedError):
            biased.entropy()


@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("keys", [5, 300])
def test_a_sum_of_scores_below_zero_has_weights_above_one_and_no_entropy(keys: int, learns: bool) -> None:
    query, key = torch.randn(5, 3).requires_grad_(learns), torch.randn(keys, 3)
    bias = torch.full((5, keys), -0.9)
    amap = attention_map(query, key, score=Uniform(), normalizer=Sum(), bias=bias)
    assert amap.entropy().isfinite().all()  # every score is 0.1
    bias[:, 0] = -1.05 - (keys - 2) * 0.1
    amap = attention_map(query, key, score=Uniform(), normalizer=Sum(), bias=bias)
    weights = amap.dense()
    assert weights.min() < 0
    assert weights.max() > 1
    torch.testing.assert_close(amap[..., 1:3], weights[..., 1:3], rtol=1e-3, atol=1e-3)
    with pytest.raises(UnsupportedError):
        amap.entropy()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_of_infinite_scores_is_nan_in_the_compiled_pass_too(dtype: torch.dtype) -> None:
    query, key = torch.randn(2, 7, 3).to(dtype), torch.randn(2, 70, 3).to(dtype)
    key[0, 3, 1] = torch.inf
    amap = attention_map(query, key, score=Dot())
    bad = amap.dense().isnan().any(-1)
    assert bad[0].any()
    assert not bad[1].any()
    assert torch.equal(amap.peak().isnan(), bad)
    assert torch.equal(amap.received().isnan(), amap.dense().isnan().any(-2))
