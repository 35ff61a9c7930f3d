"""Spans of tags by CoNLL's rules."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.errors import DataError
from qkv.metrics.spans import TagSpan, names_spans, span_f1, spans


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("", []),
        ("O O", []),
        ("B-A", [TagSpan("A", 0, 1)]),
        ("B-A B-A", [TagSpan("A", 0, 1), TagSpan("A", 1, 2)]),
        ("I-A I-A", [TagSpan("A", 0, 2)]),
        ("B-A I-B", [TagSpan("A", 0, 1), TagSpan("B", 1, 2)]),
        ("B-A O I-A", [TagSpan("A", 0, 1), TagSpan("A", 2, 3)]),
        ("O B-A I-A I-A O B-B", [TagSpan("A", 1, 4), TagSpan("B", 5, 6)]),
    ],
)
def test_spans_are_read_as_conlleval_reads_them(tags: str, expected: list[TagSpan]) -> None:
    assert spans(tags.split()) == expected


def _encoded(length: int, spans_: list[TagSpan], scheme: str) -> list[str]:
    """Write spans as tags; `scheme` has the letters of a first, inner and last word, and of a word alone."""
    first, inner, last, alone = scheme
    tags = ["O"] * length
    for kind, start, stop in spans_:
        letters = alone if stop - start == 1 else first + inner * (stop - start - 2) + last
        tags[start:stop] = [f"{letter}-{kind}" for letter in letters]
    return tags


@given(st.lists(st.tuples(st.sampled_from("AB"), st.integers(1, 4), st.integers(0, 2)), max_size=6))
def test_every_scheme_names_the_same_spans(parts: list[tuple[str, int, int]]) -> None:
    expected, at = [], 0
    for kind, size, gap in parts:
        expected.append(TagSpan(kind, at + gap, at + gap + size))
        at += gap + size
    for scheme in ("BIIB", "BIES", "BILU"):
        tags = _encoded(at + 1, expected, scheme)
        assert spans(tags) == expected
        assert names_spans(tags) == bool(expected)
        assert span_f1([tags], [_encoded(at + 1, expected, "BIIB")]).value == 100
        untyped = [tag[0] for tag in tags]
        assert spans(untyped) == [span._replace(kind="") for span in expected]
        assert names_spans(untyped) or not {"B", "I"} & set(untyped)


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("I-A E-A", [TagSpan("A", 0, 2)]),
        ("E-A I-A", [TagSpan("A", 0, 1), TagSpan("A", 1, 2)]),
        ("B-A S-A", [TagSpan("A", 0, 1), TagSpan("A", 1, 2)]),
        ("B-A L-B", [TagSpan("A", 0, 1), TagSpan("B", 1, 2)]),
        ("U-A U-A", [TagSpan("A", 0, 1), TagSpan("A", 1, 2)]),
    ],
)
def test_spans_with_ends_that_fit_no_beginning(tags: str, expected: list[TagSpan]) -> None:
    assert spans(tags.split()) == expected


def test_f1_counts_spans_that_are_right_in_kind_and_ends() -> None:
    truth = [["B-A", "I-A", "O", "B-B"], ["O", "B-A"]]
    found = [["B-A", "I-A", "O", "B-A"], ["O", "B-A"]]
    assert span_f1(truth, truth).value == 100
    assert span_f1(found, truth).value == pytest.approx(100 * 2 * 2 / 6)
    assert span_f1([["O"]], [["O"]]).value == 100
    assert span_f1([["O"]], [["B-A"]]).value == 0


def test_labels_that_name_no_spans() -> None:
    assert not names_spans(["O"])
    assert not names_spans(["B-"])
    assert not names_spans(["E-A", "L-A"])
    assert not names_spans(["B-A", "NOUN"])
    assert names_spans(["I-x", "O"])


def test_missing_tags_are_named() -> None:
    with pytest.raises(DataError, match="predictions: expected 2 tags; got 1 in sentence 1"):
        span_f1([["O"]], [["O", "O"]])
