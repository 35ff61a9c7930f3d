"""Figures compare by their direction, and only finite ones win."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.errors import DataError
from qkv.metrics.figure import Figure, require_same_length

NUMBER = st.floats(allow_nan=False)


@given(NUMBER, NUMBER)
def test_better_follows_the_direction(left: float, right: float) -> None:
    finite = math.isfinite(left)
    assert Figure("x", left, "").better_than(Figure("x", right, "")) == (finite and left > right)
    assert Figure("x", left, "", False).better_than(Figure("x", right, "", False)) == (finite and left < right)


def test_a_number_beats_nothing_and_nan_beats_neither() -> None:
    number, nan = Figure("x", 1.0, ""), Figure("x", math.nan, "")
    assert number.better_than(None)
    assert not nan.better_than(number)
    assert not nan.better_than(None)
    assert not nan.better_than(nan)


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
