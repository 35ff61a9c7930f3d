"""Beam search over scripted models with known probabilities, compared with searches in plain Python."""

import itertools
import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.decode.scripts import BOS, EOS, SIZE, Script, batch, sources
from torch import Tensor

from qkv.decode.beam import Beam, Ranking, beam
from qkv.decode.greedy import greedy
from qkv.decode.protocol import Hypothesis
from qkv.errors import ConfigError, QkvError, ShapeError
from qkv.linalg.session import DecodingSession

Found = tuple[tuple[int, ...], float, bool]


def log_probabilities(model: Script, total: int, before: int, time: int) -> list[float]:
    return model._row(total, before, time).log_softmax(0).tolist()


def by_hand(model: Script, total: int, limit: int, search: Beam, never: Collection[int] = ()) -> list[Found]:
    """The definition, for one source, without early stopping: every step of every hypothesis up to the limit."""
    ranking, beginnings, ended = search.ranking, [((), 0.0)], []
    for time in range(limit):
        options: list[tuple[tuple[int, ...], float]] = []
        for ids, score in beginnings:
            gains = log_probabilities(model, total, ids[-1] if ids else BOS, time)
            options += [((*ids, token), score + gain) for token, gain in enumerate(gains) if token not in never]
        options.sort(key=lambda option: -option[1])
        ended += [(ids[:-1], score, True) for ids, score in options[: search.width] if ids[-1] == EOS]
        beginnings = [option for option in options if option[0][-1] != EOS][: search.width]
    cut = [(ids, score, False) for ids, score in beginnings]
    ended.sort(key=lambda one: -ranking.score(one[1], len(one[0]) + 1))
    cut.sort(key=lambda one: -ranking.score(one[1], len(one[0])))
    return (ended + cut)[: search.n_best]


def assert_same(found: list[Hypothesis], expected: list[Found], ranking: Ranking) -> None:
    assert [(one.ids, one.finished) for one in found] == [(ids, finished) for ids, _, finished in expected]
    for one, (ids, score, finished) in zip(found, expected, strict=True):
        assert one.score == pytest.approx(score, abs=1e-9)
        assert sum(one.log_probabilities) == one.score
        assert one.ranked == pytest.approx(ranking.score(score, len(ids) + finished), abs=1e-9)


rankings = st.builds(Ranking, st.sampled_from([0.0, 0.6, 1.0, 2.0]), st.sampled_from(["plain", "wu"]))


@settings(max_examples=12)
@given(sources, st.integers(0, 50), st.integers(1, 6), st.sampled_from([1, 2, 3, 15]), rankings, st.data())
def test_each_source_gets_what_the_definition_says(
    rows: list[list[int]], seed: int, limit: int, width: int, ranking: Ranking, data: st.DataObject
) -> None:
    search = Beam(width, data.draw(st.integers(1, width)), ranking)
    never = data.draw(st.lists(st.integers(3, SIZE - 1) | st.integers(0, 1), max_size=4))
    found = beam(Script(seed, []), *batch(rows, 9), bos=BOS, eos=EOS, limit=limit, search=search, never=never)
    for row, ours in zip(rows, found, strict=True):
        assert_same(ours, by_hand(Script(seed, []), sum(row), limit, search, never), ranking)


@dataclass(frozen=True)
class Small(Script):
    """Four tokens, so that all sequences can be listed."""

    def _row(self, total: int, token: int, time: int) -> Tensor:
        return super()._row(total, token, time)[:4]


def every_sequence(model: Script, limit: int, ranking: Ranking) -> list[Found]:
    listed = []
    for length in range(limit):
        for ids in itertools.product((0, 1, 3), repeat=length):
            walk = zip((BOS, *ids), (*ids, EOS), range(limit), strict=False)
            score = sum(log_probabilities(model, 3, before, time)[after] for before, after, time in walk)
            listed.append((ids, score, True))
    return sorted(listed, key=lambda one: -ranking.score(one[1], len(one[0]) + 1))


@settings(max_examples=6)
@given(st.integers(0, 500), rankings)
def test_a_beam_wide_enough_finds_the_best_of_all_sequences(seed: int, ranking: Ranking) -> None:
    limit, model = 4, Small(seed, [])
    search = Beam(width=4**limit, n_best=12, ranking=ranking)
    (found,) = beam(model, *batch([[3]]), bos=BOS, eos=EOS, limit=limit, search=search)
    assert_same(found, every_sequence(model, limit, ranking)[:12], ranking)


