"""Every kind of odd tensor in every argument: an error that names the argument, or the right answer."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.contract.odd_tensors import NOT_FLOATS, REFUSED, SERVED, Slot, slots
from torch import Tensor
from torch.utils._pytree import tree_leaves

from qkv.errors import QkvError
from qkv.planner.plan import Plan

SLOTS = slots()
pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
    pytest.mark.filterwarnings("ignore:torch.quantize"),
    pytest.mark.filterwarnings("ignore:ComplexHalf support"),
]


def answer(slot: Slot, x: object) -> list[Tensor] | Plan:
    """Return the numbers of an answer, or the plan that explains it."""
    result = slot.run(x)
    if isinstance(result, Plan):
        return result
    leaves = [getattr(x, "value", x) for x in tree_leaves(result)]
    return [x.detach().as_subclass(Tensor) for x in leaves if isinstance(x, Tensor)]


def expect_same(result: list[Tensor] | Plan, expected: list[Tensor] | Plan) -> None:
    """Expect the same numbers, in plain arithmetic; of explanations, that both calls are served."""
    if isinstance(expected, Plan):
        assert isinstance(result, Plan)
        return
    assert not isinstance(result, Plan)
    for one, other in zip(result, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def as_plain(x: Any, plain: Tensor) -> Tensor:
    """Return what stands in a tensor or number, in the type of the plain one."""
    number = x if isinstance(x, Tensor) else torch.tensor(x)
    return number.to(torch.float32).to(plain.dtype) if number.is_floating_point() else number.to(plain.dtype)


def made(kind: str, slot: Slot) -> Iterator[Any]:
    """Yield an odd tensor in the place of a plain one; nothing if there is none of this rank or dtype."""
    try:
        yield {**REFUSED, **NOT_FLOATS}[kind](slot.plain)
    except (RuntimeError, NotImplementedError, IndexError, ValueError):
        return


def by_the_function(name: str, slot: Slot, x: object) -> bool:
    """Return whether a function of pairs fails by itself, where PyTorch calls it."""
    if "table" not in name:
        return False
    try:
        slot.literally(x)
    except Exception:
        return True
    return False


def outcome(name: str, slot: Slot, x: object) -> QkvError | list[Tensor] | Plan | None:
    """Return an answer or our own error; None where a function of pairs fails by itself."""
    try:
        return answer(slot, x)
    except QkvError as error:
        return error
    except Exception:
        assert by_the_function(name, slot, x), name
        return None


@pytest.mark.parametrize("kind", [*REFUSED, *NOT_FLOATS])
def test_odd_tensors_are_refused_by_name_or_computed_with(kind: str) -> None:
    refused = 0
    for name, slot in SLOTS.items():
        for x in made(kind, slot):
            result = outcome(name, slot, x)
            if isinstance(result, QkvError):
                assert any(word in result.argument for word in slot.names), (name, str(result))
                refused += 1
            elif result is not None:
                expect_same(result, answer(slot, as_plain(x, slot.plain)))
    assert refused > 20, refused


@pytest.mark.parametrize("kind", SERVED)
def test_unusual_views_of_numbers_are_computed_with(kind: str) -> None:
    for name, slot in SLOTS.items():
        x = SERVED[kind](slot.plain)
        # As PyTorch's own, a linear layer that learns takes no tensor made in inference mode.
        learns = not (kind == "inference" and name.startswith("MultiHeadAttention"))
        with torch.set_grad_enabled(learns):
            expect_same(answer(slot, x), answer(slot, slot.plain))


def test_every_argument_is_tried() -> None:
    functions = {name.partition(",")[0] for name in SLOTS}
    assert len(functions) == 7
    assert len(SLOTS) > 180
