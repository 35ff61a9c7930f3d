"""Models of opposite directions: candidates of each are scored by both."""

import pytest
import torch
from tests.models.test_translators import BOS, EOS, KINDS, batch, made

from qkv.decode.agreement import Agreement, reversed_hypothesis
from qkv.decode.beam import Beam, Ranking, beam
from qkv.decode.forced import forced
from qkv.decode.protocol import Hypothesis

ROWS = [[3, 4, 5], [7], [8, 9]]
MARKS = {"bos": BOS, "eos": EOS}


def test_a_hypothesis_is_reversed_with_its_score() -> None:
    assert reversed_hypothesis(Hypothesis((3, 4, 5), -2.0, finished=False)) == Hypothesis(
        (5, 4, 3), -2.0, finished=False
    )


@torch.no_grad()
def test_proposals_are_ranked_by_the_mean_of_both_sides() -> None:
    ahead, back = made(KINDS[0], seed=2), made(KINDS[1], seed=3)
    source, lengths = batch(ROWS)
    search = Beam(3, 3, Ranking(0.0))
    sides = [beam(model, source, lengths, **MARKS, limit=5, search=search) for model in (ahead, back)]
    found = Agreement(ahead, back, **MARKS).choose(source, lengths, *sides)
    for row, ranked in enumerate(found):
        expected = {}
        for ids in {*(one.ids for one in sides[0][row]), *(one.ids[::-1] for one in sides[1][row])}:
            given = source[row : row + 1], lengths[row : row + 1]
            (ours,) = forced(ahead, *given, [[*ids, EOS]], **MARKS)
            (theirs,) = forced(back, *given, [[*ids[::-1], EOS]], **MARKS)
            expected[ids] = (ours.score + theirs.score) / 2
        assert {one.ids: pytest.approx(one.score, abs=1e-10) for one in ranked} == expected
        assert [one.score for one in ranked] == sorted((one.score for one in ranked), reverse=True)
        assert all(one.ranked == one.score for one in ranked)


@torch.no_grad()
def test_a_proposal_of_both_sides_is_one_and_finished_if_one_of_them_ended_it() -> None:
    model = made(KINDS[0])
    ahead, back = [[Hypothesis((4, 5), -1.0, finished=False)]], [[Hypothesis((5, 4), -1.0), Hypothesis((6,), -3.0)]]
    (found,) = Agreement(model, model, **MARKS).choose(*batch([[3]]), ahead, back)
    assert sorted(one.ids for one in found) == [(4, 5), (6,)]
    assert all(one.finished for one in found)