@settings(max_examples=12)
@given(sources, st.integers(0, 50), st.integers(0, 7))
def test_a_beam_of_one_that_stops_when_filled_is_greedy(rows: list[list[int]], seed: int, limit: int) -> None:
    options = {"bos": BOS, "eos": EOS, "limit": limit}
    narrow = beam(Script(seed, []), *batch(rows), search=Beam(1, stop="filled"), **options)
    for (one,), other in zip(narrow, greedy(Script(seed, []), *batch(rows), **options), strict=True):
        assert (one.ids, one.finished) == (other.ids, other.finished)
        assert one.log_probabilities == pytest.approx(other.log_probabilities, abs=1e-12)


@dataclass(frozen=True)
class Table(Script):
    """The next token's probabilities given the prefix; tokens are BOS = 1, EOS = 2 and words from 3 on."""

    chances: dict[tuple[int, ...], list[float]]

    def start(self, source: Tensor, lengths: Tensor, session: DecodingSession | None = None) -> Any:
        return [()] * len(source), None

    def step(self, tokens: Tensor, state: Any) -> Any:
        self.seen.append(len(tokens))
        pasts = [(*past, int(token)) for past, token in zip(state[0], tokens, strict=True)]
        rows = [self.chances.get(past[1:], [0.0, 0.0, 1.0, 0.0, 0.0]) for past in pasts]
        return torch.tensor(rows, dtype=torch.float64).log(), (pasts, None)

    def select(self, state: Any, rows: Tensor) -> Any:
        return [state[0][int(row)] for row in rows], None


def search_table(chances: dict[tuple[int, ...], list[float]], limit: int = 6, **options: Any) -> list[Hypothesis]:
    (found,) = beam(Table(0, [], chances), *batch([[3]]), bos=BOS, eos=EOS, limit=limit, search=Beam(**options))
    return found


GARDEN = {  # greedy takes 3 (0.6), whose continuations are poor; 4 (0.4) surely ends
    (): [0.0, 0.0, 0.0, 0.6, 0.4],
    (3,): [0.0, 0.0, 0.4, 0.35, 0.25],
}
PLAIN = Ranking(0.0)


def test_a_wider_beam_finds_what_greedy_misses() -> None:
    (narrow,) = search_table(GARDEN, width=1, ranking=PLAIN)
    (wide,) = search_table(GARDEN, width=2, ranking=PLAIN)
    assert (narrow.ids, wide.ids) == ((3,), (4,))
    assert math.exp(narrow.score) == pytest.approx(0.24)
    assert math.exp(wide.score) == pytest.approx(0.4)


def test_n_best_come_in_order_with_exact_scores() -> None:
    found = search_table(GARDEN, width=4, n_best=4, ranking=PLAIN)
    assert [one.ids for one in found] == [(4,), (3,), (3, 3), (3, 4)]
    assert [math.exp(one.score) for one in found] == pytest.approx([0.4, 0.24, 0.21, 0.15])


def test_the_search_goes_on_until_as_many_as_asked_for_cannot_be_beaten() -> None:
    # After two steps the best has ended for good, and so has a second one; (3, 3) can still surpass that one.
    chances = {
        (): [0.0, 0.0, 0.5, 0.3, 0.2],
        (3,): [0.0, 0.0, 0.2, 0.8, 0.0],
        (4,): [0.0, 0.0, 0.9, 0.1, 0.0],
    }
    found = search_table(chances, width=3, n_best=2, ranking=PLAIN)
    assert [one.ids for one in found] == [(), (3, 3)]
    assert [math.exp(one.score) for one in found] == pytest.approx([0.5, 0.24])


def test_equal_hypotheses_keep_the_order_in_which_they_finished() -> None:
    # 0.5 at once; 0.5 after one word that surely ends.
    found = search_table({(): [0.0, 0.0, 0.5, 0.5, 0.0]}, width=2, n_best=2, ranking=PLAIN)
    assert [one.ids for one in found] == [(), (3,)]


def test_an_empty_hypothesis_is_one_like_any_other() -> None:
    chances = {(): [0.0, 0.0, 0.7, 0.3, 0.0], (3,): [0.0, 0.0, 0.9, 0.1, 0.0]}
    (found,) = search_table(chances, width=3)
    assert (found.ids, found.finished, len(found.log_probabilities)) == ((), True, 1)
    assert found.ranked == found.score == pytest.approx(math.log(0.7))
    # Its mean per token is worse than that of (3,), counting the end token: log 0.27 / 2.
    chances[()] = [0.0, 0.0, 0.4, 0.6, 0.0]
    assert search_table(chances, width=3, ranking=Ranking(1.0))[0].ids == (3,)
    assert search_table(chances, width=3, ranking=Ranking(0.0))[0].ids == (3,)
    chances[()] = [0.0, 0.0, 0.55, 0.45, 0.0]
    assert search_table(chances, width=3, ranking=Ranking(1.0))[0].ids == (3,)
    assert search_table(chances, width=3, ranking=Ranking(0.0))[0].ids == ()


