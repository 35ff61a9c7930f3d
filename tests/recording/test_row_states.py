"""Long recorded calls keep their row states, and the model notices nothing."""

from typing import Any

import pytest
import torch
from torch import Tensor

import qkv
from qkv.errors import ShapeError
from qkv.nn.attention import Attention
from qkv.nn.multihead import MultiHeadAttention
from qkv.normalizers import Softmax
from qkv.recording.row_states import LONG
from qkv.scores import Additive, Dot, Gaussian, ScaledDot

LENGTH = 1 << (LONG.bit_length() - 1) // 2


def inputs(length: int = LENGTH, **options: Any) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(1, 2, length, 8, **options) for _ in range(3)]


@torch.no_grad()
@pytest.mark.parametrize("score", [None, Dot(), ScaledDot(0.5)])
@pytest.mark.parametrize("mask", [None, qkv.masks.causal()])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_long_call_keeps_its_state_and_changes_no_bit(score: Any, mask: Any, dtype: torch.dtype) -> None:
    layer, tensors = Attention(), inputs(dtype=dtype)
    expected = layer(*tensors, score=score, mask=mask)
    with qkv.record(layer) as trace:
        found = layer(*tensors, score=score, mask=mask)
    assert torch.equal(found, expected)
    (calls,) = trace.calls.values()
    state = calls[0].state
    assert state is not None
    options = {} if score is None else {"score": score}
    query, key, _ = tensors
    again = qkv.attention_map(query, key, mask=mask, **options)
    torch.testing.assert_close(state.value, again.state.value)
    torch.testing.assert_close(
        qkv.attention_map(query, key, mask=mask, state=state, **options).row(-1), again.row(-1), rtol=1e-4, atol=1e-6
    )
    assert layer.also is None


NOT_FREE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "dropout": ({"dropout": 0.1}, {}),
    "sink": ({"normalizer": Softmax(torch.zeros(2))}, {}),
    "softcap": ({}, {"score": ScaledDot(softcap=5.0)}),
    "additive": ({}, {"score": Additive(torch.ones(8))}),
    "kernel": ({}, {"score": Gaussian(2.0)}),
    "lengths": ({}, {"mask": qkv.masks.lengths(torch.tensor([9]))}),
    "offset": ({}, {"mask": qkv.masks.causal(1)}),
    "bias": ({}, {"bias": torch.zeros(LENGTH)}),
    "backend": ({"backend": "blocked"}, {}),
}


@torch.no_grad()
@pytest.mark.parametrize("name", NOT_FREE)
def test_a_state_that_is_not_free_is_not_asked_for(name: str) -> None:
    made, given = NOT_FREE[name]
    layer = Attention(**made)
    with qkv.record(layer) as trace:
        layer(*inputs(), **given)
    (calls,) = trace.calls.values()
    assert calls[0].state is None


@pytest.mark.parametrize(
    ("length", "gradient", "kept"), [(LENGTH, True, False), (LENGTH, False, True), (64, False, False)]
)
def test_calls_that_learn_and_short_ones_are_as_before(length: int, gradient: bool, kept: bool) -> None:
    layer, tensors = Attention(), inputs(length, requires_grad=gradient)
    with qkv.record(layer) as trace:
        assert layer(*tensors).requires_grad == gradient
    (calls,) = trace.calls.values()
    assert (calls[0].state is not None) == kept


def test_a_scale_that_learns_keeps_its_gradient() -> None:
    layer, scale = Attention(), torch.tensor([0.3, 0.4], requires_grad=True)
    with qkv.record(layer) as trace:
        layer(*inputs(), score=ScaledDot(scale)).sum().backward()
    (calls,) = trace.calls.values()
    assert calls[0].state is None
    assert scale.grad is not None


@torch.no_grad()
def test_a_layer_that_returns_its_state_still_does() -> None:
    layer = Attention(also="state")
    with qkv.record(layer) as trace:
        _, state = layer(*inputs())
    (calls,) = trace.calls.values()
    assert calls[0].state is state
    assert layer.also == "state"


@torch.no_grad()
def test_a_failed_call_leaves_the_layer_as_it_was() -> None:
    layer, (query, key, value) = Attention(), inputs()
    with qkv.record(layer) as trace:
        with pytest.raises(ShapeError):
            layer(query, key, value[..., 1:, :])
        assert layer.also is None
        assert layer(query, key, value).shape == value.shape
    (calls,) = trace.calls.values()
    assert len(calls) == 1


@torch.no_grad()
def test_hooks_of_the_user_see_the_output_alone() -> None:
    layer, seen = Attention(), []
    layer.register_forward_hook(lambda module, given, output: seen.append(output))
    with qkv.record(layer):
        layer(*inputs())
    assert isinstance(seen[0], Tensor)


@torch.no_grad()
def test_a_scene_has_the_states_of_its_heads() -> None:
    torch.manual_seed(0)
    layer, text = MultiHeadAttention(16, 2), torch.randn(1, LENGTH, 16)
    with qkv.record(layer) as trace:
        layer(text, mask=qkv.masks.causal())
    (shown,) = trace.scene().layers
    assert shown.state is not None
    assert shown.state.value.shape == (2, LENGTH)
    torch.testing.assert_close(shown.map().dense().sum(-1), torch.ones(2, LENGTH), rtol=1e-4, atol=1e-4)
