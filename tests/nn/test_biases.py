"""Biases with parameters: equal to their definition, learned through attention, correct with a cache."""

from typing import Any

import pytest
import torch

import qkv
from qkv.errors import ConfigError, DtypeError
from qkv.nn.biases import AlibiBias, BiasModule, BucketedBias, RelativeBias, alibi_slopes, build_bias


def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(3, 2, 4, 9, 6, dtype=torch.float64).unbind()  # type: ignore[return-value]


@pytest.mark.parametrize("module", [AlibiBias(4), AlibiBias(4, learned=True), RelativeBias(3, 4), RelativeBias(3)])
def test_equals_the_bias_written_out(module: BiasModule) -> None:
    query, key, value = inputs()
    module.double()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    ours = qkv.attention(query, key, value, bias=module.value(), mask=qkv.masks.causal())
    written = qkv.attention(query, key, value, bias=module(9, 9), mask=qkv.masks.causal())
    torch.testing.assert_close(ours, written)


def test_a_cache_tells_where_the_queries_stand() -> None:
    query, key, value = inputs()
    for module in (AlibiBias(4).double(), RelativeBias(3, 4).double()):
        for parameter in module.parameters():
            torch.nn.init.normal_(parameter)
        whole = qkv.attention(query, key, value, bias=module.value(), mask=qkv.masks.causal())
        last = qkv.attention(query[..., 7:, :], key, value, bias=module.value(7), mask=qkv.masks.causal(7))
        torch.testing.assert_close(last, whole[..., 7:, :])


def test_slopes_are_those_of_the_paper() -> None:
    assert alibi_slopes(8) == [0.5**i for i in range(1, 9)]
    assert alibi_slopes(16)[:2] == [0.5**0.5, 0.5]
    assert alibi_slopes(12) == [*alibi_slopes(8), *alibi_slopes(16)[::2][:4]]


def test_what_learns_is_a_parameter_and_what_does_not_is_no_state() -> None:
    assert not list(AlibiBias(4).parameters())
    assert not AlibiBias(4).state_dict()
    assert [name for name, _ in AlibiBias(4, learned=True).named_parameters()] == ["log_slopes"]
    assert RelativeBias(3, 4).table.shape == (4, 7)


@pytest.mark.parametrize("module", [AlibiBias(1, learned=True), RelativeBias(2)])
def test_learns_to_look_at_the_neighbor(module: BiasModule) -> None:
    """Only positions tell which value is wanted: the content is the same everywhere."""
    torch.manual_seed(0)
    query, value = torch.zeros(1, 12, 1), torch.randn(1, 12, 5)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.3)
    losses = []
    for _ in range(40):
        output = qkv.attention(query, query, value, bias=module.value())
        loss = (output - value).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 5


def test_bad_settings_are_told() -> None:
    with pytest.raises(ConfigError, match=r'bias: .*"alibbi".*Did you mean "alibi"'):
        build_bias("alibbi", 4)
    with pytest.raises(ConfigError, match="reach: expected a whole number from 1; got 0"):
        RelativeBias(0)
    with pytest.raises(ConfigError, match="heads: expected a whole number from 1; got 0"):
        AlibiBias(0)
    assert isinstance(build_bias("relative", 4, reach=2), RelativeBias)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32])
@pytest.mark.parametrize("causal", [False, True])
def test_buckets_do_not_depend_on_the_type_of_the_distances(dtype: torch.dtype, causal: bool) -> None:
    limits = torch.iinfo(dtype)
    distance = torch.tensor([limits.min, limits.min + 1, 0, 1, 5, limits.max], dtype=dtype)
    bias = BucketedBias(8, 64, heads=2, causal=causal)
    assert torch.equal(bias.bucket_of(distance), bias.bucket_of(distance.long()))


@pytest.mark.parametrize("distance", [torch.tensor([True]), torch.tensor([1.5]), [1], 1])
@pytest.mark.parametrize("causal", [False, True])
def test_distances_are_integers(distance: Any, causal: bool) -> None:
    with pytest.raises(DtypeError, match=r"^distance: "):
        BucketedBias(8, 64, heads=2, causal=causal).bucket_of(distance)
