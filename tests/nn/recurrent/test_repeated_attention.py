"""Attention in every step of a loop: gradients equal those of separate steps, for any subset in a backward pass."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import qkv
from qkv import functional
from qkv.errors import UnsupportedError
from qkv.masks.base import Mask
from qkv.masks.patterns import Lengths
from qkv.nn.attention import Attention
from qkv.nn.recurrent import repeated_attention
from qkv.nn.recurrent.repeated_attention import RepeatedAttention
from qkv.scores import Additive, Gaussian, ScaledDot, Uniform
from qkv.scores.base import Score

STEPS, ROWS, KEYS, WIDTH = 4, 64, 33, 32
"""Enough keys and values that their gradients are computed last."""
Attend = Callable[[Tensor], Tensor]


def given(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    torch.manual_seed(0)
    shapes = ((ROWS, 1, WIDTH), (ROWS, KEYS, WIDTH), (ROWS, KEYS, WIDTH), (WIDTH,))
    return [torch.randn(*shape, dtype=dtype).requires_grad_() for shape in shapes]


def looks(attend: Attend, query: Tensor) -> list[Tensor]:
    """Each step's query is the previous step's result."""
    found = []
    for _ in range(STEPS):
        query = torch.tanh(query + attend(query))
        found.append(query)
    return found


def ours(score: Score, mask: Mask | None, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
    step = RepeatedAttention(Attention(), score, mask, key, value, STEPS)
    assert step._marks is not None
    return looks(step, query)


def theirs(score: Score, mask: Mask | None, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
    return looks(lambda now: qkv.attention(now, key, value, score=score, mask=mask, backend="reference"), query)


SCORES: dict[str, Callable[[Tensor], Score]] = {
    "additive": Additive,
    "scaled_dot": lambda _: ScaledDot(),
    "gaussian": lambda _: Gaussian(4.0),
}


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", list(SCORES))
def test_gradients_are_those_of_each_step_by_itself(name: str, padded: bool) -> None:
    query, key, value, vector = leaves = given()
    score, mask = SCORES[name](vector), Lengths(torch.arange(ROWS) % KEYS + 1) if padded else None
    wanted = leaves if name == "additive" else leaves[:3]
    found = [run(score, mask, query, key, value) for run in (ours, theirs)]
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-11)
    mine, other = (torch.autograd.grad(sum(s.sin().sum() for s in states), wanted) for states in found)
    for one, two in zip(mine, other, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-11)


def test_average_pooling_gives_the_keys_zero_gradient() -> None:
    query, key, value, _ = given()
    mask = Lengths(torch.arange(ROWS) % KEYS + 1)
    losses = [sum(s.sin().sum() for s in run(Uniform(), mask, query, key, value)) for run in (ours, theirs)]
    of_key, of_value = torch.autograd.grad(losses[0], (key, value))
    (expected,) = torch.autograd.grad(losses[1], value)
    assert not of_key.any()
    torch.testing.assert_close(of_value, expected, rtol=1e-9, atol=1e-11)


def test_a_mask_that_changes_before_the_backward_pass_raises() -> None:
    query, key, value, _ = given()
    lengths = torch.arange(ROWS) % KEYS + 1
    states = ours(ScaledDot(), Lengths(lengths), query, key, value)
    lengths -= 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        states[-1].sum().backward()


def test_a_pass_takes_nothing_of_the_passes_before() -> None:
    query, key, value, vector = given()
    score = Additive(vector)
    mine, other = ours(score, None, query, key, value), theirs(score, None, query, key, value)
    torch.autograd.grad(mine[-1].sum(), query, retain_graph=True)
    for step in (1, 3, 0):
        found = [torch.autograd.grad(states[step].sum(), (key, value), retain_graph=True) for states in (mine, other)]
        for one, two in zip(*found, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-11)


def test_second_derivatives_are_refused_rather_than_wrong() -> None:
    query, key, value, _ = given()
    found = []
    for run in (ours, theirs):
        loss = run(ScaledDot(), None, query, key, value)[-1].sin().sum()
        found.append(torch.autograd.grad(loss, (query, key, value), create_graph=True))
    for mine in found[0][1:]:
        with pytest.raises(UnsupportedError, match="second derivative"):
            torch.autograd.grad(mine.square().sum(), query, retain_graph=True)
    # Along the query nothing is detached: the algorithm of a step decides.
    try:
        (mine,) = torch.autograd.grad(found[0][0].square().sum(), query)
    except UnsupportedError:
        return
    (other,) = torch.autograd.grad(found[1][0].square().sum(), query)
    torch.testing.assert_close(mine, other)


def test_what_records_sees_each_step_once() -> None:
    query, key, value, vector = given()
    attention, seen = Attention(), []
    attention.register_forward_hook(lambda _, arguments, __: seen.append(arguments[0].shape))
    step = RepeatedAttention(attention, Additive(vector), None, key, value, STEPS)
    looks(step, query)[-1].sum().backward()
    assert seen == [(ROWS, 1, WIDTH)] * STEPS


@pytest.mark.parametrize("attention", [Attention(backend="reference"), Attention(dropout=0.5)])
def test_a_backend_by_name_and_dropout_go_step_by_step(attention: Attention) -> None:
    _, key, value, vector = given()
    assert RepeatedAttention(attention, Additive(vector), None, key, value, STEPS)._marks is None


def test_little_memory_is_not_worth_it() -> None:
    _, key, value, vector = given()
    assert RepeatedAttention(Attention(), Additive(vector), None, key[:2], value[:2], STEPS)._marks is None


@pytest.mark.kernels
def test_steps_of_additive_attention_are_planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    query, key, value, vector = given(torch.float32)
    planned = []

    def again(*args: object) -> object:
        planned.append(functional.decoder_for(*args))  # type: ignore[arg-type]
        return planned[-1]

    monkeypatch.setattr(repeated_attention, "decoder_for", again)
    ours(Additive(vector), Lengths(torch.arange(ROWS) % KEYS + 1), query, key, value)
    assert len(planned) == 1
    assert planned[0] is not None


def test_who_watches_an_attention_sees_every_step() -> None:
    query, key, value, vector = given(torch.float32)
    attention, seen = Attention(), []
    attention.register_forward_hook(lambda *_: seen.append(1))
    looks(RepeatedAttention(attention, Additive(vector), None, key, value, STEPS), query)
    assert len(seen) == STEPS


def test_half_precision_is_asked_for_once_more_in_each_step() -> None:
    query, key, value, vector = given(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found = ours(Additive(vector), None, query, key, value)
        expected = theirs(Additive(vector), None, query, key, value)
    assert found[-1].dtype == expected[-1].dtype
    torch.testing.assert_close(found[-1], expected[-1], rtol=0.05, atol=0.05)


def test_backward_hooks_see_every_step() -> None:
    query, key, value, vector = given(torch.float32)
    attention, seen = Attention(), []
    attention.register_full_backward_hook(lambda *_: seen.append(1))
    looks(RepeatedAttention(attention, Additive(vector), None, key, value, STEPS), query)[-1].sum().backward()
    assert len(seen) >= STEPS


@pytest.mark.kernels
@pytest.mark.parametrize("changed", ["vector", "key", "value"])
def test_what_was_changed_in_between_is_told_of(changed: str) -> None:
    query, key, value, vector = leaves = given(torch.float32)
    found = ours(Additive(vector), None, query, key, value)
    with torch.no_grad():
        dict(zip(("query", "key", "value", "vector"), leaves, strict=True))[changed].mul_(2)
    with pytest.raises(RuntimeError, match="inplace"):
        torch.autograd.grad(found[-1].sum(), query)


@pytest.mark.kernels
def test_a_graph_of_the_first_gradients_may_be_asked_for() -> None:
    query, key, value, vector = given(torch.float32)
    found = ours(Additive(vector), None, query, key, value)
    slopes = torch.autograd.grad(found[-1].sum(), (query, vector), create_graph=True)
    torch.testing.assert_close(
        slopes, torch.autograd.grad(ours(Additive(vector), None, query, key, value)[-1].sum(), (query, vector))
    )
    with pytest.raises(UnsupportedError):
        torch.autograd.grad(slopes[0].sum(), query)
