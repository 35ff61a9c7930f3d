"""Agreement with PyTorch: scaled_dot_product_attention in every mode, and MultiheadAttention's weights."""

import pytest
import torch
from tests.contract.calls import near
from torch import Tensor
from torch.nn import functional as F

from qkv.functional import attention, attention_with_weights
from qkv.masks.patterns import causal, dense, lengths
from qkv.normalizers.dense import Softmax
from qkv.scores.products import Dot, ScaledDot

BACKENDS = ("reference", "sdpa", "blocked")
by_backend = pytest.mark.parametrize("backend", BACKENDS)
by_dtype = pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)


def draw(dtype: torch.dtype, heads: int = 4, groups: int = 4, width: int = 8) -> list[Tensor]:
    shapes = ((2, heads, 9, width), (2, groups, 11, width), (2, groups, 11, 6))
    return [torch.randn(shape).to(dtype).requires_grad_() for shape in shapes]


def agree(ours: Tensor, theirs: Tensor, leaves: list[Tensor], roundoffs: float = 16) -> bool:
    cotangent = torch.randn(ours.shape).to(ours.dtype)
    pairs = [torch.autograd.grad(x, leaves, cotangent) for x in (ours, theirs)]
    return near(ours, theirs, roundoffs) and all(near(a, b, 4 * roundoffs) for a, b in zip(*pairs, strict=True))


@by_dtype
@by_backend
def test_plain(backend: str, dtype: torch.dtype) -> None:
    leaves = draw(dtype)
    assert agree(attention(*leaves, backend=backend), F.scaled_dot_product_attention(*leaves), leaves)


@by_dtype
@by_backend
def test_is_causal_counts_from_the_top_left(backend: str, dtype: torch.dtype) -> None:
    leaves = draw(dtype)
    theirs = F.scaled_dot_product_attention(*leaves, is_causal=True)
    assert agree(attention(*leaves, mask=causal(), backend=backend), theirs, leaves)


@by_dtype
@by_backend
def test_enable_gqa(backend: str, dtype: torch.dtype) -> None:
    leaves = draw(dtype, groups=2)
    theirs = F.scaled_dot_product_attention(*leaves, enable_gqa=True)
    assert agree(attention(*leaves, enable_gqa=True, backend=backend), theirs, leaves)


@by_backend
def test_enable_gqa_with_is_causal(backend: str) -> None:
    leaves = draw(torch.float64, groups=1)
    theirs = F.scaled_dot_product_attention(*leaves, enable_gqa=True, is_causal=True)
    assert agree(attention(*leaves, enable_gqa=True, mask=causal(), backend=backend), theirs, leaves)


@pytest.mark.parametrize("shape", [(9, 11), (2, 1, 1, 11), (2, 4, 9, 11), (4, 9, 11)], ids=str)
@by_backend
def test_true_means_may_attend(backend: str, shape: tuple[int, ...]) -> None:
    leaves = draw(torch.float64)
    mask = torch.rand(shape) < 0.7
    mask[..., 0] = True
    theirs = F.scaled_dot_product_attention(*leaves, attn_mask=mask)
    ours = attention(*leaves, mask=mask, backend=backend)
    assert torch.equal(ours, attention(*leaves, mask=dense(mask), backend=backend))
    assert agree(ours, theirs, leaves)


@by_backend
def test_a_float_mask_there_is_a_bias_here(backend: str) -> None:
    leaves = draw(torch.float64)
    bias = torch.randn(4, 9, 11, dtype=torch.float64)
    theirs = F.scaled_dot_product_attention(*leaves, attn_mask=bias)
    assert agree(attention(*leaves, bias=bias, backend=backend), theirs, leaves)


@by_backend
def test_scale(backend: str) -> None:
    leaves = draw(torch.float64)
    theirs = F.scaled_dot_product_attention(*leaves, scale=0.3)
    assert agree(attention(*leaves, score=ScaledDot(scale=0.3), backend=backend), theirs, leaves)
    unscaled = F.scaled_dot_product_attention(*leaves, scale=1.0)
    assert agree(attention(*leaves, score=Dot(), backend=backend), unscaled, leaves)


def test_weights_of_multihead_attention() -> None:
    """PyTorch's masks mean the opposite: True there is masked here."""
    layer = torch.nn.MultiheadAttention(12, 3, batch_first=True, bias=False, dtype=torch.float64)
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    hidden = torch.tensor([[False] * 5, [False, False, False, True, True]])
    theirs, weights = layer(x, x, x, key_padding_mask=hidden, average_attn_weights=False)
    q, k, v = (F.linear(x, w).unflatten(-1, (3, 4)).transpose(1, 2) for w in layer.in_proj_weight.chunk(3))
    output, ours = attention_with_weights(q, k, v, mask=lengths(torch.tensor([5, 3])))
    assert near(ours, weights)
    assert near(layer.out_proj(output.transpose(1, 2).flatten(-2)), theirs)


def test_a_sink_is_a_key_of_zero_value() -> None:
    """As `add_zero_attn` and learned sinks do it elsewhere: one more key whose score is the sink."""
    q, k, v = draw(torch.float64)
    sink = torch.randn(4, dtype=torch.float64)
    s = torch.cat([sink.view(4, 1, 1).expand(2, 4, 9, 1), q @ k.mT * 8**-0.5], -1)
    expected = torch.softmax(s, -1)[..., 1:] @ v
    for backend in ("reference", "blocked"):
        assert near(attention(q, k, v, normalizer=Softmax(sink), backend=backend), expected)
