"""Held-out examples are never trained on, and nothing that was given is hidden from training unsaid."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.data.corpus import Pair
from qkv.data.holdout import Split, hold_out, split
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
    with pytest.raises(ConfigError, match="holdout"):
        hold_out([Pair(str(n), "x", n) for n in range(3)], count, 0)


def split_pairs(pairs: list[Pair], seed: int = 0, *, labels: bool = False) -> Split[Pair]:
    return split(
        pairs,
        seed,
        parts=lambda pair: (pair.source, pair.target),
        names=("pairs", "sources"),
        labels=(lambda pair: [pair.target]) if labels else lambda pair: (),
    )


def repeated(counts: list[int]) -> list[Pair]:
    sources = [f"source {n}" for n, count in enumerate(counts) for _ in range(count)]
    return [Pair(source, source.replace("source", "target"), line) for line, source in enumerate(sources, start=1)]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60), st.integers(0, 3))
def test_a_twentieth_of_the_pairs_and_of_the_sources_is_held_out(counts: list[int], seed: int) -> None:
    pairs = repeated(counts)
    train, valid, message = split_pairs(pairs, seed)
    if len(counts) < 20:
        assert train == pairs
        assert Counter((pair.source, pair.target) for pair in valid) == {(p.source, p.target): 1 for p in pairs}
        assert message
        return
    assert not message
    held = {pair.source for pair in valid}
    assert 1 <= len(held) <= len(counts) // 20
    assert not held & {pair.source for pair in train}
    assert sorted([*train, *valid], key=lambda pair: pair.line) == pairs
    assert len(valid) < len(pairs) / 10 + 1
    assert all(count <= len(pairs) // 20 for count in Counter(pair.source for pair in valid).values())


@given(st.integers(20, 200), st.integers(0, 3))
def test_different_sources_are_held_out_as_with_their_number(count: int, seed: int) -> None:
    pairs = repeated([1] * count)
    assert split_pairs(pairs, seed) == (*hold_out(pairs, count // 20, seed), "")


@pytest.mark.parametrize("seed", range(30))
def test_a_source_of_most_pairs_is_always_trained_on(seed: int) -> None:
    pairs = repeated([800, *[8] * 24, 8])
    train, valid, message = split_pairs(pairs, seed)
    assert Counter(pair.source for pair in train)["source 0"] == 800
    assert len(valid) == 8
    assert not message
    assert len(hold_out(pairs, 50, seed)[1]) == 56


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=80), st.integers(0, 3))
def test_every_label_is_trained_on(labels: list[str], seed: int) -> None:
    pairs = [Pair(f"text {n}", label, n) for n, label in enumerate(labels, start=1)]
    train, valid, _ = split_pairs(pairs, seed, labels=True)
    assert {pair.target for pair in train} == set(labels)
    assert valid


def test_texts_that_are_all_needed_are_validated_on_too() -> None:
    pairs = [Pair(f"text {n}", str(n), n) for n in range(50)]
    train, valid, message = split_pairs(pairs, labels=True)
    assert train == valid == pairs
    assert "label" in message


def test_at_most_a_thousand_are_validated_on() -> None:
    train, valid, message = split_pairs([Pair("yes", str(n), n) for n in range(3000)])
    assert (len(train), len(valid)) == (3000, 1000)
    assert message
    assert len(split_pairs(repeated([1] * 40_000)).valid) == 1000
