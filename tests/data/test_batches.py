"""Batches contain every example once, stay within budget and depend only on lengths, seed and epoch."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qkv.data.batches import (
    NO_LABEL,
    Example,
    collate,
    collate_sources,
    inference_batches,
    restore_order,
    token_batches,
)
from qkv.errors import ConfigError, DataError

LENGTHS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=60)
IDS = st.lists(st.integers(4, 99), max_size=9).map(tuple)
STORED_ORDER = [[0, 1, 10, 7], [9, 6], [5, 3], [2, 11, 8], [4]]


def of_lengths(lengths: list[tuple[int, int]]) -> list[Example]:
    return [Example((5,) * source, (6,) * target, place) for place, (source, target) in enumerate(lengths)]


@given(LENGTHS, st.integers(22, 100), st.integers(0, 3), st.integers(0, 3))
def test_batches_partition_the_examples_within_the_budget(
    lengths: list[tuple[int, int]], tokens: int, seed: int, epoch: int
) -> None:
    examples = of_lengths(lengths)
    batches = token_batches(examples, tokens, seed, epoch)
    assert sorted(place for batch in batches for place in batch) == list(range(len(examples)))
    for places in batches:
        batch = collate([examples[place] for place in places], pad=0, bos=1, eos=2)
        assert 0 < batch.target.numel() <= tokens
        assert batch.source.numel() <= tokens


@given(LENGTHS, st.integers(0, 3), st.integers(0, 3))
def test_order_is_a_function_of_lengths_seed_and_epoch(lengths: list[tuple[int, int]], seed: int, epoch: int) -> None:
    examples = of_lengths(lengths)
    others = [Example((7,) * len(e.source), (8,) * len(e.target), e.index + 1000) for e in examples]
    torch.manual_seed(epoch)
    assert token_batches(examples, 64, seed, epoch) == token_batches(others, 64, seed, epoch)


def test_epochs_and_seeds_differ_in_order_and_in_company() -> None:
    examples = of_lengths([(n % 7, n % 5) for n in range(300)])
    drawn = [token_batches(examples, 40, seed, epoch) for seed, epoch in [(0, 0), (0, 1), (1, 0)]]
    for left, right in [(0, 1), (0, 2), (1, 2)]:
        assert drawn[left] != drawn[right]
        assert {frozenset(batch) for batch in drawn[left]} != {frozenset(batch) for batch in drawn[right]}


def test_order_stays_what_resumed_runs_need() -> None:
    examples = of_lengths([(n % 7, n % 5) for n in range(12)])
    assert token_batches(examples, 16, seed=3, epoch=2) == STORED_ORDER


def test_lengths_in_a_batch_are_alike() -> None:
    examples = of_lengths([(n % 20 + 1, n % 20 + 1) for n in range(2000)])
    padded = filled = 0
    for places in token_batches(examples, 400, 0, 0):
        batch = collate([examples[place] for place in places], 0, 1, 2)
        padded += batch.target.numel()
        filled += int(batch.target_lengths.sum())
    assert filled / padded > 0.97


def test_example_longer_than_the_budget_is_named() -> None:
    examples = [Example((5,), (6,), 17), Example((5,) * 30, (6,), 18)]
    with pytest.raises(ConfigError, match="example 18 alone has 30"):
        token_batches(examples, 20, 0, 0)


def test_batches_of_so_many_examples_have_as_many_whatever_their_size() -> None:
    examples = [Example((1,) * n, (1,) * n, n) for n in range(1, 24)]
    for epoch in range(3):
        batches = token_batches(examples, tokens=1, seed=3, epoch=epoch, rows=5)
        assert sorted(map(len, batches)) == [3, 5, 5, 5, 5]
        assert sorted(place for batch in batches for place in batch) == list(range(23))
        assert all(max(batch) - min(batch) < 5 for batch in batches), "alike in length"


def test_nothing_to_batch_is_refused() -> None:
    with pytest.raises(DataError, match="examples"):
        token_batches([], 20, 0, 0)
    with pytest.raises(DataError, match="examples"):
        collate([], 0, 1, 2)


@given(st.lists(st.tuples(IDS, IDS), min_size=1, max_size=8))
def test_collated_rows_hold_the_ids_and_then_padding(sides: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> None:
    examples = [Example(source, target, 100 + place) for place, (source, target) in enumerate(sides)]
    batch = collate(examples, pad=0, bos=1, eos=2)
    assert batch.indices == tuple(example.index for example in examples)
    rows = [(batch.source, batch.source_lengths), (batch.target, batch.target_lengths)]
    wanted = [[e.source for e in examples], [(1, *e.target, 2) for e in examples]]
    for (ids, lengths), sequences in zip(rows, wanted, strict=True):
        assert ids.dtype == lengths.dtype == torch.int64
        assert ids.shape == (len(examples), max(map(len, sequences)))
        for row, length, sequence in zip(ids.tolist(), lengths.tolist(), sequences, strict=True):
            assert tuple(row[:length]) == sequence
            assert not any(row[length:])


@given(st.lists(st.tuples(IDS, IDS), min_size=1, max_size=8), st.sampled_from([0, 2]))
def test_labels_are_all_tokens_of_a_target_whatever_pads(
    sides: list[tuple[tuple[int, ...], tuple[int, ...]]], pad: int
) -> None:
    batch = collate([Example(*pair, 0) for pair in sides], pad=pad, bos=1, eos=2)
    for row, (_, target) in zip(batch.labels.tolist(), sides, strict=True):
        assert row == [*target, 2, *[NO_LABEL] * (len(row) - len(target) - 1)]


def test_sources_of_no_ids_have_a_shape() -> None:
    ids, lengths = collate_sources([(), ()], pad=0)
    assert ids.shape == (2, 0)
    assert lengths.tolist() == [0, 0]


@given(st.lists(st.integers(0, 30), max_size=60), st.integers(1, 60))
def test_inference_batches_partition_and_results_return_in_order(lengths: list[int], tokens: int) -> None:
    batches = inference_batches(lengths, tokens)
    assert all(len(batch) == 1 or len(batch) * max(lengths[place] for place in batch) <= tokens for batch in batches)
    assert restore_order(batches, batches) == list(range(len(lengths)))
    widest = [max(lengths[place] for place in batch) for batch in batches]
    assert widest == sorted(widest, reverse=True)


def test_inference_needs_room_for_one_id() -> None:
    with pytest.raises(ConfigError, match="tokens"):
        inference_batches([1], 0)


def test_results_that_do_not_fit_the_batches_are_refused() -> None:
    with pytest.raises(ValueError, match="argument 2"):
        restore_order([[0, 1]], [["only one"]])


def test_moving_a_batch_keeps_it() -> None:
    batch = collate([Example((5, 6), (7,), 3)], 0, 1, 2)
    moved = batch.to("meta")
    assert moved.source.device.type == "meta"
    assert moved.target.shape == batch.target.shape
    assert moved.indices == (3,)
