"""Normalizers with nothing to normalize, and infinite sinks."""

import math
from typing import Any

import pytest
import torch
from tests.contract.calls import Request, request
from tests.contract.served import by_served
from tests.here import here

import qkv
from qkv.masks import causal
from qkv.normalizers import Hard, Identity, Mean, Sigmoid, Softmax, Sum
from qkv.normalizers.base import Normalizer
from qkv.scores import Additive, ScaledDot

ALL = [Softmax(), Softmax(sink=0.5), Sum(), Mean(), Hard(), Identity(), Sigmoid()]


@pytest.mark.parametrize("visible", [None, torch.zeros(3, 0, dtype=torch.bool)], ids=["no mask", "a mask"])
@pytest.mark.parametrize("normalizer", ALL, ids=repr)
def test_no_keys_have_no_weights(normalizer: Normalizer, visible: torch.Tensor | None) -> None:
    assert normalizer(torch.ones(2, 3, 0), visible).shape == (2, 3, 0)


@pytest.mark.parametrize("normalizer", ALL, ids=repr)
def test_a_row_that_sees_nothing_has_no_weight_and_no_gradient(normalizer: Normalizer) -> None:
    scores = torch.ones(2, 4, requires_grad=True)
    weights = normalizer(scores, torch.tensor([[False] * 4, [True] * 4]))
    assert (weights[0] == 0).all()
    assert (weights[1] > 0).any()
    if weights.requires_grad:
        weights.square().sum().backward()
        assert (scores.grad[0] == 0).all()
        assert scores.grad.isfinite().all()


@pytest.mark.parametrize("sink", [None, 0.5])
@pytest.mark.parametrize("empty", [False, True])
def test_softmax_gives_the_same_bits_where_no_value_may_decide(sink: float | None, empty: bool) -> None:
    """Under vmap an empty row cannot be detected: every row then takes the longer path."""
    scores = torch.randn(3, 4, 5, requires_grad=True)
    visible = torch.rand(3, 4, 5) < 0.6
    visible[..., 0] = True
    visible[1, 2] = not empty
    normalizer = Softmax(sink)
    eager = normalizer(scores, visible)
    mapped = torch.func.vmap(normalizer)(scores, visible)
    assert torch.equal(eager, mapped)
    upstream = torch.randn(3, 4, 5)
    found, expected = (torch.autograd.grad(w, scores, upstream)[0] for w in (eager, mapped))
    assert torch.equal(found, expected)
    assert bool((found[1, 2] == 0).all()) == empty
    assert bool((eager[1, 2] == 0).all()) == empty


ENDLESS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
SINK_MASKS = {"all": None, "causal": causal(), "first row empty": causal(-1)}


def sunk(score: str, name: str, mask: str, items: int, dtype: torch.dtype) -> Request:
    leaves = [torch.randn(items, 2, 20, 8).to(dtype).requires_grad_() for _ in range(3)]
    sink = torch.tensor([ENDLESS[name], 0.5], requires_grad=True)
    made = Additive(torch.ones(8, dtype=dtype)) if score == "additive" else ScaledDot()
    return request(*leaves, score=made, normalizer=Softmax(sink), mask=SINK_MASKS[mask])


@by_served(
    sunk,
    here("reference", "blocked", "rowwise", "sdpa", "fused"),
    every=2,
    score=["scaled_dot", "additive"],
    name=ENDLESS,
    mask=SINK_MASKS,
    items=[2, 20],
    dtype=[torch.float32, torch.bfloat16],
)
def test_a_sink_may_be_infinite(backend: str, score: str, name: str, mask: str, items: int, dtype: torch.dtype) -> None:
    """The limits of the equation: +inf takes all weight, −inf none, and NaN shows, in one head only."""
    call = sunk(score, name, mask, items, dtype)
    leaves, sink = call.tensors, call.options["normalizer"].sink
    given: dict[str, Any] = call.options | {"backend": backend}
    output = qkv.attention(*leaves, **given)
    gradients = torch.autograd.grad(output.float().square().sum(), [*leaves, sink])
    other, weights = qkv.attention_with_weights(*leaves, **given)
    assert torch.equal(other.nan_to_num(9.0), output.nan_to_num(9.0))
    seeing = slice(0 if mask == "all" else 1, None)
    if name == "nan":
        assert gradients[3].isnan().tolist() == [True, False]
        assert output[:, 0, seeing].isnan().all()
        assert weights[:, 0, seeing].isnan().any(-1).all()
    else:
        assert all(x.isfinite().all() for x in gradients)
        assert gradients[3][0] == 0
    if name == "inf":
        assert (output[:, 0] == 0).all()
        assert (weights[:, 0] == 0).all()
    if name == "-inf":
        plain = qkv.attention(*leaves, **given | {"normalizer": Softmax()})
        torch.testing.assert_close(output[:, 0], plain[:, 0])
    assert output[:, 1].isfinite().all()


@pytest.mark.parametrize("backend", here("reference", "blocked", "rowwise", "sdpa"))
@pytest.mark.parametrize("items", [2, 20])
def test_an_endless_sink_is_an_endless_sum_that_merges(backend: str, items: int) -> None:
    query, key, value = torch.randn(3, items, 2, 20, 8)
    sink = torch.tensor([math.inf, -math.inf])
    left = qkv.attention_with_state(query, key, value, mask=causal(-1), backend="blocked")
    own = qkv.attention_with_state(query, key, value, normalizer=Softmax(sink), backend=backend)
    assert (own[1].lse[:, 0] == math.inf).all()
    assert own[1].lse[:, 1].isfinite().all()
    assert (left[1].lse[:, 1, 0] == -math.inf).all()
    output, state = qkv.merge([own, left])
    assert (output[:, 0] == 0).all()
    assert (state.lse[:, 0] == math.inf).all()
    plain = [qkv.attention_with_state(query, key, value, mask=mask, backend=backend) for mask in (None, causal(-1))]
    torch.testing.assert_close(output[:, 1], qkv.merge(plain)[0][:, 1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("normalizer", [Softmax(), Mean(), Identity(), Hard(), Sigmoid(), Sigmoid(0.5)], ids=str)
@pytest.mark.parametrize("backend", ["auto", "reference", "blocked"])
def test_what_is_hidden_sends_no_gradient_whatever_its_bias(normalizer: Normalizer, backend: str) -> None:
    query, key, value = (torch.randn(2, n, 8, requires_grad=True) for n in (5, 7, 7))
    seen = torch.ones(5, 7, dtype=torch.bool).tril()
    bias = torch.where(seen, 0.0, torch.nan)
    output = qkv.attention(query, key, value, normalizer=normalizer, mask=seen, bias=bias, backend=backend)
    gradients = torch.autograd.grad(output.sum(), [query, key, value], materialize_grads=True)
    assert all(x.isfinite().all() for x in (output, *gradients))
