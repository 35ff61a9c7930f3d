"""Ended hypotheses are never passed to the model again, and a row of −inf ends only the hypothesis it belongs to."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.decode.scripts import BOS, EOS, SIZE, Script, batch, sources
from tests.decode.test_beam import GARDEN, Table
from torch import Tensor

from qkv.decode import likeliest as room
from qkv.decode.beam import Beam, Ranking, beam
from qkv.decode.ensemble import Ensemble
from qkv.decode.forced import forced
from qkv.decode.greedy import greedy
from qkv.decode.likeliest import likeliest
from qkv.decode.protocol import Hypothesis
from qkv.decode.sampling import Sampling, row_keys, sample
from qkv.errors import QkvError

PLAIN = Ranking(0.0)


@dataclass(frozen=True)
class Strict(Script):
    """Refuses the end token, and gives few tokens any probability; nothing follows two tokens whose sum is 5."""

    def step(self, tokens: Tensor, state: Any) -> Any:
        assert EOS not in tokens.tolist(), "a finished hypothesis is given to the model"
        return super().step(tokens, state)

    def _row(self, total: int, token: int, time: int) -> Tensor:
        if total == 5 and time == 2:
            return torch.full((SIZE,), -math.inf, dtype=torch.float64)
        scores = super()._row(total, token, time)
        scores[token % 3 + 3 :: 2] = -math.inf
        scores[EOS] -= 3.0
        return scores


def searching(search: Beam) -> Callable[..., list[Hypothesis]]:
    def run(model: Any, source: Tensor, lengths: Tensor, **options: Any) -> list[Hypothesis]:
        return [found[0] for found in beam(model, source, lengths, search=search, **options)]

    return run


def drawing(sampling: Sampling) -> Callable[..., list[Hypothesis]]:
    def draw(model: Any, source: Tensor, lengths: Tensor, **options: Any) -> list[Hypothesis]:
        # Compare the first ids only: padding differs between a batch and one of its rows.
        keys = torch.tensor(row_keys([row[:1] for row in source.tolist()]))
        return sample(model, source, lengths, sampling=sampling, keys=keys, **options)

    return draw


WAYS: dict[str, Callable[..., list[Hypothesis]]] = {
    "greedy": greedy,
    "beam of one": searching(Beam(1)),
    "beam": searching(Beam(3)),
    "beam, filled": searching(Beam(3, stop="filled")),
    "beam wider than the vocabulary": searching(Beam(20)),
    "drawn": drawing(Sampling(seed=3)),
    "drawn of the likeliest": drawing(Sampling(top_k=3, seed=3)),
    "drawn of the nucleus": drawing(Sampling(top_p=0.8, seed=3)),
    "drawn cold": drawing(Sampling(temperature=0.0)),
}
by_way = pytest.mark.parametrize("way", WAYS)
MARKS: dict[str, Any] = {"bos": BOS, "eos": EOS, "limit": 5}


@by_way
@settings(max_examples=10)
@given(rows=sources, seed=st.integers(0, 50))
def test_the_model_never_sees_what_has_ended(way: str, rows: list[list[int]], seed: int) -> None:
    WAYS[way](Strict(seed, []), *batch(rows), **MARKS)


def test_a_model_that_breaks_on_what_cannot_be_is_not_asked_for_it() -> None:
    """One of three rows of this beam has no hypothesis after the first step, and contains an impossible token."""
    impossible = [(token,) for token in (0, 1, 2)] + [(first, token) for first in (3, 4) for token in (0, 1, 2)]
    model = Table(0, [], GARDEN | dict.fromkeys(impossible, [math.nan] * 5))
    found = beam(model, *batch([[3]]), bos=BOS, eos=EOS, limit=6, search=Beam(3, 3, PLAIN))[0]
    assert [one.ids for one in found] == [(4,), (3,), (3, 3)]


@by_way
def test_a_row_of_minus_infinity_ends_that_row_alone(way: str) -> None:
    rows = [[3], [5], [4], [7]]
    run = WAYS[way]
    together = run(Strict(1, []), *batch(rows), **MARKS)
    for row, found in zip(rows, together, strict=True):
        (alone,) = run(Strict(1, []), *batch([row]), **MARKS)
        assert found.ids == alone.ids
        assert found.log_probabilities == pytest.approx(alone.log_probabilities, abs=1e-12)
        assert math.isfinite(found.score)
    dead = together[1]
    # At most two tokens: hypotheses that ended earlier are complete; the one with the row of −inf is not.
    assert len(dead.log_probabilities) <= 2
    assert dead.finished == (len(dead.log_probabilities) == len(dead.ids) + 1)
    assert any(len(one.log_probabilities) > 2 for one in together)


@by_way
def test_where_nothing_can_come_first_nothing_is_written(way: str) -> None:
    class Silent(Script):
        def _row(self, total: int, token: int, time: int) -> Tensor:
            return torch.full((SIZE,), -math.inf) if total == 5 else super()._row(total, token, time)

    found = WAYS[way](Silent(0, []), *batch([[5], [3]]), **MARKS)
    assert (found[0].ids, found[0].score, found[0].finished) == ((), 0.0, False)
    assert found[1].log_probabilities


@by_way
def test_a_row_whose_only_possible_tokens_are_barred_ends_there(way: str) -> None:
    class Marks(Script):
        def _row(self, total: int, token: int, time: int) -> Tensor:
            scores = torch.full((SIZE,), -math.inf)
            scores[4 if time < 2 else 0] = 0.0
            return scores

    (found,) = WAYS[way](Marks(0, []), *batch([[5]]), **MARKS, never=(0, 1))
    assert (found.ids, found.score, found.finished) == ((4, 4), 0.0, False)


def test_beginnings_that_nothing_can_follow_come_after_what_ended_with_their_scores() -> None:
    nothing = [0.0] * 5
    chances = {
        (): [0.0, 0.0, 0.1, 0.6, 0.3],
        (3,): nothing,
        (4,): [0.0, 0.0, 0.2, 0.0, 0.8],
        (4, 4): nothing,
    }
    model = Table(0, [], chances)
    found = beam(model, *batch([[3]]), bos=BOS, eos=EOS, limit=6, search=Beam(4, 4, PLAIN))[0]
    assert [(one.ids, one.finished) for one in found] == [((), True), ((4,), True), ((3,), False), ((4, 4), False)]
    assert [math.exp(one.score) for one in found] == pytest.approx([0.1, 0.06, 0.6, 0.24])
    assert [one.ranked for one in found] == pytest.approx([one.score for one in found])


def test_dead_ends_and_what_the_limit_cuts_off_are_ranked_together() -> None:
    chances = {(): [0.0, 0.0, 0.0, 0.4, 0.6], (3,): [0.0] * 5, (4,): [0.0, 0.0, 0.0, 0.9, 0.1]}
    found = beam(Table(0, [], chances), *batch([[3]]), bos=BOS, eos=EOS, limit=2, search=Beam(3, 3, PLAIN))[0]
    assert [(one.ids, one.finished) for one in found] == [((4, 3), False), ((3,), False), ((4, 4), False)]


@by_way
@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_what_is_no_number_is_an_error_beside_a_row_of_minus_infinity(way: str, broken: float) -> None:
    class Broken(Script):
        def _row(self, total: int, token: int, time: int) -> Tensor:
            scores = torch.full((SIZE,), -math.inf if time and total == 3 else 0.0)
            scores[EOS] = -math.inf
            scores[0] = broken if time == 1 and total == 5 else scores[0]
            return scores

    with pytest.raises(QkvError, match="NaN for row 1 at step 1"):
        WAYS[way](Broken(0, []), *batch([[3], [5], [4]]), **MARKS, never=(0,))


def test_a_row_that_is_no_numbers_is_an_error_where_only_the_end_may_be_chosen() -> None:
    class Broken(Script):
        def _row(self, total: int, token: int, time: int) -> Tensor:
            return torch.full((SIZE,), math.nan)

    never = [number for number in range(SIZE) if number != EOS]
    with pytest.raises(QkvError, match="NaN for row 0 at step 0"):
        beam(Broken(0, []), *batch([[3]]), bos=BOS, eos=EOS, limit=3, never=never)


@pytest.mark.parametrize("way", ["compiled", "PyTorch"])
@pytest.mark.parametrize("count", [1, 3])
def test_a_row_of_minus_infinity_has_no_probability(way: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "PyTorch":
        monkeypatch.setattr(room, "_compiled", lambda: None)
    scores = torch.zeros(3, 300)
    scores[1], scores[2, 7] = -math.inf, math.nan
    gains = likeliest(scores, count)[1]
    assert gains[0].isfinite().all()
    assert (gains[1] == -math.inf).all()
    assert gains[2].isnan().all()


def test_a_target_after_which_nothing_follows_is_impossible() -> None:
    found, other = forced(Strict(1, []), *batch([[5], [3]]), [[3, 3, 4], [4]], bos=BOS, eos=EOS)
    assert found.log_probabilities[2] == found.score == -math.inf
    assert len(other.log_probabilities) == 1


def test_of_several_models_one_without_an_answer_leaves_it_to_the_others_or_vetoes_all() -> None:
    class Silent(Script):
        def _row(self, total: int, token: int, time: int) -> Tensor:
            return torch.full((SIZE,), -math.inf)

    own = Script(1, [])
    for rows in ([[3]], [[3], [4, 6]]):
        rescued = greedy(Ensemble((own, Silent(0, []))), *batch(rows), **MARKS)
        assert [one.ids for one in rescued] == [one.ids for one in greedy(own, *batch(rows), **MARKS)]
        vetoed = greedy(Ensemble((own, Silent(0, [])), "log_probability"), *batch(rows), **MARKS)
        assert [(one.ids, one.score, one.finished) for one in vetoed] == [((), 0.0, False)] * len(rows)
