"""Dropout with cheap random bits: the same distribution as PyTorch's own."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qkv.errors import ConfigError
from qkv.nn.dropout import Dropout


@given(st.sampled_from([0.1, 0.25, 0.5, 0.9]), st.integers(0, 1000))
def test_the_mean_stays_and_the_share_is_dropped(share: float, seed: int) -> None:
    torch.manual_seed(seed)
    count = 40_001
    kept = Dropout(share)(torch.ones(count))
    deviation = (share * (1 - share) / count) ** 0.5
    assert abs((kept == 0).double().mean().item() - share) < 6 * deviation
    assert kept.unique().tolist() == pytest.approx([0.0, 1 / (1 - share)], rel=1e-4)


def test_neighbors_are_dropped_independently() -> None:
    torch.manual_seed(0)
    dropped = (Dropout(0.5)(torch.ones(2, 100_000)) == 0).double()
    for shift in range(1, 9):
        both = (dropped[:, shift:] * dropped[:, :-shift]).mean().item()
        assert abs(both - 0.25) < 0.01
    assert abs((dropped[0] * dropped[1]).mean().item() - 0.25) < 0.01


def test_gradients_pass_where_entries_did() -> None:
    x = torch.randn(7, 9, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(3)
    kept = Dropout(0.3)(x)
    kept.sum().backward()
    torch.manual_seed(3)
    assert torch.equal(x.grad, Dropout(0.3)(torch.ones(7, 9, dtype=torch.float64)))
    torch.testing.assert_close(kept, x * x.grad)


def test_nothing_is_dropped_in_evaluation_or_without_a_share() -> None:
    x = torch.randn(3, 4)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0)(x) is x


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_type_stays(dtype: torch.dtype) -> None:
    assert Dropout(0.5)(torch.ones(5, 5, dtype=dtype).mT).dtype == dtype


def test_empty_tensors_stay_empty() -> None:
    assert Dropout(0.5)(torch.ones(0, 3)).shape == (0, 3)


def test_a_share_outside_its_range_is_named() -> None:
    with pytest.raises(ConfigError, match="dropout: expected a fraction"):
        Dropout(1.0)
