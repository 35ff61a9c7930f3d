"""Attention that a decoding keeps gives what the module gives, and gives way to it wherever anyone could tell."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qkv.compiled import available
from qkv.masks.base import Mask
from qkv.masks.patterns import Lengths
from qkv.nn.attention import Attention
from qkv.nn.recurrent import repeated_attention
from qkv.nn.recurrent.repeated_attention import PlannedAttention
from qkv.scores.base import Score
from qkv.scores.products import ScaledDot
from qkv.scores.sums import Additive

BATCH, KEYS, WIDTH = 64, 50, 128


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each plan so far is a loop."""
    if available.why_unavailable() is not None:
        pytest.skip("no compiled kernels here")
    plans: list[bool] = []
    true = repeated_attention.decoder_for

    def plan(*args: Any) -> Any:
        found = true(*args)
        plans.append(found is not None)
        return found

    monkeypatch.setattr(repeated_attention, "decoder_for", plan)
    return plans


@pytest.fixture(autouse=True)
def _no_gradients() -> Any:
    with torch.no_grad():
        yield


def memory(rows: int = BATCH) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, KEYS, WIDTH), torch.randn(rows, KEYS, 64)


def compare(
    kept: PlannedAttention,
    attention: Attention,
    score: Score,
    mask: Mask | None,
    key: Tensor,
    value: Tensor,
    queries: int,
) -> None:
    query = torch.randn(len(key), queries, WIDTH)
    found = kept.attend(attention, score, mask, key, value, query)
    assert torch.equal(found, attention(query, key, value, score=score, mask=mask))


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("queries", [1, 3])
def test_steps_over_the_same_keys_are_planned_once(planned: list[bool], padded: bool, queries: int) -> None:
    attention, kept, vector, (key, value) = Attention(), PlannedAttention(), torch.randn(WIDTH), memory()
    lengths = torch.randint(0, KEYS + 1, (BATCH,))
    for _ in range(4):
        compare(kept, attention, Additive(vector), Lengths(lengths) if padded else None, key, value, queries)
    assert planned == [True]


def test_what_differs_is_planned_again(planned: list[bool]) -> None:
    attention, kept, (key, value) = Attention(), PlannedAttention(), memory()
    vector, lengths = nn.Parameter(torch.randn(WIDTH)), torch.full((BATCH,), 3)
    given = {"key": key, "value": value, "queries": 1, "mask": None}
    changes: list[dict[str, Any]] = [
        {},
        {"key": key.clone()},
        {"value": value.clone()},
        {"queries": 2},
        {"mask": Lengths(lengths)},
        {"mask": Lengths(lengths + 1)},
        dict(zip(("key", "value"), memory(48), strict=True)),
    ]
    for change in changes:
        compare(kept, attention, Additive(vector), **{**given, **change})
    assert planned == [True] * len(changes)


def test_a_score_that_changed_is_that_of_now(planned: list[bool]) -> None:
    attention, kept, (key, value) = Attention(), PlannedAttention(), memory()
    vector = nn.Parameter(torch.randn(WIDTH))
    compare(kept, attention, Additive(vector), None, key, value, 1)
    vector.mul_(2)
    compare(kept, attention, Additive(vector), None, key, value, 1)
    vector.data = torch.randn(WIDTH)
    compare(kept, attention, Additive(vector), None, key, value, 1)
    compare(kept, attention, Additive(nn.Parameter(torch.randn(WIDTH))), None, key, value, 1)
    assert planned == [True] * 4


def test_scores_without_a_loop_run_the_module(planned: list[bool]) -> None:
    attention, kept, (key, value), score = Attention(), PlannedAttention(), memory(), ScaledDot()
    for _ in range(3):
        compare(kept, attention, score, None, key, value, 1)
    assert planned == [False]


def test_a_hook_sees_every_step(planned: list[bool]) -> None:
    attention, kept, (key, value), seen = Attention(), PlannedAttention(), memory(), []
    score, query = Additive(torch.randn(WIDTH)), torch.randn(BATCH, 1, WIDTH)
    expected = kept.attend(attention, score, None, key, value, query)
    hook = attention.register_forward_hook(lambda *_: seen.append(1))
    assert torch.equal(kept.attend(attention, score, None, key, value, query), expected)
    hook.remove()
    assert torch.equal(kept.attend(attention, score, None, key, value, query), expected)
    assert (planned, seen) == ([True], [1])


@pytest.mark.parametrize("options", [{"backend": "reference"}, {"dropout": 0.5}], ids=str)
def test_a_module_with_settings_of_its_own_runs_itself(planned: list[bool], options: dict[str, Any]) -> None:
    attention, kept, (key, value) = Attention(**options).eval(), PlannedAttention(), memory()
    for _ in range(3):
        compare(kept, attention, Additive(torch.randn(WIDTH)), None, key, value, 1)
    assert not planned
