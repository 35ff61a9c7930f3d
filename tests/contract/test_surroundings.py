"""The answer depends on the numbers alone, not on the default dtype or device or on earlier inference mode."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch
from tests.contract.calls import MECHANISMS, Call, same_bits, served_part
from tests.contract.mechanisms import ON_CPU
from tests.pairs import in_turn
from torch import Tensor

from qkv.biases import alibi
from qkv.errors import UnsupportedError
from qkv.functional import attention, attention_with_state
from qkv.introspect.lazy_map import attention_map
from qkv.masks.patterns import causal, lengths, window
from qkv.normalizers.base import Normalizer
from qkv.normalizers.dense import Sigmoid
from qkv.normalizers.sparse import Entmax
from qkv.planner.plan_cache import PLANS
from qkv.scores.sums import Additive

by_backend = pytest.mark.parametrize("backend", [*ON_CPU, "auto"])


@contextmanager
def default_double() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def on_meta() -> AbstractContextManager[Any]:
    return torch.device("meta")


by_default = pytest.mark.parametrize("default", [default_double, on_meta])


def calls_of(backend: str, turn: int) -> Sequence[Call]:
    """A sixth of the calls that a backend serves, or more if they are few."""
    served = served_part(calls(), lambda call: backend == "auto" or call.serves(backend, gradient=False), turn, 6)
    assert served
    return served


def calls() -> list[Call]:
    found = []
    for number, (score, normalizer) in enumerate(MECHANISMS):
        mask = (None, causal(), window(2, 1), lengths(torch.tensor([7, 3])), causal() | window(1, 1))[number % 5]
        found.append(Call.draw(score, normalizer, dtype=torch.float32, mask=mask))
    dots = Call.draw(*MECHANISMS[1], dtype=torch.float32)
    found.append(dots.with_options(bias=alibi(0.5)))
    found.append(dots.with_options(bias=torch.linspace(-1, 1, 35).view(5, 7)))
    found.append(dots.with_options(dropout=0.3))
    return found


def answers(call: Call, backend: str) -> list[Tensor]:
    """All outputs of one backend; empty if it supports no such call."""
    found: list[Tensor] = []

    def ask(function: Callable[[], list[Tensor]]) -> None:
        torch.manual_seed(0)
        try:
            found.extend(function())
        except UnsupportedError:
            return

    def gradients() -> list[Tensor]:
        output, slopes = call.gradients(backend)
        return [output, *slopes.values()]

    ask(lambda: [call.output(backend)])
    ask(gradients)
    ask(lambda: [call.state(backend)[1].value])
    if backend == "reference" and "dropout" not in call.options:
        amap = attention_map(call.leaves["query"], call.leaves["key"], **call.arguments(call.leaves))
        ask(lambda: [amap.dense(), amap.received(), amap.peak(), amap.topk(2)[0], amap.pooled(2, 3)])
        ask(lambda: [amap.entropy()])
    return found


@pytest.mark.parametrize(("backend", "default"), in_turn([*ON_CPU, "auto"], [default_double, on_meta]))
def test_defaults_change_no_bit(backend: str, default: Callable[[], AbstractContextManager[Any]]) -> None:
    for call in calls_of(backend, 0):
        expected = answers(call, backend)
        PLANS.clear()
        with default():
            found = answers(call, backend)
        assert len(found) == len(expected), call
        assert all(same_bits(one, other) for one, other in zip(found, expected, strict=True)), call


@by_default
def test_short_sequences_with_gradients_change_no_bit(default: Callable[[], AbstractContextManager[Any]]) -> None:
    """Enough items for the compiled kernel for short sequences, whose tables are rebuilt."""
    leaves = [torch.randn(8, 8, 24, 16, generator=torch.Generator().manual_seed(i)).requires_grad_() for i in range(3)]
    for mask in (None, causal()):
        expected = torch.autograd.grad(attention(*leaves, mask=mask).square().sum(), leaves)
        PLANS.clear()
        with default():
            found = torch.autograd.grad(attention(*leaves, mask=mask).square().sum(), leaves)
        assert all(same_bits(one, other) for one, other in zip(found, expected, strict=True))


@by_default
@pytest.mark.parametrize(
    ("backend", "normalizer"), [("fused", Sigmoid()), ("blocked", Sigmoid(0.5)), ("blocked", Entmax(1.7))]
)
def test_second_derivatives_by_tiles_change_no_bit(
    default: Callable[[], AbstractContextManager[Any]], backend: str, normalizer: Normalizer
) -> None:
    query, key, value = torch.randn(3, 2, 9, 4, generator=torch.Generator().manual_seed(0)).unbind()
    vector = torch.linspace(-1, 1, 4, requires_grad=True)

    def slopes() -> Tensor:
        output = attention(query, key, value, score=Additive(vector), normalizer=normalizer, backend=backend)
        (slope,) = torch.autograd.grad(output.square().sum(), vector, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), vector)[0]

    expected = slopes()
    with default():
        assert same_bits(slopes(), expected)


@by_backend
def test_inference_mode_before_changes_nothing_after(backend: str) -> None:
    """A plan or table cached by a first call in inference mode serves a later call with gradients."""
    for call in calls_of(backend, 1):
        if "dropout" in call.options:
            continue
        expected = answers(call, backend)
        PLANS.clear()
        with torch.inference_mode():
            inside = Call(
                call.score, call.normalizer, {name: x.clone() for name, x in call.leaves.items()}, call.options
            )
            try:
                inside.output(backend)
                inside.output(backend)
            except UnsupportedError:
                continue
        found = answers(call, backend)
        assert all(same_bits(one, other) for one, other in zip(found, expected, strict=True)), call


@by_backend
def test_leaves_made_in_inference_mode_serve_beside_one_that_learns(backend: str) -> None:
    """PyTorch saves no inference tensors for backward: keys and values created there count as constants."""
    for call in calls_of(backend, 2):
        if "dropout" in call.options:
            continue
        with torch.inference_mode():
            fixed = {name: x.clone() for name, x in call.leaves.items()}
        for learned in ("query", "value"):

            def slope(call: Call, others: dict[str, Tensor], learned: str = learned) -> Tensor:
                leaves = {**others, learned: call.leaves[learned].detach().clone().requires_grad_()}
                output = call._call(attention, leaves, backend)
                if not output.requires_grad:
                    # If the value alone is differentiated, queries can be left out of the graph.
                    return torch.zeros_like(leaves[learned])
                return torch.autograd.grad(output.sum(), leaves[learned], materialize_grads=True)[0]

            try:
                expected = slope(call, call.leaves)
            except UnsupportedError:
                continue
            assert same_bits(slope(call, fixed), expected), call


def test_a_state_made_in_inference_mode_serves_a_map() -> None:
    query, key = torch.randn(2, 1, 5, 4).unbind()
    with torch.inference_mode():
        state = attention_with_state(query, key, key)[1]
    amap = attention_map(query.requires_grad_(), key, state=state)
    assert torch.allclose(amap.dense().sum(-1), torch.ones(1, 5))
    amap.received().sum().backward()