def test_the_length_penalty_is_the_printed_formula() -> None:
    # Wu et al. 2016, eq. 14: lp(Y) = (5 + |Y|)^α / (5 + 1)^α.
    assert Ranking(0.6, "wu").score(-4.0, 9) == pytest.approx(-4.0 / (14**0.6 / 6**0.6))
    assert Ranking(1.0, "plain").score(-4.0, 8) == -0.5
    assert Ranking(0.0, "wu").score(-4.0, 9) == Ranking(0.0).score(-4.0, 9) == -4.0


def test_a_beam_wider_than_the_vocabulary_lists_all_there_is() -> None:
    found = search_table(GARDEN, width=50, n_best=50, ranking=PLAIN)
    assert [one.ids for one in found] == [(4,), (3,), (3, 3), (3, 4)]


def test_what_cannot_be_is_never_chosen() -> None:
    assert all(0.0 not in map(math.exp, one.log_probabilities) for one in search_table(GARDEN, width=9, n_best=9))


def test_it_stops_once_nothing_better_can_come_and_not_before() -> None:
    # (4,) has 0.4 after two steps. Running hypotheses have 0.36, then at most 0.21: with α = 0 no extension can win.
    model = Table(0, [], GARDEN | {(3, 3): [0.0, 0.0, 0.1, 0.9, 0.0]})
    options: dict[str, Any] = {"bos": BOS, "eos": EOS, "limit": 30}
    beam(model, *batch([[3]]), search=Beam(2, ranking=PLAIN), **options)
    assert len(model.seen) == 2
    # With means a long, likely extension could win: 30 tokens from 0.21 on.
    model = Table(0, [], GARDEN | {(3, *[3] * n): [0.0, 0.0, 0.0, 1.0, 0.0] for n in range(1, 28)})
    (found,) = beam(model, *batch([[3]]), search=Beam(2, ranking=Ranking(1.0)), **options)
    assert len(found[0].ids) == 29
    assert found[0].ranked == pytest.approx(math.log(0.21) / 30)


@settings(max_examples=12)
@given(st.integers(0, 200), rankings)
def test_filled_may_stop_sooner_and_is_never_better(seed: int, ranking: Ranking) -> None:
    options: dict[str, Any] = {"bos": BOS, "eos": EOS, "limit": 8}
    steps, best = [], []
    for stop in ("filled", "proved"):
        model = Script(seed, [])
        (found,) = beam(model, *batch([[3]]), search=Beam(3, ranking=ranking, stop=stop), **options)
        steps.append(len(model.seen))
        best.append(found[0].ranked)
    # Fewer than W end within the limit: both continue up to it.
    assert best[0] <= best[1] + 1e-12


def test_what_is_cut_off_follows_what_ended() -> None:
    chances = {(): [0.0, 0.0, 0.1, 0.9, 0.0], (3,): [0.0, 0.0, 0.0, 0.8, 0.2]}
    found = search_table(chances, limit=2, width=3, n_best=3, ranking=PLAIN)
    assert [(one.ids, one.finished) for one in found] == [((), True), ((3, 3), False), ((3, 4), False)]
    assert math.exp(found[1].score) == pytest.approx(0.72)


