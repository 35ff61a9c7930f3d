"""Excluded ids are never written, whatever the model's scores, and the scores stay the model's."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.decode.scripts import BOS, EOS, SIZE, Script, batch, sources
from torch import Tensor

from qkv.decode.beam import Beam, beam
from qkv.decode.ensemble import Ensemble
from qkv.decode.forced import forced
from qkv.decode.greedy import greedy
from qkv.decode.likeliest import likeliest
from qkv.decode.protocol import Hypothesis
from qkv.decode.sampling import Sampling, row_keys, sample
from qkv.errors import ConfigError, DtypeError, ShapeError

PAD = 0
MARKS: dict[str, Any] = {"bos": BOS, "eos": EOS, "limit": 6}
barred = st.sets(st.sampled_from([n for n in range(SIZE) if n != EOS]), max_size=SIZE - 1)


def drawing(sampling: Sampling) -> Callable[..., list[Hypothesis]]:
    def draw(model: Any, source: Tensor, lengths: Tensor, **options: Any) -> list[Hypothesis]:
        keys = torch.tensor(row_keys(source.tolist()))
        return sample(model, source, lengths, sampling=sampling, keys=keys, **options)

    return draw


def searching(search: Beam) -> Callable[..., list[Hypothesis]]:
    def run(model: Any, source: Tensor, lengths: Tensor, **options: Any) -> list[Hypothesis]:
        return [one for found in beam(model, source, lengths, search=search, **options) for one in found]

    return run


WAYS: dict[str, Callable[..., list[Hypothesis]]] = {
    "greedy": greedy,
    "beam of one": searching(Beam(1)),
    "beam": searching(Beam(4, 4)),
    "beam wider than the vocabulary": searching(Beam(40, 40)),
    "drawn": drawing(Sampling()),
    "drawn hot": drawing(Sampling(temperature=9.0, seed=1)),
    "drawn cold": drawing(Sampling(temperature=0.0)),
    "drawn of the likeliest": drawing(Sampling(top_k=2)),
    "drawn of the nucleus": drawing(Sampling(top_p=0.5)),
}


@dataclass(frozen=True)
class Greedy(Script):
    """A model that prefers special tokens: they have all but a ten-thousandth of the probability, or all of it."""

    other: float = -10.0

    def _row(self, total: int, token: int, time: int) -> Tensor:
        scores = super()._row(total, token, time) / 4 + self.other
        scores[[PAD, BOS]] = torch.tensor([3.0, 2.0], dtype=torch.float64)
        return scores


@pytest.mark.parametrize("other", [-10.0, -900.0, -math.inf])
@pytest.mark.parametrize("way", WAYS)
def test_a_model_that_wants_only_marks_writes_none(way: str, other: float) -> None:
    rows = [[3], [4, 5], [6, 7, 8]]
    hungry = Greedy(1, [], other)
    for model in (hungry, Ensemble((hungry, Greedy(2, [], other))), Ensemble((hungry, Script(3, [])))):
        assert {PAD, BOS} & {number for one in greedy(model, *batch(rows), **MARKS) for number in one.ids}
        found = WAYS[way](model, *batch(rows), **MARKS, never=(PAD, BOS))
        assert found
        assert not {PAD, BOS} & {number for one in found for number in one.ids}
        assert not any(math.isnan(one.score) for one in found)


@pytest.mark.parametrize("way", WAYS)
def test_scores_are_those_that_the_model_gives_what_was_chosen(way: str) -> None:
    """Remaining probabilities are not renormalized."""
    rows = [[3], [4, 5], [6, 7, 8]]
    model, never = Greedy(1, [], -10.0), (PAD, BOS, 5)
    source, lengths = batch(rows)
    found = WAYS[way](model, source, lengths, **MARKS, never=never)
    each = len(found) // len(rows)
    repeated = source.repeat_interleave(each, 0), lengths.repeat_interleave(each)
    targets = [[*one.ids, EOS] if one.finished else one.ids for one in found]
    scored = forced(model, *repeated, targets, bos=BOS, eos=EOS)
    for one, again in zip(found, scored, strict=True):
        assert one.log_probabilities == pytest.approx(again.log_probabilities, abs=1e-12)
        assert not {*never} & {*one.ids}


@given(sources, st.integers(0, 50), st.integers(1, 6), barred)
def test_greedy_takes_the_likeliest_of_the_others(
    rows: list[list[int]], seed: int, limit: int, never: set[int]
) -> None:
    model = Script(seed, [])
    found = greedy(model, *batch(rows), bos=BOS, eos=EOS, limit=limit, never=list(never))
    for row, one in zip(rows, found, strict=True):
        ids, token = [], BOS
        for time in range(limit):
            chances = model._row(sum(row), token, time).tolist()
            token = max((number for number in range(SIZE) if number not in never), key=chances.__getitem__)
            ids += [token] if token != EOS else []
            if token == EOS:
                break
        assert list(one.ids) == ids


@settings(max_examples=40)
@given(
    st.integers(1, 700),
    st.integers(1, 6),
    st.integers(0, 130),
    st.integers(0, 99),
    st.sets(st.integers(0, 90)),
    st.data(),
)
def test_the_likeliest_of_the_others_are_those_of_a_sort(
    size: int, count: int, rows: int, seed: int, never: set[int], data: st.DataObject
) -> None:
    never -= {data.draw(st.integers(0, size - 1))}
    scores = torch.randn(rows, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    tokens, gains = likeliest(scores, count, tuple(never))
    others = [number for number in range(size) if number not in never]
    expected = scores[:, others].argsort(-1, descending=True)[:, :count]
    assert torch.equal(tokens, torch.tensor(others)[expected])
    torch.testing.assert_close(gains, scores.log_softmax(-1).gather(1, tokens))


@settings(max_examples=40)
@given(st.lists(st.integers(0, 2), min_size=1, max_size=400), st.sets(st.integers(0, 90)), st.data())
def test_of_equal_others_the_lowest_id_is_first(scores: list[int], never: set[int], data: st.DataObject) -> None:
    never -= {data.draw(st.integers(0, len(scores) - 1))}
    others = [number for number in range(len(scores)) if number not in never]
    expected = max(others, key=lambda number: scores[number])
    logits = torch.tensor([scores], dtype=torch.float32)
    assert int(likeliest(logits, 1, tuple(never))[0]) == expected
    assert Sampling(temperature=0).pick(logits, torch.tensor([7]), 0, tuple(never))[0].tolist() == [expected]


def test_what_may_be_drawn_comes_as_often_as_its_share_says() -> None:
    logits, draws, never = torch.tensor([4.0, 3.0, 0.3, -1.0, 2.0, 0.0]), 8000, (0, 1, 5)
    for sampling in (Sampling(), Sampling(temperature=2.0), Sampling(top_k=2), Sampling(top_p=0.8)):
        tokens, gains = sampling.pick(logits.expand(draws, -1), torch.arange(draws), 0, never)
        alone = sampling.filtered(logits[None, [2, 3, 4]])[0].softmax(0)
        counts = torch.bincount(tokens, minlength=6)
        assert counts[list(never)].tolist() == [0, 0, 0]
        spread = (alone * (1 - alone) * draws).sqrt()
        assert bool(((counts[[2, 3, 4]] - alone * draws).abs() <= 4 * spread).all())
        torch.testing.assert_close(gains, logits.log_softmax(0)[tokens])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("never", [(EOS,), (PAD, EOS)])
def test_the_end_may_always_be_written(way: str, never: Sequence[int]) -> None:
    with pytest.raises(ConfigError, match="never: expected ids from 0 on without the end token 2; got"):
        WAYS[way](Script(0, []), *batch([[3]]), **MARKS, never=never)


LOGITS = torch.tensor([[0.1, 0.6, 0.3], [0.5, 0.2, 0.4]])
KEYS = torch.tensor([3, 4])
WITHOUT: dict[str, Callable[[Any], Any]] = {
    "filtered": lambda never: Sampling().filtered(LOGITS, never),
    "drawn": lambda never: Sampling().pick(LOGITS, KEYS, 0, never),
    "drawn cold": lambda never: Sampling(temperature=0).pick(LOGITS, KEYS, 0, never),
    "likeliest": lambda never: likeliest(LOGITS, 2, never),
    "greedy": lambda never: greedy(Script(0, []), *batch([[3]]), **MARKS, never=never),
    "beam": lambda never: beam(Script(0, []), *batch([[3]]), **MARKS, search=Beam(2), never=never),
}


@pytest.mark.parametrize("way", WITHOUT)
@pytest.mark.parametrize("never", [[-1], [99, -1], [2.5], [True], ["a"], "ab", 3, torch.tensor([[0]])])
def test_what_is_no_id_is_named(way: str, never: Any) -> None:
    with pytest.raises(ConfigError) as raised:
        WITHOUT[way](never)
    assert raised.value.argument.startswith("never")


@pytest.mark.parametrize("way", ["filtered", "drawn", "drawn cold", "likeliest"])
@pytest.mark.parametrize("never", [[99], (0, 3), torch.tensor([0, 9])])
def test_ids_past_the_vocabulary_change_nothing(way: str, never: Any) -> None:
    kept = [int(number) for number in never if number < 3]
    torch.testing.assert_close(WITHOUT[way](never), WITHOUT[way](kept), rtol=0, atol=0)


@pytest.mark.parametrize("way", ["drawn", "drawn cold", "likeliest"])
def test_one_token_must_remain(way: str) -> None:
    with pytest.raises(ConfigError, match="never: expected not all of 3 tokens"):
        WITHOUT[way]([0, 1, 2])


@pytest.mark.parametrize("count", [0, -1, 2.5, True])
def test_counts_are_from_one_on(count: Any) -> None:
    with pytest.raises(ConfigError, match="count"):
        likeliest(LOGITS, count)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_keys_are_one_whole_number_for_each_row(temperature: float) -> None:
    sampling, logits = Sampling(temperature=temperature), torch.zeros(2, 500)
    drawn = sampling.pick(logits, KEYS, 0)[0]
    assert torch.equal(sampling.pick(logits, KEYS.int(), 0)[0], drawn)
    for keys in (KEYS[:1], KEYS[:, None], torch.tensor([1, 2, 3])):
        with pytest.raises(ShapeError, match="keys"):
            sampling.pick(logits, keys, 0)
    for keys in (KEYS.double(), KEYS > 3):
        with pytest.raises(DtypeError, match="keys"):
            sampling.pick(logits, keys, 0)


def test_keys_of_rows_depend_on_the_numbers_alone() -> None:
    keys = row_keys([[5, 6], [7]])
    assert row_keys([torch.tensor([5, 6]), np.array([7], np.int32)]) == keys
    assert row_keys([(5, np.int64(6)), torch.tensor([7], dtype=torch.uint8)]) == keys


@pytest.mark.parametrize("sources", [3, [3], [2.5], [[2.5]], ["ab"], "ab", [[True]], [[1], None], [[[1]]]])
def test_rows_of_something_else_have_no_keys(sources: Any) -> None:
    with pytest.raises(ConfigError) as raised:
        row_keys(sources)
    assert raised.value.argument.startswith("sources")


@pytest.mark.parametrize("number", [2.5, "a", True, None, [1]])
def test_draws_are_numbered(number: Any) -> None:
    with pytest.raises(ConfigError, match="sample"):
        row_keys([[1]], number)
