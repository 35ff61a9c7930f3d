"""Sampling tokens: correct frequencies, correct filters, and independent rows."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.decode.scripts import BOS, EOS, SIZE, Script, batch, sources
from torch import Tensor

from qkv.decode.greedy import greedy
from qkv.decode.sampling import Sampling, row_keys, sample, uniform
from qkv.errors import ConfigError, QkvError, ShapeError


def splitmix(word: int) -> int:
    """The finalizer as published, in unbounded integers."""
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB % 2**64
    return word ^ (word >> 31)


@settings(max_examples=30)
@given(st.integers(0, 2**70), st.integers(-(2**63), 2**63 - 1), st.integers(0, 10**6))
def test_uniform_numbers_are_those_of_the_published_function(seed: int, key: int, step: int) -> None:
    inner = splitmix((key % 2**64) ^ splitmix(seed % 2**64))
    bits = splitmix((inner + (step + 1) * 0x9E3779B97F4A7C15) % 2**64)
    assert uniform(seed, torch.tensor([key]), step).item() == (bits >> 11) / 2**53


def test_uniform_numbers_spread_evenly_over_keys_steps_and_seeds() -> None:
    many = [
        uniform(0, torch.arange(20_000), 3),
        torch.cat([uniform(0, torch.tensor([3]), step) for step in range(1000)]),
        torch.cat([uniform(seed, torch.tensor([3]), 3) for seed in range(1000)]),
    ]
    for numbers in many:
        ordered = numbers.sort().values
        even = (torch.arange(len(ordered)) + 0.5) / len(ordered)
        # Kolmogorov-Smirnov: above 1.95 with probability 0.001.
        assert float((ordered - even).abs().max()) * math.sqrt(len(ordered)) < 1.95
        assert 0 <= float(ordered[0]) <= float(ordered[-1]) < 1


def test_tokens_come_as_often_as_their_probabilities_say() -> None:
    logits = torch.tensor([0.3, -1.0, 2.0, 0.0, -4.0])
    for sampling in (Sampling(), Sampling(temperature=2.0), Sampling(top_k=3), Sampling(0.5, top_p=0.9)):
        draws = 8000
        tokens, gains = sampling.pick(logits.expand(draws, -1), torch.arange(draws), step=0)
        expected = sampling.filtered(logits[None])[0].softmax(0)
        counts = torch.bincount(tokens, minlength=5)
        spread = (expected * (1 - expected) * draws).sqrt()
        assert bool(((counts - expected * draws).abs() <= 4 * spread).all())
        torch.testing.assert_close(gains, logits.log_softmax(0)[tokens])


@settings(max_examples=30)
@given(st.lists(st.integers(-6, 6), min_size=1, max_size=8), st.integers(1, 9), st.floats(0.05, 1.0))
def test_filters_keep_what_their_definitions_say(scores: list[int], k: int, p: float) -> None:
    logits = torch.tensor([scores], dtype=torch.float64)
    ranked = sorted(scores, reverse=True)
    kept = Sampling(top_k=k).filtered(logits)[0].isfinite().tolist()
    assert kept == [score >= ranked[min(k, len(scores)) - 1] for score in scores]
    chances = logits[0].softmax(0).tolist()
    kept = Sampling(top_p=p).filtered(logits)[0].isfinite().tolist()
    least = min(chance for chance, stays in zip(chances, kept, strict=True) if stays)
    assert all(stays == (chance >= least) for chance, stays in zip(chances, kept, strict=True))
    assert sum(chance for chance in chances if chance >= least) >= p - 1e-12
    above = sum(chance for chance in chances if chance > least)
    assert above < p + 1e-12


def test_a_temperature_of_zero_is_the_likeliest_token() -> None:
    logits = torch.tensor([[1.0, 5.0, 5.0], [3.0, 2.0, 1.0]])
    tokens, _ = Sampling(temperature=0).pick(logits, torch.tensor([1, 2]), step=0)
    assert tokens.tolist() == [1, 0]


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-40, 1e-20, 1e-10, 1e10, 1e20, 1e39, 1e300, 1.7e308])
@pytest.mark.parametrize("options", [{}, {"top_k": 2}, {"top_p": 0.6}], ids=str)
def test_any_temperature_gives_the_distribution_of_the_equation(temperature: float, options: dict[str, Any]) -> None:
    """Divided by almost 0 the likeliest token remains, by almost infinity all have the same share, hidden ones none."""
    logits = torch.tensor([[30.0, -2.0, 1e4, -torch.inf, 3.0], [-1e4, -9.0, -8.0, -7.0, 5e3]])
    never = [0]
    chances = Sampling(temperature, **options).filtered(logits, never).double().softmax(-1)
    assert (chances[0, 3], *chances[:, 0].tolist()) == (0, 0, 0)
    if temperature < 1:
        assert chances.argmax(-1).tolist() == [2, 4]
        assert (chances.amax(-1) == 1).all()
    else:
        kept = (3, 4) if not options else (2, 2) if "top_k" in options else (2, 3)
        for row, count in zip(chances, kept, strict=True):
            torch.testing.assert_close(
                row[row > 0], torch.full((count,), 1 / count, dtype=torch.float64), atol=1e-5, rtol=0
            )
    tokens, _ = Sampling(temperature, **options).pick(logits, torch.tensor([1, 2]), 0, never)
    assert (chances.gather(-1, tokens[:, None]) > 0).all()


@settings(max_examples=12)
@given(sources, st.integers(0, 50), st.data())
def test_each_row_draws_what_it_would_draw_alone(rows: list[list[int]], seed: int, data: Any) -> None:
    model, sampling = Script(seed, []), Sampling(temperature=1.5, top_k=6, top_p=0.95, seed=seed)
    order = data.draw(st.permutations(range(len(rows))))
    keys = row_keys(rows)
    options: dict[str, Any] = {"bos": BOS, "eos": EOS, "limit": 6, "sampling": sampling}
    shuffled = [rows[place] for place in order]
    together = sample(model, *batch(shuffled, 9), keys=torch.tensor([keys[place] for place in order]), **options)
    for place, found in zip(order, together, strict=True):
        alone = sample(model, *batch([rows[place]]), keys=torch.tensor([keys[place]]), **options)
        assert alone == [found]


def test_keys_tell_repeated_sources_and_samples_apart_and_nothing_else() -> None:
    keys = row_keys([[5], [5], [6]])
    assert len(set(keys)) == 3
    assert row_keys([[6], [5], [5]]) == [keys[2], keys[0], keys[1]]
    assert not set(row_keys([[5], [5], [6]], sample=1)) & set(keys)


def test_the_seed_decides() -> None:
    rows = [[3, 4], [5]]
    model, options = Script(0, []), {"bos": BOS, "eos": EOS, "limit": 9, "keys": torch.tensor(row_keys(rows))}
    one, same, other = (sample(model, *batch(rows), sampling=Sampling(seed=seed), **options) for seed in (1, 1, 2))
    assert one == same != other


def test_one_token_left_is_greedy() -> None:
    rows = [[3, 4], [5], [6, 7]]
    keys = torch.tensor(row_keys(rows))
    expected = greedy(Script(4, []), *batch(rows), bos=BOS, eos=EOS, limit=9)
    for sampling in (Sampling(top_k=1), Sampling(temperature=0.0), Sampling(top_p=1e-9)):
        found = sample(Script(4, []), *batch(rows), bos=BOS, eos=EOS, limit=9, sampling=sampling, keys=keys)
        assert found == expected


def test_scores_that_are_not_numbers_are_named() -> None:
    class Broken(Script):
        def _row(self, total: int, token: int, time: int) -> Tensor:
            return torch.full((SIZE,), math.nan if time == 1 and total == 5 else 0.0)

    options: dict[str, Any] = {"bos": BOS, "eos": EOS, "limit": 3, "sampling": Sampling(top_k=3, top_p=0.9)}
    with pytest.raises(QkvError, match="NaN for row 1 at step 1"):
        sample(Broken(0, []), *batch([[3], [5]]), keys=torch.tensor([8, 11]), **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1.0}, "temperature: expected 0 or more; got -1.0"),
        ({"temperature": math.nan}, "temperature: expected 0 or more; got nan"),
        ({"top_k": 0}, "top_k: expected at least 1; got 0"),
        ({"top_p": 0.0}, r"top_p: expected a share in \(0, 1\]; got 0.0"),
        ({"top_p": 1.5}, r"top_p: expected a share in \(0, 1\]; got 1.5"),
    ],
)
def test_numbers_outside_their_range_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Sampling(**options)


def test_a_key_for_each_row_is_required() -> None:
    with pytest.raises(ShapeError, match="keys: expected one for each of 2 rows"):
        sample(
            Script(0, []), *batch([[3], [5]]), bos=BOS, eos=EOS, limit=3, sampling=Sampling(), keys=torch.tensor([1])
        )
