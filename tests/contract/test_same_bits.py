"""Asking for weights, asking for the state, or asking again does not change a bit."""

import pytest
import torch
from tests.contract.calls import MECHANISMS, Call, near, same_bits
from tests.contract.mechanisms import ON_CPU

from qkv.functional import attention_with_state, attention_with_weights
from qkv.masks.patterns import causal, lengths

by_backend = pytest.mark.parametrize("backend", [*ON_CPU, "auto"])
SLOW = pytest.mark.slow
by_dtype = pytest.mark.parametrize(
    "dtype",
    [torch.float32, *(pytest.param(x, marks=SLOW) for x in (torch.float64, torch.bfloat16, torch.float16))],
    ids=str,
)
MASKS = {
    "none": None,
    "causal": causal(),
    "lengths": lengths(torch.tensor([4, 6])),
    "dense": torch.rand(2, 1, 5, 7, generator=torch.Generator().manual_seed(0)) < 0.6,
}


def calls(backend: str, dtype: torch.dtype, mask: str, state: bool = False, gradient: bool = True):
    found = []
    for score, normalizer in MECHANISMS:
        call = Call.draw(score, normalizer, dtype=dtype, mask=MASKS[mask])
        if backend == "auto" or call.serves(backend, state, gradient):
            found.append(call)
    if not found:
        pytest.skip(f"{backend} serves no such problem")
    return found


@pytest.mark.parametrize("mask", MASKS)
@by_dtype
@by_backend
def test_weights_requested_or_not_give_the_same_bits(backend: str, dtype: torch.dtype, mask: str) -> None:
    for call in calls(backend, dtype, mask):
        output, gradients = call.gradients(backend)
        again, same = call.gradients(backend, attention_with_weights)
        assert same_bits(output, again), call
        assert all(same_bits(x, same[name]) for name, x in gradients.items()), call


@pytest.mark.parametrize("mask", ["none", "dense"])
@by_dtype
@by_backend
def test_repeats_give_the_same_bits(backend: str, dtype: torch.dtype, mask: str) -> None:
    for call in calls(backend, dtype, mask):
        output, gradients = call.gradients(backend)
        again, same = call.gradients(backend)
        assert same_bits(output, again), call
        assert all(same_bits(x, same[name]) for name, x in gradients.items()), call


@by_dtype
@by_backend
def test_weights_times_values_are_the_output(backend: str, dtype: torch.dtype) -> None:
    for call in calls(backend, dtype, "lengths", gradient=False):
        output, weights = call.weights(backend)
        assert weights.dtype == output.dtype == dtype, call
        assert near(weights @ call.leaves["value"], output, 16), call


@by_backend
def test_the_state_comes_with_the_same_output(backend: str) -> None:
    """Within the bound: a kernel that also returns its state may be another one."""
    for call in calls(backend, torch.float64, "lengths", state=True, gradient=False):
        output, state = call.state(backend)
        assert near(output, call.output(backend)), call
        assert state.value.dtype == torch.float64, call


@by_backend
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_states_are_at_least_float32(backend: str, dtype: torch.dtype) -> None:
    for call in calls(backend, dtype, "none", state=True, gradient=False):
        assert call.state(backend)[1].value.dtype == torch.float32, call


@by_backend
def test_states_agree_with_the_reference(backend: str) -> None:
    for call in calls(backend, torch.float64, "dense", state=True, gradient=False):
        assert near(call.state(backend)[1].value, call.state("reference")[1].value), call


@pytest.mark.parametrize("name", [name for name in ON_CPU if name != "reference"])
def test_states_have_the_gradients_of_the_reference(name: str) -> None:
    served = 0
    for score, normalizer in MECHANISMS:
        call = Call.draw(score, normalizer, dtype=torch.float64, mask=MASKS["dense"])
        if not call.serves(name, state=True):
            continue
        served += 1
        ours, theirs = (call.gradients(backend, _state_value)[1] for backend in (name, "reference"))
        assert all(near(x, theirs[leaf], 4000) for leaf, x in ours.items()), call
    if not served:
        pytest.skip(f"{name} has no gradient of the state")


def _state_value(*args, **options) -> torch.Tensor:
    value = attention_with_state(*args, **options)[1].value
    return torch.where(value.isinf(), 0.0, value) + 0 * args[0].sum()
