"""Held-out examples are never trained on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.data.corpus import Pair
from qkv.data.holdout import hold_out
from qkv.errors import ConfigError


@given(st.lists(st.sampled_from("abcdefgh"), min_size=20, max_size=60), st.integers(0, 5))
def test_sides_are_a_partition_without_a_common_source(sources: list[str], seed: int) -> None:
    pairs = [Pair(source, str(line), line) for line, source in enumerate(sources, start=1)]
    try:
        train, held = hold_out(pairs, 2, seed)
    except ConfigError:
        assert len(set(sources)) <= 2
        return
    assert sorted([*train, *held], key=lambda pair: pair.line) == pairs
    assert len(held) >= 2
    assert train
    assert not {pair.source for pair in train} & {pair.source for pair in held}
    assert (train, held) == hold_out(pairs, 2, seed)


def test_seeds_differ() -> None:
    pairs = [Pair(str(n), "x", n) for n in range(100)]
    assert hold_out(pairs, 10, 0)[1] != hold_out(pairs, 10, 1)[1]


@pytest.mark.parametrize("count", [0, 3, 4])
def test_both_sides_must_get_something(count: int) -> None:
    with pytest.raises(ConfigError, match="count"):
        hold_out([Pair(str(n), "x", n) for n in range(3)], count, 0)
