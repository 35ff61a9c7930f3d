"""Reversed sequences are correct, distinct and reproducible."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.errors import ConfigError
from results import reverse


@given(st.integers(0, 60), st.integers(0, 9), st.integers(5, 8), st.integers(0, 4))
def test_targets_are_the_sources_backwards(count: int, seed: int, shortest: int, more: int) -> None:
    pairs = reverse.generate(count, seed, symbols="abcd", shortest=shortest, longest=shortest + more)
    assert len({pair.source for pair in pairs}) == count
    assert pairs == reverse.generate(count, seed, symbols="abcd", shortest=shortest, longest=shortest + more)
    for line, pair in enumerate(pairs, start=1):
        assert pair.line == line
        assert pair.target == "".join(reversed(pair.source))
        assert set(pair.source) <= set("abcd")
        assert shortest <= len(pair.source) <= shortest + more


def test_seeds_differ() -> None:
    assert reverse.generate(10, 0) != reverse.generate(10, 1)


def test_all_lengths_and_symbols_occur() -> None:
    pairs = reverse.generate(2000, 0)
    assert {len(pair.source) for pair in pairs} == set(range(1, 21))
    assert len(set("".join(pair.source for pair in pairs))) == 26


@pytest.mark.parametrize(
    ("count", "symbols", "shortest", "longest", "argument"),
    [
        (-1, "ab", 1, 2, "count"),
        (99, "ab", 1, 2, "count"),
        (1, "ab", 0, 2, "shortest"),
        (1, "ab", 3, 2, "shortest"),
        (1, "", 1, 2, "symbols"),
        (1, "aa", 1, 2, "symbols"),
    ],
)
def test_impossible_wishes_are_refused(count: int, symbols: str, shortest: int, longest: int, argument: str) -> None:
    with pytest.raises(ConfigError, match=f"^{argument}: "):
        reverse.generate(count, 0, symbols=symbols, shortest=shortest, longest=longest)
