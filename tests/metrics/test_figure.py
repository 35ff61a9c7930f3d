"""Metrics compare only with the same kind, and NaN never wins."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.errors import ConfigError, DataError
from qkv.metrics.figure import Figure, require_same_length

NUMBER = st.floats(allow_nan=False)


@given(NUMBER, NUMBER)
def test_better_follows_the_direction(left: float, right: float) -> None:
    assert Figure("x", left, "").better_than(Figure("x", right, "")) == (left > right)
    assert Figure("x", left, "", False).better_than(Figure("x", right, "", False)) == (left < right)


def test_a_number_beats_nothing_and_nan_and_nan_beats_neither() -> None:
    number, nan = Figure("x", 1.0, ""), Figure("x", math.nan, "")
    assert number.better_than(None)
    assert number.better_than(nan)
    assert not nan.better_than(number)
    assert not nan.better_than(None)
    assert not nan.better_than(nan)


@pytest.mark.parametrize("other", [Figure("y", 1.0, "s"), Figure("x", 1.0, "t"), Figure("x", 1.0, "s", False)])
def test_unlike_figures_do_not_compare(other: Figure) -> None:
    with pytest.raises(ConfigError, match="other: expected x"):
        Figure("x", 1.0, "s").better_than(other)


def test_figures_are_values() -> None:
    figure = Figure("x", 1.0, "s")
    assert figure == Figure("x", 1.0, "s", True)
    with pytest.raises(AttributeError):
        figure.value = 2.0  # type: ignore[misc]


def test_lists_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(DataError, match="hypotheses: expected one for each of the 2 references; got 1"):
        require_same_length(["a"], ["a", "b"])
    with pytest.raises(DataError, match="references: expected at least one; got none"):
        require_same_length([], [])
