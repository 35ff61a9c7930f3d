"""A Gaussian under its sum at any distance: exactly the softmax of −‖q−k‖²/2h², in every backend and every answer."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.contract.mechanisms import ON_CPU
from torch import Tensor

from qkv.errors import UnsupportedError
from qkv.functional import attention, attention_with_state, attention_with_weights
from qkv.introspect.lazy_map import attention_map
from qkv.masks.base import Mask
from qkv.masks.patterns import causal, lengths, window
from qkv.normalizers.dense import Sum
from qkv.normalizers.row_state import merge
from qkv.scores.kernels import Gaussian

MASKS: tuple[Mask | None, ...] = (None, causal(), lengths(torch.tensor([7, 0])), window(2, 1) | lengths(1))


def exact(query: Tensor, key: Tensor, bandwidth: Tensor, seen: Tensor) -> Tensor:
    """Weights in float64, by the equation in log space."""
    h = bandwidth.double()[..., None, None]
    x = -(query.double()[..., :, None, :] - key.double()[..., None, :, :]).square().sum(-1) / h**2 / 2
    x = torch.where(seen, x, -torch.inf)
    return torch.softmax(torch.where(seen.any(-1, keepdim=True), x, 0), -1) * seen


def visible(mask: Mask | None) -> Tensor:
    ones = torch.zeros(2, 5, 1)
    return attention_with_weights(ones, torch.zeros(2, 7, 1), torch.zeros(2, 7, 1), mask=mask)[1] > 0


@pytest.mark.parametrize("backend", [*ON_CPU, "auto"])
@settings(max_examples=40)
@given(
    far=st.sampled_from((0.0, 3.0, 14.0, 15.0, 38.0, 39.0, 300.0, 4000.0)),
    dtype=st.sampled_from((torch.float64, torch.float32, torch.bfloat16)),
    width=st.sampled_from((1, 1, 3, 9)),
    per_head=st.booleans(),
    mask=st.sampled_from(MASKS),
    seed=st.integers(0, 99),
)
def test_far_from_all_keys_weights_are_those_of_a_softmax(
    backend: str, far: float, dtype: torch.dtype, width: int, per_head: bool, mask: Mask | None, seed: int
) -> None:
    """Queries up to 4,000 bandwidths away; integers and eighths, whose squares are exact in float32."""
    g = torch.Generator().manual_seed(seed)
    query = torch.randint(0, 3, (2, 5, width), generator=g) + far
    key, value = torch.randint(0, 17, (2, 7, width), generator=g) / 8, torch.randn(2, 7, 4, generator=g)
    bandwidth = torch.tensor([1.0, 2.0]) if per_head else torch.tensor(1.0)
    query, key, value = (x.to(dtype) for x in (query, key, value))
    leaves = [x.requires_grad_() for x in (query, key, value, bandwidth)]
    given: dict[str, Any] = {"score": Gaussian(bandwidth), "normalizer": Sum(), "mask": mask, "backend": backend}
    try:
        output = attention(query, key, value, **given)
    except UnsupportedError:
        return
    seen = visible(mask)
    w = exact(query, key, bandwidth, seen)
    expected = w @ value.double()
    # Exponents are rounded once more: at 4,000 bandwidths by half of a bandwidth's share in float32.
    size = (query.double()[..., :, None, :] - key.double()[..., None, :, :]).square().sum(-1).max().item() / 2
    u = torch.finfo(torch.promote_types(dtype, torch.float32)).eps
    slack = 8 * u * (1 + size) + 2 * torch.finfo(dtype).eps
    assert (output.double() - expected).abs().max() <= slack * value.double().abs().max()
    if slack > 0.1:
        return
    gradients = torch.autograd.grad(output.double().square().sum(), leaves, materialize_grads=True)
    truth = torch.autograd.grad(expected.square().sum(), leaves, materialize_grads=True)
    for found, right in zip(gradients, truth, strict=True):
        assert found.isfinite().all()
        assert (found - right).abs().double().max() <= 20 * slack * (1 + far) * (1 + right.abs().double().max())


@settings(max_examples=60)
@given(
    far=st.sampled_from((0.0, 14.5, 39.0, 500.0)),
    dtype=st.sampled_from((torch.float64, torch.float32)),
    cut=st.integers(0, 7),
    seed=st.integers(0, 99),
)
def test_far_parts_merge(far: float, dtype: torch.dtype, cut: int, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    query = (torch.randint(0, 3, (5, 1), generator=g) + far).to(dtype)
    key, value = ((torch.randint(0, 17, (7, n), generator=g) / 8).to(dtype) for n in (1, 3))
    parts = [attention_with_state(query, key[s], value[s], score=Gaussian(2.0)) for s in (slice(0, cut), slice(cut, 7))]
    w = exact(query, key, torch.tensor(2.0), torch.ones(5, 7, dtype=torch.bool))
    slack = 8 * torch.finfo(dtype).eps * (1 + (far + 3) ** 2)
    for some in (parts, parts[::-1]):
        output, state = merge(some)
        assert (output.double() - w @ value.double()).abs().max() <= slack * 3
        assert not state.weightless.any()
    amap = attention_map(query, key, score=Gaussian(2.0))
    assert (amap.dense().double() - w).abs().max() <= slack


def test_the_state_of_an_earlier_version_serves_a_map() -> None:
    """The sum itself, as float32; of a row that had underflowed nothing can be read, and the map makes its own."""
    from qkv.normalizers.row_state import RowState

    query, key = torch.tensor([[0.0], [1.0]]), torch.tensor([[0.0], [0.5], [2.0]])
    expected = attention_map(query, key, score=Gaussian()).dense()
    for state in (RowState("sum", Gaussian()(query, key).sum(-1)), RowState("sum", torch.zeros(2))):
        assert torch.allclose(attention_map(query, key, score=Gaussian(), state=state).dense(), expected)
