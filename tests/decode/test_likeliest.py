"""The likeliest tokens by blocks are those of a plain sort."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.decode.likeliest import likeliest


@settings(max_examples=30)
@given(st.integers(1, 700), st.integers(1, 6), st.integers(0, 130), st.integers(0, 99))
def test_tokens_and_gains_are_those_of_a_sort(size: int, count: int, rows: int, seed: int) -> None:
    scores = torch.randn(rows, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    tokens, gains = likeliest(scores, min(count, size))
    expected = scores.log_softmax(-1).sort(-1, descending=True)
    assert torch.equal(tokens, expected.indices[:, :count])
    torch.testing.assert_close(gains, expected.values[:, :count])


@settings(max_examples=30)
@given(st.lists(st.integers(0, 2), min_size=1, max_size=400))
def test_of_equal_ones_the_lowest_id_is_first(scores: list[int]) -> None:
    tokens, _ = likeliest(torch.tensor([scores], dtype=torch.float32), 1)
    assert int(tokens) == scores.index(max(scores))


@pytest.mark.parametrize("broken", [math.nan, math.inf])
@pytest.mark.parametrize("place", [0, 77, 299])
def test_rows_that_are_no_probabilities_give_nan(broken: float, place: int) -> None:
    scores = torch.zeros(2, 300)
    scores[1, place] = broken
    for count in (1, 3):
        gains = likeliest(scores, count)[1].isnan()
        assert not gains[0].any()
        assert gains[1].any()


def test_what_cannot_be_has_no_probability() -> None:
    tokens, gains = likeliest(torch.tensor([[0.0, -math.inf, -math.inf]]), 2)
    assert (int(tokens[0, 0]), gains[0].tolist()) == (0, [0.0, -math.inf])
