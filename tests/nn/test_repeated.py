"""A product in every step of a loop: its gradients are those of PyTorch, whichever steps a pass goes through."""

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional as F

from qkv.nn.repeated import Repeated

STEPS = 4


def plain(x: Tensor, weight: Tensor, bias: Tensor | None) -> list[Tensor]:
    states = [x]
    for _ in range(STEPS):
        states.append(torch.tanh(F.linear(states[-1], weight, bias)))
    return states[1:]


def repeated(x: Tensor, weight: Tensor, bias: Tensor | None) -> list[Tensor]:
    step, states = Repeated(weight, bias, STEPS), [x]
    for _ in range(STEPS):
        states.append(torch.tanh(step(states[-1])))
    return states[1:]


def given(width: int = 3, dtype: torch.dtype = torch.float64, *, bias: bool = True) -> list[Tensor]:
    torch.manual_seed(0)
    shapes = [(2, width), (width, width), *([(width,)] if bias else [])]
    return [(width**-0.5 * torch.randn(*shape, dtype=dtype)).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [(2,), (2, 1), (1, 2)])
@pytest.mark.parametrize("width", [3, 1024])
def test_gradients_are_those_of_pytorchs_products(width: int, rows: tuple[int, ...], bias: bool) -> None:
    """Width 1024 in float32 is a product by oneDNN where that serves."""
    leaves = given(width, torch.float64 if width == 3 else torch.float32, bias=bias)
    x, weight = leaves[0].view(*rows, width), leaves[1]
    other = leaves[2] if bias else None
    ours = torch.autograd.grad(sum(s.sum() for s in repeated(x, weight, other)), leaves)
    theirs = torch.autograd.grad(sum(s.sum() for s in plain(x, weight, other)), leaves)
    for one, two in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=(1e-5 if width == 1024 else 1e-12) * float(two.abs().max()))


def test_first_and_second_derivatives_by_differences() -> None:
    leaves = given()
    assert gradcheck(lambda *now: tuple(repeated(*now)), leaves)
    assert gradgradcheck(lambda *now: tuple(repeated(*now)), leaves)


def test_a_pass_takes_nothing_of_the_passes_before() -> None:
    """The first pass asks for the input alone, so that what its steps leave is never taken; the second begins early."""
    leaves = given()
    ours, theirs = repeated(*leaves), plain(*leaves)
    torch.autograd.grad(ours[-1].sum(), leaves[0], retain_graph=True)
    for step in (1, 3, 0):
        mine = torch.autograd.grad(ours[step].sum(), leaves, retain_graph=True)
        other = torch.autograd.grad(theirs[step].sum(), leaves, retain_graph=True)
        for one, two in zip(mine, other, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-12, atol=0)


def test_the_same_pass_twice_adds_up() -> None:
    x, weight, bias = given()
    states = repeated(x, weight, bias)
    states[-1].sum().backward(retain_graph=True)
    once = weight.grad.clone()
    states[-1].sum().backward()
    torch.testing.assert_close(weight.grad, 2 * once, rtol=1e-12, atol=0)


def test_a_weight_that_does_not_learn_gets_nothing() -> None:
    x, weight, bias = given()
    states = repeated(x, weight.detach(), bias)
    states[-1].sum().backward()
    assert x.grad is not None
    assert bias.grad is not None


def test_half_precision_by_autocast() -> None:
    leaves = given(8, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        ours, theirs = repeated(*leaves), plain(*leaves)
    assert ours[-1].dtype == theirs[-1].dtype == torch.bfloat16
    torch.testing.assert_close(ours[-1], theirs[-1], rtol=0, atol=0)
    mine = torch.autograd.grad(ours[-1].float().sum(), leaves)
    other = torch.autograd.grad(theirs[-1].float().sum(), leaves)
    for leaf, one, two in zip(leaves, mine, other, strict=True):
        assert one.dtype == leaf.dtype
        torch.testing.assert_close(one, two, rtol=0.03, atol=0.03)


@pytest.mark.parametrize("rows", [(3,), (1, 3), (200,)])
@pytest.mark.parametrize("bias", [True, False])
def test_many_steps_of_few_rows_by_panels(rows: tuple[int, ...], bias: bool) -> None:
    """A weight so large is laid out for the steps; 200 rows are PyTorch's again."""
    torch.manual_seed(0)
    x, weight = torch.randn(*rows, 336, requires_grad=True), (torch.randn(400, 336) / 20).requires_grad_()
    other = torch.randn(400, requires_grad=True) if bias else None
    leaves = [leaf for leaf in (x, weight, other) if leaf is not None]
    found = []
    for times in (Repeated(weight, other, 9), lambda x: F.linear(x, weight, other)):
        states = [x]
        for _ in range(9):
            states.append(torch.tanh(times(states[-1]))[..., :336])
        found.append((states[-1], *torch.autograd.grad(sum(s.sum() for s in states), leaves)))
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-5 * float(two.detach().abs().max()))
    with torch.no_grad():
        torch.testing.assert_close(Repeated(weight, other, 9)(x), F.linear(x, weight, other), rtol=1e-5, atol=1e-5)


def test_a_laid_out_weight_is_that_of_the_pass() -> None:
    """Changed between the passes, it is an error of PyTorch's; and what does not fit it says too."""
    weight, bias = torch.randn(400, 336, requires_grad=True), torch.randn(400)
    step = Repeated(weight, bias, 9)
    found = step(torch.randn(2, 336, requires_grad=True)).sum()
    with torch.no_grad():
        weight.mul_(2)
    with pytest.raises(RuntimeError, match="inplace"):
        found.backward()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        Repeated(weight, bias, 9)(torch.randn(2, 335))
    with pytest.raises(RuntimeError):
        Repeated(weight, bias[1:], 9)(torch.randn(2, 336))


def test_second_derivatives_of_a_laid_out_weight_are_pytorchs() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(2, 336, requires_grad=True), (torch.randn(400, 336) / 20).requires_grad_()
    found = []
    for times in (Repeated(weight, None, 9), lambda x: F.linear(x, weight)):
        (once,) = torch.autograd.grad(torch.tanh(times(x)).square().sum(), x, create_graph=True)
        found.append(torch.autograd.grad(once.square().sum(), weight)[0])
    torch.testing.assert_close(*found, rtol=0, atol=1e-5 * float(found[1].abs().max()))


def test_under_transformations_products_are_pytorchs() -> None:
    x, weight, bias = (leaf.detach() for leaf in given())
    found = torch.func.grad(lambda w: repeated(x, w, bias)[-1].sum())(weight)
    expected = torch.func.grad(lambda w: plain(x, w, bias)[-1].sum())(weight)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
