"""Accuracy and related scores agree with scikit-learn."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score

from qkv.errors import DataError
from qkv.metrics.matches import accuracy, exact_match, macro_f1

LABELS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=30)


@given(LABELS)
def test_accuracy_is_scikit_learns(pairs: list[tuple[int, int]]) -> None:
    predictions, labels = zip(*pairs, strict=True)
    assert accuracy(predictions, labels).value == pytest.approx(100 * accuracy_score(labels, predictions))


@given(LABELS)
def test_macro_f1_is_scikit_learns(pairs: list[tuple[int, int]]) -> None:
    predictions, labels = zip(*pairs, strict=True)
    wanted = 100 * f1_score(labels, predictions, average="macro", zero_division=0)
    assert macro_f1(predictions, labels).value == pytest.approx(wanted)


def test_exact_match_counts_every_character() -> None:
    hypotheses = ["2011-05-03", "2011-05-03 ", "2011-5-03", "A"]
    assert exact_match(hypotheses, ["2011-05-03", "2011-05-03", "2011-05-03", "a"]).value == 25


@pytest.mark.parametrize("measure", [accuracy, exact_match, macro_f1])
def test_unequal_numbers_are_refused(measure: object) -> None:
    with pytest.raises(DataError, match="hypotheses"):
        measure(["a"], [])  # type: ignore[operator]
    with pytest.raises(DataError, match="references"):
        measure([], [])  # type: ignore[operator]


def test_more_is_better() -> None:
    assert all(measure(["a"], ["a"]).higher_is_better for measure in (accuracy, exact_match, macro_f1))
