"""The judge is judged: planted faults are seen, every order of sums passes, and less work gives no other verdict."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.contract.criterion import ENOUGH, Draw, failed, shares
from tests.contract.judge import Case, Trial
from tests.contract.mechanisms import MASK, NORMALIZER, SCORE
from tests.contract.orders import SumsInBlocks
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_ATEN = torch.ops.aten
_FLASH = _ATEN._scaled_dot_product_flash_attention_for_cpu_backward.default


def case(score: str = "scaled_dot", normalizer: str = "softmax", dtype: torch.dtype = torch.float32) -> Case:
    return Case(SCORE[score], NORMALIZER[normalizer], MASK["none"], dtype)


class Planted(TorchDispatchMode):
    """PyTorch with a fault in one of its operations."""

    def __init__(self, faults: dict[Any, Callable[..., Any]]) -> None:
        super().__init__()
        self.faults = faults

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        fault = self.faults.get(function)
        return (fault or (lambda right, *args, **kwargs: right(*args, **kwargs)))(function, *args, **(kwargs or {}))


def off(relative: float) -> Callable[..., Tensor]:
    """Each number that an operation computes is off by so much of itself, up or down."""

    def fault(right: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
        y = right(*args, **kwargs)
        return y * (1 + relative * torch.sign(torch.sin(y * 1e4)))

    return fault


def in_bfloat16(right: Callable[..., Tensor], x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return right(x.bfloat16(), *args, **kwargs).to(x.dtype)


def lse_rounded(right: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The backward pass gets the lse in bfloat16."""
    grad, query, key, value, out, lse, *rest = args
    return right(grad, query, key, value, out, lse.bfloat16().float(), *rest, **kwargs)


def softmax_backward_in_bfloat16(right: Callable[..., Any], grad: Tensor, y: Tensor, dim: int, dtype: Any) -> Tensor:
    return y * (grad - (grad * y).sum(dim, keepdim=True, dtype=torch.bfloat16).to(grad.dtype))


FAULTS = {
    "2^-20 in exp": ("blocked", case("gaussian", "identity"), {_ATEN.exp.default: off(2.0**-20)}),
    "2^-18 in a sigmoid": ("blocked", case("scaled_dot", "sigmoid"), {_ATEN.sigmoid.default: off(2.0**-18)}),
    "one sum in bfloat16": ("blocked", case("gaussian", "identity"), {_ATEN.sum.dim_IntList: in_bfloat16}),
    "one sum of the backward pass in bfloat16": (
        "blocked",
        case(),
        {_ATEN._softmax_backward_data.default: softmax_backward_in_bfloat16},
    ),
    "a rounded lse": ("sdpa.flash", case(), {_FLASH: lse_rounded}),
}
"""A backend, a mechanism that it computes, and the fault.

None is near the limit, where the inputs would decide whether it is seen: 2⁻²⁰ in a sigmoid, whose scores are products
with errors of their own, has 0.7 to 1.2 times the limit.
"""


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_seen(name: str) -> None:
    backend, of, faults = FAULTS[name]

    def draw(turn: int) -> Draw:
        trial = first.at(turn)
        right = trial.draw(backend)
        with Planted(faults):
            return replace(right, ours=trial.answer(backend, of.dtype).named)

    first = Trial(of)
    assert not failed(first.shares(backend)), "without the fault it is exact"
    assert max(shares(draw, of.dtype, allowed=first.allowed(backend)).values()) > 1.3, "seen with any inputs"


@pytest.mark.parametrize("turn", range(6))
@pytest.mark.parametrize("block", [3, 4, 64])
@pytest.mark.parametrize("mechanism", [("scaled_dot", "softmax"), ("additive", "softmax"), ("gaussian", "sum")])
def test_another_order_of_summation_is_exact(mechanism: tuple[str, str], block: int, turn: int) -> None:
    first = Trial(case(*mechanism))

    def draw(more: int) -> Draw:
        trial = first.at(100 * turn + more)
        with SumsInBlocks(block):
            ours = trial._pull(*trial.equation(torch.float32)).named
        return replace(trial.draw("reference"), ours=ours)

    assert not failed(shares(draw, torch.float32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_verdict_is_the_same_after_all_evaluations(dtype: torch.dtype) -> None:
    for mechanism in (("scaled_dot", "softmax"), ("additive", "sigmoid"), ("squared_distance", "entmax")):
        first = Trial(case(*mechanism, dtype))
        soon, late = first.shares("blocked"), first.shares("blocked", certain=0.0)
        assert set(failed(soon)) == set(failed(late))
        assert all(late[name] <= soon[name] for name in late)


def of_errors(draws: list[float], rows: int) -> tuple[dict[str, float], int]:
    """The shares of answers off by so many of the equation's errors in each draw, and how many were drawn."""
    made = 0

    def draw(turn: int) -> Draw:
        nonlocal made
        made += 1
        exact = torch.zeros(rows, 4, dtype=torch.float64)
        sign = torch.where(torch.arange(4) % 2 == 0, 1.0, -1.0)
        ours = exact + draws[min(turn, len(draws) - 1)] * sign * 1e-3
        return Draw({"output": ours}, {"output": exact}, lambda order: {"output": exact + sign * 1e-3}, {"output": 1.0})

    return shares(draw, torch.float32), made


def test_few_rows_are_no_verdict() -> None:
    assert of_errors([1.4], 1)[1] == 1
    found, made = of_errors([2.0, 1.0], 1)
    assert found["output"] <= 1
    assert made > 1
    found, made = of_errors([2.0], 100)
    assert found["output"] == pytest.approx(2 / 1.5, rel=1e-3)
    assert made == -(-ENOUGH // 100)


def test_a_number_that_is_missing_is_never_exact() -> None:
    found, made = of_errors([float("nan")], 1)
    assert failed(found)
    assert made == 1


@pytest.mark.parametrize(("noise", "exact"), [(1.0, True), (2.5, False)])
def test_a_sum_that_cancels_does_not_outweigh_the_others(noise: float, exact: bool) -> None:
    """A gradient of one number may be near 0 in a draw: its error is as large as ever, and no more than that."""

    def verdict(seed: int) -> bool:
        random = torch.Generator().manual_seed(seed)

        def draw(turn: int) -> Draw:
            r = torch.randn((), generator=random, dtype=torch.float64)

            def off(by: float) -> dict[str, Tensor]:
                return {"sink": r + by * 1e-6 * torch.randn((), generator=random, dtype=torch.float64)}

            return Draw(off(noise), {"sink": r}, lambda _: off(1.0), {"sink": r.abs().item()})

        return not failed(shares(draw, torch.float32, least=ENOUGH))

    assert {verdict(seed) for seed in range(2)} == {exact}
