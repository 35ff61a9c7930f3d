"""A product in every step of a loop: its gradients equal PyTorch's, for any subset of steps in a backward pass."""

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from tests.pairs import in_turn
from torch import Tensor
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.nn import functional as F

from qkv.linalg.matmul import cached_weight
from qkv.linalg.packed import PackedWeight
from qkv.linalg.session import DecodingSession
from qkv.nn.recurrent.repeated import Repeated

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
    """Width 1024 in float32 is a oneDNN product where that is available."""
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
    """The first pass needs only the gradient of the input, and leaves results unused; the second starts early."""
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


STEPS_BY_PANELS = 25


@pytest.fixture
def panels(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of each product by panels."""
    met, times = [], PackedWeight.times

    def spied(self: PackedWeight, x: Tensor, bias: Tensor | None) -> Tensor:
        met.append(x.numel() // x.shape[-1])
        return times(self, x, bias)

    monkeypatch.setattr(PackedWeight, "times", spied)
    return met


def large(rows: tuple[int, ...], *, bias: bool = True) -> list[Tensor | None]:
    torch.manual_seed(0)
    x, weight = torch.randn(*rows, 720), torch.randn(736, 720) / 27
    given = x, weight, torch.randn(736) if bias else None
    return [leaf if leaf is None else leaf.requires_grad_() for leaf in given]


def looped(times: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    states = [x]
    for _ in range(STEPS_BY_PANELS):
        states.append(torch.tanh(times(states[-1]))[..., :720])
    return states[1:]


@pytest.mark.kernels
@pytest.mark.parametrize(("rows", "bias"), in_turn([(16,), (1, 9), (200,), (3,)], [True, False]))
def test_many_steps_of_few_rows_by_panels(panels: list[int], rows: tuple[int, ...], bias: bool) -> None:
    """A weight this large is packed for the steps; 200 rows, and 3, use PyTorch."""
    x, weight, other = large(rows, bias=bias)
    leaves = [leaf for leaf in (x, weight, other) if leaf is not None]
    found = []
    for times in (Repeated(weight, other, STEPS_BY_PANELS), lambda x: F.linear(x, weight, other)):
        states = looped(times, x)
        found.append((states[-1], *torch.autograd.grad(sum(s.sum() for s in states), leaves)))
    assert len(panels) == (2 * STEPS_BY_PANELS if rows in ((16,), (1, 9)) else 0)
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-5 * float(two.detach().abs().max()))


@pytest.mark.kernels
def test_without_gradients_a_changed_weight_is_laid_out_again(panels: list[int]) -> None:
    x, weight, bias = large((16,))
    step = Repeated(weight, bias, STEPS_BY_PANELS)
    with torch.no_grad():
        torch.testing.assert_close(step(x), F.linear(x, weight, bias), rtol=1e-5, atol=1e-5)
        weight.mul_(2)
        torch.testing.assert_close(step(x), F.linear(x, weight, bias), rtol=1e-5, atol=1e-5)
        assert len(panels) == 2
        with torch.autocast("cpu", torch.bfloat16):
            assert step(x).dtype == torch.bfloat16
        with DecodingSession() as session:
            Repeated(weight, bias, STEPS_BY_PANELS, cached_weight(session, "weight"))(x)
    assert len(panels) == 2


@pytest.mark.kernels
def test_a_laid_out_weight_is_that_of_the_pass(panels: list[int]) -> None:
    """Changed between the passes, it raises PyTorch's error; and a wrong shape is reported."""
    x, weight, bias = large((16,))
    found = Repeated(weight, bias, STEPS_BY_PANELS)(x).sum()
    assert panels == [16]
    with torch.no_grad():
        weight.mul_(2)
    with pytest.raises(RuntimeError, match="inplace"):
        found.backward()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        Repeated(weight, bias, STEPS_BY_PANELS)(x[:, 1:])
    with pytest.raises(RuntimeError):
        Repeated(weight, bias[1:], STEPS_BY_PANELS)(x)


@pytest.mark.kernels
def test_a_result_that_is_kept_keeps_no_panels() -> None:
    x, weight, bias = large((16,))
    made: list[weakref.ref[PackedWeight]] = []
    create = PackedWeight.__init__

    def noted(self: PackedWeight, weight: Tensor) -> None:
        made.append(weakref.ref(self))
        create(self, weight)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PackedWeight, "__init__", noted)
        total = sum(s.sum() for s in looped(Repeated(weight, bias, STEPS_BY_PANELS), x))
        total.backward()
    gc.collect()
    assert len(made) == 2
    assert [ref() for ref in made] == [None, None]
    assert torch.isfinite(total)


@pytest.mark.kernels
def test_what_numpy_cannot_read_is_pytorchs(panels: list[int]) -> None:
    x, weight, bias = large((16,))
    step = Repeated(weight, bias, STEPS_BY_PANELS)
    torch.testing.assert_close(step(torch._neg_view(x)), F.linear(-x, weight, bias), rtol=1e-4, atol=1e-4)
    found = step(x)
    for grad in (torch._neg_view(torch.ones_like(found)), torch._efficientzerotensor(found.shape)):
        ours = torch.autograd.grad(found, x, grad, retain_graph=True)[0]
        torch.testing.assert_close(ours, (grad + 0) @ weight, rtol=1e-4, atol=1e-4)
    assert panels == [16]


def test_tangents_of_a_gradient_are_passed_on() -> None:
    x, weight, bias = large((16,))
    found = Repeated(weight, bias, STEPS_BY_PANELS)(x)
    torch.autograd.grad(found.sum(), x, retain_graph=True)
    grad, tangent = torch.randn_like(found), torch.randn_like(found)
    with forward_ad.dual_level():
        (ours,) = torch.autograd.grad(found, x, forward_ad.make_dual(grad, tangent))
        torch.testing.assert_close(forward_ad.unpack_dual(ours).tangent, tangent @ weight, rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_trace_of_a_loop_is_of_pytorchs_products() -> None:
    x, weight = (leaf.detach() for leaf in large((16,), bias=False)[:2])
    with torch.no_grad():
        traced = torch.jit.trace(lambda x: looped(Repeated(weight, None, STEPS_BY_PANELS), x)[-1], x)
        torch.testing.assert_close(
            traced(2 * x), looped(lambda x: F.linear(x, weight), 2 * x)[-1], rtol=1e-4, atol=1e-4
        )


def test_second_derivatives_of_a_laid_out_weight_are_pytorchs() -> None:
    x, weight, _ = large((16,))
    found = []
    for times in (Repeated(weight, None, STEPS_BY_PANELS), lambda x: F.linear(x, weight)):
        (once,) = torch.autograd.grad(torch.tanh(times(x)).square().sum(), x, create_graph=True)
        found.append(torch.autograd.grad(once.square().sum(), weight)[0])
    torch.testing.assert_close(*found, rtol=0, atol=1e-5 * float(found[1].abs().max()))


def test_under_transformations_products_are_pytorchs() -> None:
    x, weight, bias = (leaf.detach() for leaf in given())
    found = torch.func.grad(lambda w: repeated(x, w, bias)[-1].sum())(weight)
    expected = torch.func.grad(lambda w: plain(x, w, bias)[-1].sum())(weight)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
