"""All steps of a gated unit at once: states and gradients equal those of PyTorch's operations, step by step."""

import pytest
import torch
from tests.pairs import in_turn
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional as F

from qkv.nn.recurrent import gated
from qkv.nn.recurrent.gated_sequence import gated_steps, served

pytestmark = pytest.mark.kernels

WIDTH = 424
"""A weight (3·WIDTH, WIDTH) is large enough to be packed in panels."""


def given(steps: int, rows: int, dtype: torch.dtype, *, bias: bool = True) -> list[Tensor | None]:
    torch.manual_seed(0)
    inputs, first = torch.randn(steps, rows, 3 * WIDTH, dtype=dtype), torch.randn(rows, WIDTH, dtype=dtype)
    weight, other = torch.randn(3 * WIDTH, WIDTH, dtype=dtype) / 20, torch.randn(3 * WIDTH, dtype=dtype)
    return [x if x is None else x.requires_grad_() for x in (inputs, weight, other if bias else None, first)]


def composed(inputs: Tensor, weight: Tensor, bias: Tensor | None, first: Tensor) -> Tensor:
    hidden, states = first, []
    for x in inputs:
        hidden = gated.composed(x, F.linear(hidden, weight, bias), hidden)
        states.append(hidden)
    return torch.stack(states)


def close(ours: Tensor, theirs: Tensor) -> None:
    atol = (2e-6 if ours.dtype == torch.float32 else 1e-14) * float(theirs.detach().abs().max())
    torch.testing.assert_close(ours, theirs, rtol=0, atol=atol)


@pytest.mark.parametrize(
    ("bias", "size", "dtype"),
    in_turn([True, False], [(2, 20), (25, 20), (4, 140)], [torch.float32, torch.float64]),
)
def test_states_and_gradients(dtype: torch.dtype, size: tuple[int, int], bias: bool) -> None:
    leaves = given(*size, dtype, bias=bias)
    assert served(*leaves)
    learned = [x for x in leaves if x is not None]
    ours, theirs = gated_steps(*leaves), composed(*leaves)
    close(ours, theirs)
    with torch.no_grad():
        assert torch.equal(gated_steps(*leaves), ours)
    grad = torch.randn_like(theirs)
    # Twice: nothing is used up.
    for _ in range(2):
        found = torch.autograd.grad(ours, learned, grad, retain_graph=True)
        for one, two in zip(found, torch.autograd.grad(theirs, learned, grad, retain_graph=True), strict=True):
            close(one, two)


def test_of_some_operands_and_some_states() -> None:
    inputs, weight, bias, first = given(9, 20, torch.float64)
    ours, theirs = (f(inputs.detach(), weight, bias, first.detach())[3] for f in (gated_steps, composed))
    for one, two in zip(*(torch.autograd.grad(x.sum(), (weight, bias)) for x in (ours, theirs)), strict=True):
        close(one, two)


def test_second_derivatives_are_pytorchs() -> None:
    leaves = given(3, 20, torch.float64)
    found = []
    for steps in (gated_steps, composed):
        (once,) = torch.autograd.grad(steps(*leaves).square().sum(), leaves[3], create_graph=True)
        found.append(torch.autograd.grad(once.square().sum(), leaves))
    for one, two in zip(*found, strict=True):
        close(one, two)


def test_gradients_that_numpy_cannot_read() -> None:
    leaves = given(9, 20, torch.float32)
    ours, theirs = gated_steps(*leaves), composed(*leaves)
    for grad in (torch._neg_view(torch.ones_like(ours)), torch._efficientzerotensor(ours.shape)):
        found, expected = (torch.autograd.grad(x, leaves, grad, retain_graph=True) for x in (ours, theirs))
        for one, two in zip(found, expected, strict=True):
            torch.testing.assert_close(one + 0, two + 0, rtol=1e-4, atol=1e-4)


def test_tangents_of_a_gradient_are_passed_on() -> None:
    leaves = given(4, 20, torch.float64)
    ours, theirs = gated_steps(*leaves), composed(*leaves)
    grad, tangent = torch.randn_like(ours), torch.randn_like(ours)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(grad, tangent)
        for one, two in zip(*(torch.autograd.grad(x, leaves, dual) for x in (ours, theirs)), strict=True):
            close(forward_ad.unpack_dual(one).tangent, forward_ad.unpack_dual(two).tangent)


@pytest.mark.parametrize("changed", [1, "states"])
def test_what_was_changed_in_between_is_an_error(changed: int | str) -> None:
    leaves = given(9, 20, torch.float32)
    states = gated_steps(*leaves)
    total = states.sum()
    with torch.no_grad():
        (states if changed == "states" else leaves[changed]).mul_(2)
    with pytest.raises(RuntimeError, match="inplace"):
        total.backward()


def test_what_it_does_not_serve() -> None:
    inputs, weight, bias, first = given(3, 20, torch.float32)
    assert not served(inputs[:1], weight, bias, first)
    assert not served(inputs, weight.double(), bias, first)
    assert not served(inputs, weight[1:], bias, first)
    assert not served(inputs, weight, bias[1:], first)
    assert not served(inputs[:, :2], weight, bias, first[:2])
    with torch.autocast("cpu", torch.bfloat16):
        assert not served(inputs, weight, bias, first)
    with torch.autograd.forward_ad.dual_level():
        assert not served(inputs, weight, bias, first)
