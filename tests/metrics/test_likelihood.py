"""Perplexity and bits per character of known distributions."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.errors import DataError
from qkv.metrics.likelihood import bits_per_character, perplexity


@given(st.integers(1, 10_000), st.integers(1, 10_000))
def test_uniform_guess_has_the_perplexity_of_its_choices(choices: int, tokens: int) -> None:
    assert perplexity(tokens * math.log(choices), tokens).value == pytest.approx(choices)


@given(st.integers(0, 16), st.integers(1, 10_000))
def test_bits_of_a_power_of_two(bits: int, characters: int) -> None:
    assert bits_per_character(characters * bits * math.log(2), characters).value == pytest.approx(bits)


def test_lower_is_better() -> None:
    assert not perplexity(1.0, 1).higher_is_better
    assert not bits_per_character(1.0, 1).higher_is_better


def test_what_cannot_be_held_is_infinite_and_nan_stays_nan() -> None:
    assert perplexity(1e6, 1).value == math.inf
    assert math.isnan(perplexity(math.nan, 1).value)


def test_nothing_to_measure_is_refused() -> None:
    with pytest.raises(DataError, match="tokens: expected at least 1; got 0"):
        perplexity(0.0, 0)
    with pytest.raises(DataError, match="characters"):
        bits_per_character(0.0, 0)
