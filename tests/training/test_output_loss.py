"""The loss fused with an output layer equals the loss of its logits, with the same gradients."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from qkv.training.loss import label_smoothed_loss, output_loss


def drawn(rows: int, width: int, size: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    shapes = ((rows, width), (size, width), (size,))
    states, weight, bias = (torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes)
    return states, weight, bias


@given(st.integers(0, 4), st.integers(2, 9), st.sampled_from([0.0, 0.1, 0.9]), st.booleans(), st.integers(0, 99))
def test_loss_and_gradients_are_those_of_the_scores(
    rows: int, size: int, smoothing: float, biased: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    states, weight, bias = drawn(rows, 3, size)
    target, given_bias = torch.randint(0, size, (rows,)), bias if biased else None
    inputs = [states, weight, *([bias] if biased else [])]
    loss, count = output_loss(states, weight, given_bias, target, 0, smoothing)
    expected, counted = label_smoothed_loss(F.linear(states, weight, given_bias), target, 0, smoothing)
    torch.testing.assert_close(loss, expected)
    assert count == counted
    ours, theirs = (torch.autograd.grad(3 * one, inputs) for one in (loss, expected))
    torch.testing.assert_close(ours, theirs)


def test_more_tokens_than_are_held_at_a_time_are_all_counted() -> None:
    states, weight, bias = drawn(1300, 4, 7, torch.float32)
    target = torch.randint(0, 7, (13, 100))
    loss, count = output_loss(states.view(13, 100, 4), weight, bias, target, 0, 0.1)
    expected, counted = label_smoothed_loss(F.linear(states, weight, bias), target.flatten(), 0, 0.1)
    torch.testing.assert_close(loss, expected)
    assert count == counted
    for ours, theirs in zip(
        torch.autograd.grad(loss, (states, weight, bias)),
        torch.autograd.grad(expected, (states, weight, bias)),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_padding_changes_no_bit_whatever_its_states_hold() -> None:
    states, weight, bias = drawn(3, 4, 5)
    broken = states.detach().clone()
    broken[1] = torch.nan
    target = torch.tensor([2, 0, 3])
    loss, _ = output_loss(broken, weight, bias, target, 0)
    assert torch.equal(loss, output_loss(states, weight, bias, target, 0)[0])


def test_scores_far_beyond_the_range_of_exp_have_a_finite_loss() -> None:
    weight = torch.tensor([[1000.0], [-1000.0]], requires_grad=True)
    loss, _ = output_loss(torch.ones(1, 1), weight, None, torch.tensor([1]), padding=-1)
    loss.backward()
    assert loss.item() == 2000
    assert weight.grad is not None
    assert weight.grad.flatten().tolist() == [1, -1]


def test_it_serves_without_gradients_too() -> None:
    states, weight, bias = drawn(3, 4, 5)
    target = torch.tensor([1, 2, 3])
    with torch.no_grad():
        loss, _ = output_loss(states, weight, bias, target, 0)
    assert not loss.requires_grad
    assert loss.item() == output_loss(states, weight, bias, target, 0)[0].item()


def test_under_autocast_sums_are_float32_and_gradients_have_their_parameters_type() -> None:
    states, weight, bias = drawn(40, 8, 12, torch.float32)
    target = torch.randint(1, 12, (40,))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss, _ = output_loss(states, weight, bias, target, 0)
    loss.backward()
    assert loss.dtype == torch.float32
    assert weight.grad is not None
    assert weight.grad.dtype == torch.float32
    exact, _ = output_loss(states, weight, bias, target, 0)
    assert loss.item() == pytest.approx(exact.item(), rel=2e-2)
