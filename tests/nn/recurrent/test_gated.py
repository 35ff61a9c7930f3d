"""The compiled step of a gated recurrent unit against PyTorch's cell, with its gradients."""

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from qkv.nn.recurrent import gated as module
from qkv.nn.recurrent.gated import gated

ROWS, WIDTH = 33, 130
"""Enough numbers for the compiled pass, in rows that do not fill registers."""


def drawn(dtype: torch.dtype, rows: int = ROWS) -> list[Tensor]:
    torch.manual_seed(0)
    sizes = (3 * WIDTH, 3 * WIDTH, WIDTH)
    return [(3 * torch.randn(rows, size, dtype=dtype)).requires_grad_() for size in sizes]


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of each compiled pass."""
    taken: list[int] = []
    forward = module._forward

    def counted(*given: Tensor) -> tuple[Tensor, Tensor]:
        taken.append(len(given[2]))
        return forward(*given)

    monkeypatch.setattr(module, "_forward", counted)
    return taken


@pytest.mark.kernels
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 2e-6), (torch.float64, 1e-14)])
@pytest.mark.parametrize("together", [True, False])
def test_it_is_pytorchs_with_its_gradients(dtype: torch.dtype, limit: float, together: bool, passes: list[int]) -> None:
    given = drawn(dtype)
    if not together:
        # Like steps of consecutive rows: (B, T, 3M) at one t.
        given[0] = torch.stack([given[0], given[0]], 1)[:, 1]
    wide = [x.detach().double().requires_grad_() for x in given]
    grad = torch.randn(ROWS, WIDTH, dtype=dtype)
    found, expected = gated(*given), module.composed(*wide)
    assert passes == [ROWS]
    slopes = torch.autograd.grad(found, given, grad)
    right = torch.autograd.grad(expected, wide, grad.double())
    for ours, theirs in zip((found, *slopes), (expected, *right), strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=limit, atol=limit)


def test_it_is_the_cell_of_pytorch() -> None:
    torch.manual_seed(0)
    cell, x, h = nn.GRUCell(20, WIDTH), torch.randn(ROWS, 20), torch.randn(ROWS, WIDTH)
    inputs = x @ cell.weight_ih.mT + cell.bias_ih
    torch.testing.assert_close(gated(inputs, h @ cell.weight_hh.mT + cell.bias_hh, h), cell(x, h))


def test_extremes_and_what_is_no_number() -> None:
    inputs, recurrent, hidden = (x.detach() for x in drawn(torch.float32))
    inputs[0], inputs[1], inputs[2, 5] = 1e30, -torch.inf, torch.nan
    found, expected = gated(inputs, recurrent, hidden), module.composed(inputs, recurrent, hidden)
    torch.testing.assert_close(found, expected, equal_nan=True, rtol=2e-6, atol=2e-6)


@pytest.mark.kernels
def test_gradients_of_gradients(monkeypatch: pytest.MonkeyPatch, passes: list[int]) -> None:
    monkeypatch.setattr(module, "LEAST", 0)
    torch.manual_seed(0)
    given = [torch.randn(2, size, dtype=torch.float64).requires_grad_() for size in (9, 9, 3)]
    assert torch.autograd.gradcheck(gated, given)
    assert torch.autograd.gradgradcheck(gated, given)
    assert passes


def test_what_stays_pytorchs(passes: list[int]) -> None:
    given = [x.detach() for x in drawn(torch.float32)]
    gated(*drawn(torch.float32, rows=1))
    gated(*(x.bfloat16() for x in given))
    torch.func.vmap(gated)(*(x[None] for x in given))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(given[2], torch.ones_like(given[2]))
        assert forward_ad.unpack_dual(gated(given[0], given[1], dual)).tangent is not None
    assert passes == []


@pytest.mark.kernels
@pytest.mark.parametrize("learned", [(True, True, True), (True, True, False)])
def test_gradients_of_gradients_through_several_steps(
    monkeypatch: pytest.MonkeyPatch, passes: list[int], learned: tuple[bool, ...]
) -> None:
    """Operands depend on each other there: the products of a step use the state of the previous step."""
    monkeypatch.setattr(module, "LEAST", 0)
    torch.manual_seed(0)
    shapes = (2, 9), (9, 3), (2, 3)
    given = [
        torch.randn(*shape, dtype=torch.float64).requires_grad_(want)
        for shape, want in zip(shapes, learned, strict=True)
    ]

    def steps(inputs: Tensor, weight: Tensor, hidden: Tensor) -> Tensor:
        for _ in range(3):
            hidden = gated(inputs, hidden @ weight.mT, hidden)
        return hidden

    assert torch.autograd.gradgradcheck(steps, given)
    slopes = torch.autograd.grad(steps(*given).sum(), given[:2], create_graph=True)
    right = torch.autograd.grad(steps(*given).sum(), given[:2])
    torch.testing.assert_close(slopes, right)
    assert passes


@pytest.mark.kernels
def test_any_strides_and_shapes(passes: list[int]) -> None:
    inputs, recurrent, hidden = (x.detach() for x in drawn(torch.float32))
    across = hidden.mT.contiguous().mT
    expected = module.composed(inputs, recurrent, hidden)
    torch.testing.assert_close(gated(inputs, recurrent, across), expected, rtol=2e-6, atol=2e-6)
    assert passes == [ROWS]
    first = gated(inputs[:1], recurrent, hidden)
    torch.testing.assert_close(first, module.composed(inputs[:1], recurrent, hidden))
    assert passes == [ROWS]