def test_no_tokens_and_no_rows_give_nothing() -> None:
    empty = torch.zeros(0, 4, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
    assert beam(Script(0, []), *empty, bos=BOS, eos=EOS, limit=3) == []
    (found,) = beam(Script(0, []), *batch([[3]]), bos=BOS, eos=EOS, limit=0)
    assert [(one.ids, one.score, one.finished) for one in found] == [((), 0.0, False)]


@settings(max_examples=8)
@given(sources, st.integers(0, 50))
def test_a_row_may_have_its_own_limit(rows: list[list[int]], seed: int) -> None:
    limits = torch.arange(len(rows))
    found = beam(Script(seed, []), *batch(rows), bos=BOS, eos=EOS, limit=limits, search=Beam(2))
    for row, limit, (ours, *_) in zip(rows, limits.tolist(), found, strict=True):
        (alone,) = beam(Script(seed, []), *batch([row]), bos=BOS, eos=EOS, limit=limit, search=Beam(2))
        assert ours == alone[0]


def test_sources_that_are_done_leave_the_batch() -> None:
    model, search = Script(3, []), Beam(2, ranking=PLAIN)
    rows = [[3], [4], [5, 6], [7], [8]]
    options: dict[str, Any] = {"bos": BOS, "eos": EOS, "limit": 12, "search": search}
    beam(model, *batch(rows), **options)
    alone = []
    for row in rows:
        one = Script(3, [])
        beam(one, *batch([row]), **options)
        alone.append(len(one.seen))
    # The first step has one hypothesis per source, the others two.
    expected = [sum(count > time for count in alone) * (2 if time else 1) for time in range(max(alone))]
    assert model.seen == expected
    assert len(set(alone)) > 1


@dataclass(frozen=True)
class Attending(Script):
    """Attends to source position i at every step, with a weight that depends on the newest token."""

    def start(self, source: Tensor, lengths: Tensor, session: DecodingSession | None = None) -> Any:
        return *super().start(source, lengths), torch.zeros_like(source, dtype=torch.float64), lengths

    def step(self, tokens: Tensor, state: Any) -> Any:
        logits, (key, time) = super().step(tokens, state[:2])
        positions = torch.arange(state[2].shape[1], dtype=torch.float64)
        shares = ((tokens[:, None] + positions) % 3 + 0.5) * (positions < state[3][:, None])
        return logits, (key, time, shares / shares.sum(1, keepdim=True), state[3])

    def select(self, state: Any, rows: Tensor) -> Any:
        return state[0][rows], state[1], state[2][rows], state[3][rows]


def covered(row: list[int], ids: tuple[int, ...]) -> float:
    sums = [0.0] * len(row)
    for token in (BOS, *ids):
        shares = [(token + place) % 3 + 0.5 for place in range(len(row))]
        sums = [have + share / sum(shares) for have, share in zip(sums, shares, strict=True)]
    return sum(math.log(min(have, 1.0)) for have in sums)


@settings(max_examples=8)
@given(sources, st.integers(0, 50))
def test_the_coverage_penalty_is_the_printed_formula(rows: list[list[int]], seed: int) -> None:
    search = Beam(3, 3, Ranking(0.6, "wu", coverage=0.4))
    options: dict[str, Any] = {"bos": BOS, "eos": EOS, "limit": 5, "search": search, "attended": lambda state: state[2]}
    found = beam(Attending(seed, []), *batch(rows), **options)
    for row, ours in zip(rows, found, strict=True):
        for one in ours:
            # A hypothesis that was cut off never attended with its last token.
            read = one.ids if one.finished else one.ids[:-1]
            expected = search.ranking.score(one.score, len(one.ids) + one.finished, covered(row, read))
            assert one.ranked == pytest.approx(expected, abs=1e-9)
        ranked = [one.ranked for one in ours if one.finished]
        assert ranked == sorted(ranked, reverse=True)
        alone = beam(Attending(seed, []), *batch([row]), **options)
        assert [one.ids for one in alone[0]] == [one.ids for one in ours]


def test_coverage_without_attention_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"coverage: expected 0 without attention weights; got 0\.2"):
        beam(Script(0, []), *batch([[3]]), bos=BOS, eos=EOS, limit=3, search=Beam(ranking=Ranking(coverage=0.2)))


def test_scores_that_are_not_numbers_are_an_error_that_names_row_and_step() -> None:
    class Broken(Script):
        def _row(self, total: int, token: int, time: int) -> Tensor:
            return torch.full((SIZE,), math.nan if time == 1 and total == 5 else 0.0)

    with pytest.raises(QkvError, match="NaN for row 1 at step 1"):
        beam(Broken(0, []), *batch([[3], [5], [4]]), bos=BOS, eos=EOS, limit=3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Beam(width=0), "width: expected at least 1; got 0"),
        (lambda: Beam(width=2, n_best=3), "n_best: expected from 1 to the width 2; got 3"),
        (lambda: Beam(stop="soon"), 'stop: expected "proved" or "filled"; got "soon"'),
        (lambda: Ranking(-0.5), "length_penalty: expected from 0 to 40; got -0.5"),
        (lambda: Ranking(400.0), "length_penalty: expected from 0 to 40; got 400"),
        (lambda: Ranking(coverage=math.nan), "coverage: expected from 0 to 40; got nan"),
        (lambda: Ranking(1.0, "wuu"), 'normalization: .*Did you mean "wu"'),
    ],
)
def test_settings_outside_their_range_are_named(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_a_limit_of_the_wrong_shape_is_named() -> None:
    with pytest.raises(ShapeError, match="limit: expected one number, or one for each of 2 rows"):
        beam(Script(0, []), *batch([[3], [5]]), bos=BOS, eos=EOS, limit=torch.tensor([1, 2, 3]))


@pytest.mark.parametrize("normalization", ["plain", "wu"])
def test_the_largest_penalty_of_the_longest_hypothesis_is_a_number(normalization: Any) -> None:
    scores = [Ranking(40.0, normalization, 40.0).score(-5.0, length, -1e4) for length in (1, 3, 1_000_000)]
    assert all(map(math.isfinite, scores))
    assert scores == sorted(scores)
