"""Decoding over scripted models with known probabilities."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.decode.scripts import BOS, EOS, SIZE, Script, batch, sources
from torch import Tensor

from qkv.decode.ensemble import Ensemble
from qkv.decode.forced import forced
from qkv.decode.greedy import greedy
from qkv.errors import ConfigError, QkvError, ShapeError


def by_hand(model: Script, total: int, limit: int) -> tuple[list[int], float]:
    ids, score, token = [], 0.0, BOS
    for time in range(limit):
        logits = model._row(total, token, time).log_softmax(0)
        token = int(logits.argmax())
        score += float(logits[token])
        if token == EOS:
            break
        ids.append(token)
    return ids, score


@given(sources, st.integers(0, 50), st.integers(0, 9))
def test_each_row_is_what_it_would_be_alone(rows: list[list[int]], seed: int, limit: int) -> None:
    model = Script(seed, [])
    found = greedy(model, *batch(rows), bos=BOS, eos=EOS, limit=limit)
    for row, one in zip(rows, found, strict=True):
        ids, score = by_hand(model, sum(row), limit)
        assert list(one.ids) == ids
        assert one.score == pytest.approx(score, abs=1e-12)
        assert sum(one.log_probabilities) == one.score
        assert one.finished == (len(one.log_probabilities) == len(one.ids) + 1)


@given(sources, st.integers(0, 50))
def test_a_row_may_have_its_own_limit(rows: list[list[int]], seed: int) -> None:
    limits = torch.arange(len(rows))
    found = greedy(Script(seed, []), *batch(rows, fill=9), bos=BOS, eos=EOS, limit=limits)
    for row, limit, one in zip(rows, limits.tolist(), found, strict=True):
        assert list(one.ids) == by_hand(Script(seed, []), sum(row), limit)[0]


def test_finished_rows_leave_the_batch() -> None:
    rows = [[3], [4], [5, 6], [7], [8]]
    model = Script(3, [])
    found = greedy(model, *batch(rows), bos=BOS, eos=EOS, limit=12)
    steps = [len(one.log_probabilities) for one in found]
    assert model.seen == [sum(count > time for count in steps) for time in range(max(steps))]
    assert len(set(steps)) > 1


def test_equal_scores_go_to_the_lowest_id() -> None:
    class Flat(Script):
        def _row(self, total: int, token: int, time: int) -> Tensor:
            return torch.tensor([0.0, 0.0, 0.0, 1.0, 1.0])

    assert greedy(Flat(0, []), *batch([[3]]), bos=BOS, eos=EOS, limit=2)[0].ids == (3, 3)


def test_no_rows_give_no_hypotheses() -> None:
    empty = torch.zeros(0, 4, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
    assert greedy(Script(0, []), *empty, bos=BOS, eos=EOS, limit=3) == []
    assert forced(Script(0, []), *empty, [], bos=BOS, eos=EOS) == []


def test_scores_that_are_not_numbers_are_an_error_that_names_row_and_step() -> None:
    class Broken(Script):
        def _row(self, total: int, token: int, time: int) -> Tensor:
            return torch.full((SIZE,), math.nan if time == 1 and total == 5 else 0.0)

    with pytest.raises(QkvError, match="NaN for row 1 at step 1"):
        greedy(Broken(0, []), *batch([[3], [5], [4]]), bos=BOS, eos=EOS, limit=3)


def test_a_limit_of_the_wrong_shape_is_named() -> None:
    with pytest.raises(ShapeError, match="limit: expected one number, or one for each of 2 rows"):
        greedy(Script(0, []), *batch([[3], [5]]), bos=BOS, eos=EOS, limit=torch.tensor([1, 2, 3]))


@given(sources, st.integers(0, 50), st.integers(1, 9))
def test_forcing_what_greedy_chose_gives_its_scores(rows: list[list[int]], seed: int, limit: int) -> None:
    model = Script(seed, [])
    free = greedy(model, *batch(rows), bos=BOS, eos=EOS, limit=limit)
    targets = [[*one.ids, EOS] if one.finished else one.ids for one in free]
    assert forced(model, *batch(rows), targets, bos=BOS, eos=EOS) == free


@given(sources, st.integers(0, 50), st.data())
def test_forced_scores_are_the_log_probabilities_of_the_targets(
    rows: list[list[int]], seed: int, data: st.DataObject
) -> None:
    model = Script(seed, [])
    target = st.lists(st.integers(3, SIZE - 1), max_size=5)
    targets = [data.draw(target) for _ in rows]
    found = forced(model, *batch(rows), [[*ids, EOS] for ids in targets], bos=BOS, eos=EOS)
    for row, ids, one in zip(rows, targets, found, strict=True):
        assert list(one.ids) == ids
        parts = [
            float(model._row(sum(row), before, time).log_softmax(0)[after])
            for time, (before, after) in enumerate(zip([BOS, *ids], [*ids, EOS], strict=True))
        ]
        assert one.log_probabilities == pytest.approx(parts, abs=1e-12)


def test_a_target_for_each_row_is_required() -> None:
    with pytest.raises(ShapeError, match="targets: expected one for each of 2 rows; got 1"):
        forced(Script(0, []), *batch([[3], [5]]), [[4]], bos=BOS, eos=EOS)


def test_an_ensemble_needs_models_and_a_mean_that_is_known() -> None:
    with pytest.raises(ConfigError, match="models: expected at least one; got none"):
        Ensemble(())
    with pytest.raises(ConfigError, match='mean: expected "probability" or "log_probability"; got "median"'):
        Ensemble((object(),), "median")  # type: ignore[arg-type]
