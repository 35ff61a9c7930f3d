"""Edit distances match the definition, and rates divide them by the reference length."""

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.errors import DataError
from qkv.metrics.edits import character_error_rate, edit_distance, token_error_rate, word_error_rate

TEXT = st.text("abc", max_size=7)


@cache
def by_definition(left: str, right: str) -> int:
    if not left or not right:
        return len(left) + len(right)
    return min(
        by_definition(left[1:], right) + 1,
        by_definition(left, right[1:]) + 1,
        by_definition(left[1:], right[1:]) + (left[0] != right[0]),
    )


@given(TEXT, TEXT)
def test_distance_is_that_of_the_definition(left: str, right: str) -> None:
    assert edit_distance(left, right) == by_definition(left, right)


@given(TEXT, TEXT, TEXT)
def test_distance_is_a_metric(a: str, b: str, c: str) -> None:
    assert edit_distance(a, b) == edit_distance(b, a)
    assert (edit_distance(a, b) == 0) == (a == b)
    assert edit_distance(a, c) <= edit_distance(a, b) + edit_distance(b, c)


def test_rates_add_up_over_the_corpus_before_they_divide() -> None:
    hypotheses, references = ["a b", "x"], ["a b", "y z w"]
    assert word_error_rate(hypotheses, references).value == pytest.approx(100 * 3 / 5)
    assert character_error_rate(["ab", "x"], ["ab", "yzw"]).value == pytest.approx(100 * 3 / 5)
    assert token_error_rate([["a", "b"], ["x"]], [["a", "b"], ["y", "z", "w"]]).value == pytest.approx(100 * 3 / 5)


def test_more_than_a_hundred_percent_is_possible() -> None:
    assert word_error_rate(["a b c"], ["d"]).value == 300


def test_lower_is_better() -> None:
    assert not word_error_rate(["a"], ["a"]).higher_is_better
    assert not character_error_rate(["a"], ["a"]).higher_is_better
    assert not token_error_rate(["a"], ["a"]).higher_is_better


def test_nothing_to_divide_by_is_refused() -> None:
    with pytest.raises(DataError, match="at least one token in total"):
        word_error_rate(["a"], [" "])
    with pytest.raises(DataError, match="hypotheses"):
        word_error_rate(["a"], [])
