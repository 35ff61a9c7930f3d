"""Rows that share a source give the same results as rows with their own copy."""

from typing import Any

import pytest
import torch
from tests.models.test_translators import BOS, EOS, KINDS, batch, every, made
from tests.pairs import in_turn

from qkv.decode.beam import Beam, beam
from qkv.decode.protocol import BeamStepper


class Repeating:
    """A model that copies the source for each hypothesis, because it cannot fork."""

    def __init__(self, model: Any) -> None:
        for name in ("start", "step", "select"):
            setattr(self, name, getattr(model, name))


@pytest.mark.parametrize("kind", in_turn(KINDS), ids=lambda kind: "-".join([kind[0], *map(str, kind[1].values())]))
def test_a_beam_over_shared_sources_is_a_beam_over_repeated_ones(kind: tuple[str, dict[str, Any]]) -> None:
    model = made(kind)
    assert isinstance(model, BeamStepper)
    options: dict[str, Any] = {"bos": BOS, "eos": EOS, "limit": 8, "search": Beam(4, 4)}
    for rows in ([[3, 4, 5, 6], [7], [8, 9], [3, 3, 3]], [[3, 4], [5, 6]], [[3, 4], [], [5]]):
        shared = beam(model, *batch(rows), **options)
        repeating: Any = Repeating(model)
        repeated = beam(repeating, *batch(rows), **options)
        for ours, theirs in zip(shared, repeated, strict=True):
            assert [one.ids for one in ours] == [one.ids for one in theirs]
            assert [one.score for one in ours] == pytest.approx([one.score for one in theirs], abs=1e-10)


@every
@torch.no_grad()
def test_two_futures_of_a_forked_state_do_not_meet(kind: tuple[str, dict[str, Any]]) -> None:
    model: Any = made(kind)
    _, state = model.step(torch.full((3,), BOS), model.start(*batch([[3, 4], [7], [8, 9]])))
    forked = model.fork(state, torch.tensor([2, 0]), 2)
    tokens = torch.tensor([5, 6, 7, 8])
    expected, _ = model.step(tokens, forked)
    model.step(torch.tensor([4, 4, 4, 4]), forked)
    model.step(tokens[:2], model.regroup(forked, torch.tensor([3, 3])))
    again, _ = model.step(tokens, forked)
    assert torch.equal(again, expected)
    plain, _ = model.step(tokens, model.select(state, torch.tensor([2, 2, 0, 0])))
    torch.testing.assert_close(expected, plain, rtol=1e-10, atol=1e-12)
