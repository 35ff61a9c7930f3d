"""N-grams that are not repeated, judged by transformers; prefixes, judged by searches in plain Python."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.decode.scripts import BOS, EOS, SIZE, Script, batch, sources
from torch import Tensor

from qkv.decode.beam import Beam, Ranking, beam
from qkv.decode.constraints import Constraining, repeating
from qkv.decode.ensemble import Ensemble
from qkv.decode.forced import forced
from qkv.decode.greedy import greedy
from qkv.decode.protocol import Stepper
from qkv.decode.sampling import Sampling, row_keys, sample
from qkv.linalg.session import DecodingSession

SINK = 0
few = st.lists(st.lists(st.integers(0, 3), min_size=6, max_size=6), min_size=1, max_size=4)


@given(few, st.integers(1, 4))
def test_repeating_tokens_are_those_of_transformers(rows: list[list[int]], ngram: int) -> None:
    processors = pytest.importorskip("transformers.generation.logits_process")
    ids = torch.tensor(rows)
    expected = processors.NoRepeatNGramLogitsProcessor(ngram)(ids, torch.zeros(len(rows), 5))
    assert torch.equal(repeating(ids, ngram, 5), expected == -torch.inf)


def test_rows_that_begin_later_have_no_ngrams_before() -> None:
    row = torch.tensor([[-1, -1, -1, 2, 3, 2]])
    assert repeating(row, 2, 5).nonzero().tolist() == [[0, 3]]
    assert torch.equal(repeating(row, 2, 5), repeating(row[:, 3:], 2, 5))
    assert not repeating(row[:, :3], 2, 5).any()


def repeats(ids: tuple[int, ...], ngram: int) -> bool:
    grams = [ids[at : at + ngram] for at in range(len(ids) - ngram + 1)]
    return len(grams) != len(set(grams))


def by_hand(model: Script, total: int, limit: int, ngram: int, given: list[int], width: int) -> list[tuple[int, ...]]:
    """Every step of a beam, of the sequences without repetition that begin with a prefix; log P alone ranks."""
    beginnings, ended = [((), 0.0)], []
    for time in range(limit):
        options = []
        for ids, score in beginnings:
            gains = model._row(total, ids[-1] if ids else BOS, time).log_softmax(0).tolist()
            options += [((*ids, token), score + gains[token]) for token in range(SIZE) if token != SINK]
        options = [one for one in options if time >= len(given) or one[0][-1] == given[time]]
        options = sorted((one for one in options if not repeats(one[0], ngram)), key=lambda one: -one[1])
        ended += [(ids[:-1], score) for ids, score in options[:width] if ids[-1] == EOS]
        beginnings = [one for one in options if one[0][-1] != EOS][:width]
    return [(ids, score, True) for ids, score in sorted(ended, key=lambda one: -one[1])] + [
        (ids, score, False) for ids, score in sorted(beginnings, key=lambda one: -one[1])
    ]


@settings(max_examples=15)
@given(sources, st.integers(0, 50), st.integers(1, 3), st.sampled_from([1, 2, 4]), st.data())
def test_a_beam_keeps_to_them(rows: list[list[int]], seed: int, ngram: int, width: int, data: st.DataObject) -> None:
    prefixes = [data.draw(st.lists(st.integers(3, SIZE - 1), max_size=3, unique=True)) for _ in rows]
    padded = torch.nn.utils.rnn.pad_sequence([torch.tensor(ids, dtype=torch.int64) for ids in prefixes], True, -1.0)
    model = Constraining(Script(seed, []), SINK, ngram, forced=padded)
    options = {"bos": BOS, "eos": EOS, "limit": 5, "never": [SINK]}
    found = beam(model, *batch(rows), search=Beam(width, 1, Ranking(0.0)), **options)
    first = greedy(model, *batch(rows), **options)
    for number, (row, begun) in enumerate(zip(rows, prefixes, strict=True)):
        ids, score, finished = by_hand(Script(seed, []), sum(row), 5, ngram, begun, width)[0]
        (best,) = found[number]
        assert (best.ids, best.finished) == (ids, finished)
        assert best.score == pytest.approx(score)
        ids, score, finished = by_hand(Script(seed, []), sum(row), 5, ngram, begun, 1)[0]
        assert (first[number].ids, first[number].finished) == (ids, finished)
        # What was written has the log-probability that the model alone gives it.
        written = [*ids, EOS] if finished else list(ids)
        (judged,) = forced(Script(seed, []), *batch([row]), [written], bos=BOS, eos=EOS)
        assert first[number].score == pytest.approx(judged.score)


@given(sources, st.integers(0, 50), st.integers(1, 3))
def test_samples_keep_to_them(rows: list[list[int]], seed: int, ngram: int) -> None:
    model = Constraining(Script(seed, []), SINK, ngram, forced=torch.full((len(rows), 1), 7))
    options = {"bos": BOS, "eos": EOS, "limit": 9, "never": [SINK], "keys": torch.tensor(row_keys(rows))}
    for one in sample(model, *batch(rows), sampling=Sampling(temperature=0.7), **options):
        assert one.ids[0] == 7
        assert SINK not in one.ids
        assert not repeats(one.ids, ngram)
        assert math.isfinite(one.score)


def test_a_vocabulary_without_a_spare_id_gets_one_more() -> None:
    rows = [[4, 5], [6]]
    model = Constraining(Script(3, []), SIZE, 2)
    longer = greedy(model, *batch(rows), bos=BOS, eos=EOS, limit=30, never=[SIZE])
    for row, one in zip(rows, longer, strict=True):
        assert not repeats(one.ids, 2)
        written = [*one.ids, EOS] if one.finished else list(one.ids)
        (judged,) = forced(Script(3, []), *batch([row]), [written], bos=BOS, eos=EOS)
        assert one.score == pytest.approx(judged.score)


def test_ngrams_of_a_prompt_count() -> None:
    """The whole text of prompt and continuation, as of a language model, has no n-gram twice."""
    prompts = [[3, 4, 5, 3], [6, 7]]
    model = Constraining(Script(1, []), SINK, 2, prompted=True)
    found = greedy(model, *batch(prompts), bos=BOS, eos=EOS, limit=40, never=[SINK])
    for prompt, one in zip(prompts, found, strict=True):
        assert not repeats((*prompt, *one.ids), 2)
    unbanned = greedy(Script(1, []), *batch(prompts), bos=BOS, eos=EOS, limit=40, never=[SINK])
    assert any(repeats((*prompt, *one.ids), 2) for prompt, one in zip(prompts, unbanned, strict=True))


@pytest.mark.parametrize("wrap", [lambda model: Constraining(model, sink=0, ngram=2), lambda model: Ensemble((model,))])
def test_a_session_reaches_the_model_that_is_wrapped(wrap: Callable[[Stepper[Any]], Stepper[Any]]) -> None:
    sessions: list[DecodingSession | None] = []

    class Watched(Script):
        def start(self, source: Tensor, lengths: Tensor, session: DecodingSession | None = None) -> tuple[Tensor, int]:
            sessions.append(session)
            return super().start(source, lengths, session)

    source, lengths = torch.tensor([[5, 6]]), torch.tensor([2])
    with DecodingSession() as session:
        greedy(wrap(Watched(1, [])), source, lengths, bos=BOS, eos=EOS, limit=2, session=session)
    assert sessions == [session]
