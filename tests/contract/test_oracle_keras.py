"""Agreement with Keras 3 on the PyTorch backend: plain, additive, multi-head and grouped attention."""

import os
import warnings
from typing import Any

import pytest
import torch
from tests.contract.calls import near
from torch import Tensor

from qkv.functional import attention, attention_with_weights
from qkv.masks.patterns import causal, lengths
from qkv.normalizers.dense import Softmax
from qkv.scores.products import Dot, ScaledDot
from qkv.scores.sums import Additive

os.environ["KERAS_BACKEND"] = "torch"
pytestmark = pytest.mark.slow  # importing it takes longer than the tests
LENGTHS = torch.tensor([7, 4])


@pytest.fixture(scope="module")
def layers() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        keras = pytest.importorskip("keras")
    if keras.backend.backend() != "torch":
        pytest.skip("keras was loaded with another backend before")
    keras.config.set_floatx("float32")
    return keras.layers


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape)


def padding() -> Tensor:
    return torch.arange(7) < LENGTHS[:, None]


def weights_of(layer: Any) -> list[Tensor]:
    return [w.value.detach().cpu() for w in layer.weights]


@pytest.mark.parametrize("ahead", [True, False])
def test_attention(layers: Any, ahead: bool) -> None:
    query, key, value = draw(2, 5, 8), draw(2, 7, 8), draw(2, 7, 3)
    masks = [None, padding()]
    theirs, scores = layers.Attention()(
        [query, value, key], mask=masks, return_attention_scores=True, use_causal_mask=not ahead
    )
    mask = lengths(LENGTHS) if ahead else lengths(LENGTHS) & causal()
    ours, weights = attention_with_weights(query, key, value, score=Dot(), mask=mask)
    assert near(ours, theirs.detach())
    assert near(weights, scores.detach())


def test_attention_with_a_learned_scale(layers: Any) -> None:
    query, key, value = draw(2, 5, 8), draw(2, 7, 8), draw(2, 7, 3)
    layer = layers.Attention(use_scale=True)
    layer([query, value, key])
    layer.set_weights([torch.tensor(0.37).numpy()])
    theirs = layer([query, value, key]).detach()
    assert near(attention(query, key, value, score=ScaledDot(torch.tensor(0.37))), theirs)


def test_concat_mode_is_additive_with_a_number_for_a_vector(layers: Any) -> None:
    query, key, value = draw(2, 5, 8), draw(2, 7, 8), draw(2, 7, 3)
    layer = layers.Attention(score_mode="concat")
    layer([query, value, key])
    layer.set_weights([torch.tensor(1.7).numpy()])
    theirs = layer([query, value, key]).detach()
    assert near(attention(query, key, value, score=Additive(torch.full((8,), 1.7))), theirs)


def test_additive_attention(layers: Any) -> None:
    query, key, value = draw(2, 5, 8), draw(2, 7, 8), draw(2, 7, 3)
    layer = layers.AdditiveAttention()
    layer([query, value, key])
    vector = draw(8)
    layer.set_weights([vector.numpy()])
    theirs, scores = layer([query, value, key], mask=[None, padding()], return_attention_scores=True)
    ours, weights = attention_with_weights(query, key, value, score=Additive(vector), mask=lengths(LENGTHS))
    assert near(ours, theirs.detach())
    assert near(weights, scores.detach())


def projected(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Keras stores its projections as (width, heads, head width)."""
    return torch.einsum("bnm,mhd->bhnd", x, weight) + bias[:, None]


@pytest.mark.parametrize("ahead", [True, False])
def test_multi_head_attention(layers: Any, ahead: bool) -> None:
    query, key, value = draw(2, 5, 6), draw(2, 7, 6), draw(2, 7, 6)
    layer = layers.MultiHeadAttention(3, 4, value_dim=5, bias_initializer="normal")
    options = {"return_attention_scores": True, "use_causal_mask": not ahead}
    theirs, scores = layer(query, value, key, value_mask=padding(), **options)
    wq, bq, wk, bk, wv, bv, wo, bo = weights_of(layer)
    mask = lengths(LENGTHS) if ahead else lengths(LENGTHS) & causal()
    heads = projected(query, wq, bq), projected(key, wk, bk), projected(value, wv, bv)
    output, weights = attention_with_weights(*heads, mask=mask)
    assert near(torch.einsum("bhnv,hvm->bnm", output, wo) + bo, theirs.detach())
    assert near(weights, scores.detach())


def test_group_query_attention(layers: Any) -> None:
    query, key, value = draw(2, 5, 6), draw(2, 7, 6), draw(2, 7, 6)
    layer = layers.GroupQueryAttention(4, 6, 2, bias_initializer="normal")
    theirs = layer(query, value, key).detach()
    wq, bq, wk, bk, wv, bv, wo, bo = weights_of(layer)
    heads = projected(query, wq, bq), projected(key, wk, bk), projected(value, wv, bv)
    output = attention(*heads, normalizer=Softmax(), enable_gqa=True)
    assert near(torch.einsum("bhnv,hvm->bnm", output, wo) + bo, theirs)
