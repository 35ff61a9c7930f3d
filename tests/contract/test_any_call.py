"""Random calls keep every promise of the contract: thousands of them, from stored seeds, for every backend."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.contract import any_answer
from tests.contract.any_answer import PROMISES, judge
from tests.contract.any_call import ALL_SCORES, ASPECTS, BACKENDS, LAYOUTS, campaign, draw
from tests.contract.mechanisms import EVERYWHERE, NORMALIZERS
from tests.seed import SEED
from torch import Tensor

from qkv.introspect.lazy_map import AttentionMap
from qkv.normalizers.row_state import RowState
from qkv.planner.registry import BACKENDS as REGISTERED

by_backend = pytest.mark.parametrize("backend", BACKENDS)
CASES, MANY = 50, 3000


def check(backend: str, cases: int, seed: int) -> None:
    tally = campaign(backend, cases, seed)
    assert tally.served == cases, f"{backend} served {tally.served} of the calls that were drawn for it"
    assert not tally.wrong, "\n".join([f"{len(tally.wrong)} of {cases}:", *tally.wrong])


@by_backend
def test_any_call_keeps_every_promise(backend: str) -> None:
    check(backend, CASES, seed=2 * SEED)


@pytest.mark.slow
@by_backend
def test_any_of_many_calls_keeps_every_promise(backend: str) -> None:
    check(backend, MANY, seed=2 * SEED + 1)


@pytest.mark.kernels
def test_a_weight_near_the_edge_of_its_kernel_may_be_rounded_like_one() -> None:
    """One weight is not 0: 1 − t = 0.024, where a roundoff of t is 40 of the weight; state and tile round t apart."""
    verdict = judge(draw("rowwise", 77_000_007))
    assert verdict is not None
    assert verdict.wrong == ""


@pytest.mark.kernels
@pytest.mark.parametrize("seed", [1_000_204, 1_001_174])
def test_a_row_of_one_small_weight_gives_its_value_exactly(seed: int) -> None:
    """Weights of 1/7 and 0.07 in float64: as a sum of polynomial terms they are off by tens of roundoffs."""
    verdict = judge(draw("sorted", seed))
    assert verdict is not None
    assert verdict.wrong == ""


@pytest.mark.parametrize("backend", ["sdpa", "auto", "blocked"])
def test_a_gradient_that_is_zero_by_symmetry_is_judged_by_what_cancels(backend: str) -> None:
    """A cosine of queries of width 1: in float32 their gradient cancels to 1.3 roundoffs by luck, in float64 to 80."""
    verdict = judge(replace(draw("sdpa", 8_000_176), backend=backend))
    assert verdict is not None
    assert verdict.wrong == ""


def test_every_backend_of_the_cpu_is_drawn_for() -> None:
    assert set(EVERYWHERE) == set(REGISTERED) - {"flex"}


def test_a_seed_draws_the_same_call() -> None:
    for seed in range(20):
        one, other = draw("auto", seed), draw("auto", seed)
        assert str(one) == str(other)
        assert all(torch.equal(x, other.leaves[name]) for name, x in one.leaves.items())
        assert torch.equal(one.seen.table, other.seen.table)
        assert torch.equal(one.cotangent, other.cotangent)


def test_everything_that_can_be_drawn_is_drawn() -> None:
    calls = [draw("auto", seed) for seed in range(600)]
    assert {call.score.name for call in calls} == {score.name for score in ALL_SCORES}
    assert {call.normalizer.name for call in calls} == {normalizer.name for normalizer in NORMALIZERS}
    assert {call.aspect for call in calls} == set(ASPECTS) == set(PROMISES)
    assert {how for call in calls for how in call.laid.values()} == set(LAYOUTS)
    kinds = Counter(call.dtype for call in calls)
    assert len(kinds) == 4
    assert min(kinds.values()) > 60


class Peaked:
    """A map whose largest weights are too large."""

    def __init__(self, inner: AttentionMap) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __getitem__(self, index: Any) -> Tensor:
        return self.inner[index]

    def peak(self) -> Tensor:
        return self.inner.peak() + 0.1


def raised(state: RowState) -> RowState:
    return replace(state, value=state.value + 1)


BROKEN: dict[str, tuple[str, str, Callable[..., Any]]] = {
    "exact": ("of the limit", "attention", lambda found, query, key, *_: found * 1.01),
    "weights": ("bits", "attention_with_weights", lambda found, *_: (found[0] + 0.1, found[1])),
    "state": ("state is off", "attention_with_state", lambda found, *_: (found[0], raised(found[1]))),
    "merge": ("of the limit", "merge", lambda found, *_: (found[0] * 1.05, found[1])),
    "map": ("peak", "attention_map", lambda found, *_: Peaked(found)),
    "again": ("repeat", "attention", lambda found, *_: found + torch.randn(())),
    "offset": ("offset", "attention", lambda found, query, *_: found + query.storage_offset()),
    # Autograd does not notice changes through `.data`.
    "in place": ("silently", "attention", lambda found, query, *_: found + (query * query.data).sum()),
    "bad": ("reaches", "attention", lambda found, query, key, value: found + 0 * key.sum()),
}
"""For each promise, the message when it is broken, and a function that breaks it."""


@pytest.mark.parametrize("aspect", ASPECTS)
def test_a_broken_promise_is_seen(aspect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of forty calls must fail; a judge that passes them all would pass anything."""
    word, name, spoil = BROKEN[aspect]
    right = getattr(any_answer, name)
    monkeypatch.setattr(any_answer, name, lambda *given, **options: spoil(right(*given, **options), *given))
    verdicts = (judge(draw("reference", seed, aspect)) for seed in range(40))
    assert any(verdict is not None and word in verdict.wrong for verdict in verdicts)
