"""The kernel for few queries: exact, independent of masked contents, and used only where it is supported."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import qkv
from qkv.errors import UnsupportedError
from qkv.masks import causal, lengths

pytestmark = pytest.mark.kernels

ITEMS, HEADS, QUERIES, KEYS, WIDTH, VALUE = 9, 8, 3, 37, 20, 12
BY_ITEM = lengths(torch.arange(ITEMS) * 4)
BY_HEAD = torch.arange(HEADS * KEYS).view(1, HEADS, 1, KEYS) % 5 > 1
BY_QUERY = torch.arange(ITEMS * QUERIES * KEYS).view(ITEMS, 1, QUERIES, KEYS) % 7 < 3
MASKS = {"all": None, "padding": BY_ITEM, "heads": BY_HEAD, "queries": BY_QUERY, "causal": causal(offset=30)}


def drawn(seed: int = 0, keys: int = KEYS) -> list[Tensor]:
    torch.manual_seed(seed)
    return [torch.randn(ITEMS, HEADS, *sizes) for sizes in ((QUERIES, WIDTH), (keys, WIDTH), (keys, VALUE))]


def served(*tensors: Tensor, **given: Any) -> bool:
    try:
        qkv.explain(*tensors, **given, backend="sdpa.few_queries")
    except UnsupportedError:
        return False
    return True


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_output_is_as_exact_as_the_equation(name: str, scale: float) -> None:
    tensors, mask = drawn(), MASKS[name]
    tensors[0] *= scale
    assert served(*tensors, mask=mask)
    wide = qkv.attention(*(x.double() for x in tensors), mask=mask, backend="reference")
    plain = qkv.attention(*tensors, mask=mask, backend="reference")
    ours = qkv.attention(*tensors, mask=mask, backend="sdpa.few_queries")
    error, usual = ours.double() - wide, plain.double() - wide
    slack = 2 * 2**-24 * float(tensors[2].abs().max())
    assert error.square().mean().sqrt() <= 1.5 * usual.square().mean().sqrt() + slack
    assert error.abs().max() <= 3 * usual.abs().max() + slack


@pytest.mark.parametrize("name", ["padding", "queries", "causal"])
@pytest.mark.parametrize("filled", [math.nan, math.inf, 3e38])
def test_what_is_hidden_is_not_read(name: str, filled: float) -> None:
    query, key, value = drawn()
    mask = MASKS[name]
    clean = qkv.attention(query, key, value, mask=mask, backend="sdpa.few_queries")
    weights = qkv.attention_with_weights(query, key, value, mask=mask)[1]
    unseen = (weights == 0).all(-2)[..., None]
    assert torch.equal(
        qkv.attention(query, key.masked_fill(unseen, filled), value, mask=mask, backend="sdpa.few_queries"), clean
    )
    assert torch.equal(
        qkv.attention(query, key, value.masked_fill(unseen, filled), mask=mask, backend="sdpa.few_queries"), clean
    )


def test_a_row_that_sees_nothing_gives_zero() -> None:
    query, key, value = drawn()
    query[0] = math.nan
    output = qkv.attention(query, key, value, mask=BY_ITEM, backend="sdpa.few_queries")
    assert torch.equal(output[0], torch.zeros_like(output[0]))


def test_what_is_seen_and_no_number_stays_visible() -> None:
    query, key, value = drawn()
    value[1, 2, 4, 5] = math.inf
    key[3, 1, 0, 0] = math.nan
    output = qkv.attention(query, key, value, backend="sdpa.few_queries")
    assert (output[1, 2, :, 5] == math.inf).all()
    assert output[3, 1].isnan().all()
    assert int((~output.isfinite()).sum()) == QUERIES + QUERIES * VALUE


@pytest.mark.parametrize("keys", [1, 2, 15, 16, 17, 64, 67])
def test_any_number_of_keys_and_any_strides(keys: int) -> None:
    query, key, value = drawn(1, keys)
    expected = qkv.attention(query, key, value, backend="reference")
    key = torch.empty(ITEMS, keys + 3, HEADS, WIDTH).transpose(1, 2)[:, :, 1:-2].copy_(key)
    value = value.mT.contiguous().mT
    torch.testing.assert_close(
        qkv.attention(query.mT.contiguous().mT, key, value, backend="sdpa.few_queries"), expected, rtol=1e-5, atol=1e-5
    )


def test_signs_to_be_turned() -> None:
    """Views of conjugates have a sign bit that NumPy does not know."""
    tensors = drawn()
    turned = [torch._neg_view(-x) for x in tensors]
    assert served(*turned)
    assert torch.equal(
        qkv.attention(*turned, backend="sdpa.few_queries"), qkv.attention(*tensors, backend="sdpa.few_queries")
    )


@pytest.mark.parametrize("keys", [1, 5, 15, 16, 17])
def test_nan_of_a_query_shows_with_any_number_of_keys(keys: int) -> None:
    tensors = drawn(1, keys)
    tensors[0][1, 2, 0] = math.nan
    assert served(*tensors)
    output = qkv.attention(*tensors, backend="sdpa.few_queries")
    assert output[1, 2, 0].isnan().all()
    assert int(output.isnan().sum()) == VALUE


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_key_that_is_no_number_reaches_only_those_who_see_it(bad: float) -> None:
    query, key, value = drawn()
    expected = qkv.attention(query, key, value, mask=causal(30), backend="sdpa.few_queries")
    key[1, 2, 32, 3] = bad
    assert served(query, key, value, mask=causal(30))
    found = qkv.attention(query, key, value, mask=causal(30), backend="sdpa.few_queries")
    assert torch.equal(found[:, :, :2], expected[:, :, :2])


def test_heads_that_share_keys_and_other_leading_dimensions() -> None:
    query, key, value = drawn()
    grouped = {"enable_gqa": True, "mask": BY_ITEM}
    shared = key[:, :2], value[:, :2]
    expected = qkv.attention(query, *shared, **grouped, backend="reference")
    torch.testing.assert_close(
        qkv.attention(query, *shared, **grouped, backend="sdpa.few_queries"), expected, rtol=1e-5, atol=1e-5
    )
    flat = [x.flatten(0, 1) for x in (query, key, value)]
    assert served(*flat)
    expected = qkv.attention(query, key, value, backend="sdpa.few_queries").flatten(0, 1)
    torch.testing.assert_close(qkv.attention(*flat, backend="sdpa.few_queries"), expected, rtol=1e-6, atol=1e-6)


def test_it_serves_few_queries_of_many_rows_without_a_gradient() -> None:
    query, key, value = drawn()
    assert served(query, key, value)
    assert not served(query.requires_grad_(), key, value)
    assert not served(*(x.double() for x in drawn()))
    assert not served(*(x[:1] for x in drawn()))
    assert not served(query.detach().repeat(1, 1, 3, 1), key, value)
    assert not served(*drawn(), bias=torch.zeros(KEYS))


@pytest.mark.compiler
def test_who_traces_sees_operations_of_pytorch() -> None:
    tensors, others = drawn(), drawn(seed=1)
    assert served(*tensors)
    expected = qkv.attention(*others, backend="sdpa.few_queries")
    for traced in (make_fx(_Attention())(*tensors), torch.export.export(_Attention(), tuple(tensors)).module()):
        torch.testing.assert_close(traced(*others), expected)
    with FakeTensorMode() as fake:
        assert qkv.attention(*map(fake.from_tensor, tensors)).shape == expected.shape


class _Attention(nn.Module):
    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return qkv.attention(query, key, value)
