"""Labels one by one, judged by scikit-learn; spans type by type, by their definition on well-formed IOB2."""

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.errors import DataError
from qkv.metrics.labels import label_report, span_report

pairs = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("abcd")), min_size=1, max_size=30)


@given(pairs)
def test_labels_are_scored_as_by_scikit_learn(items: list[tuple[str, str]]) -> None:
    from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

    predictions, labels = ([item[side] for item in items] for side in (0, 1))
    names = sorted({*predictions, *labels})
    judged = precision_recall_fscore_support(labels, predictions, labels=names, zero_division=0)
    report = label_report(predictions, labels)
    assert [one.label for one in report.scores] == names
    for one, precision, recall, f1, support in zip(report.scores, *judged, strict=True):
        assert (one.precision, one.recall, one.f1) == pytest.approx((100 * precision, 100 * recall, 100 * f1))
        assert one.support == support
    matrix = confusion_matrix(labels, predictions, labels=[*names, "no other"])
    wrong = {(a, b): matrix[i, j] for i, a in enumerate(names) for j, b in enumerate(names) if i != j and matrix[i, j]}
    assert {(one.label, one.predicted): one.count for one in report.confusions} == wrong
    counts = [one.count for one in report.confusions]
    assert counts == sorted(counts, reverse=True)


chunk = st.sampled_from(["O", "B-P", "B-P I-P", "B-Q", "B-Q I-Q I-Q"])
sentence = st.lists(chunk, min_size=3, max_size=3).map(lambda chunks: " ".join([*chunks, "O", "O", "O"]).split()[:6])


def spans_of(tags: list[str]) -> set[tuple[str, int, int]]:
    text = "".join(tag[0] + tag[2:].rjust(1, "-") for tag in tags)  # two characters a tag
    return {(match[1], match.start(), match.end()) for match in re.finditer(r"B(.)(?:I\1)*", text)}


@given(st.lists(st.tuples(sentence, sentence), min_size=1, max_size=6))
def test_spans_are_scored_by_their_type(items: list[tuple[list[str], list[str]]]) -> None:
    predictions, labels = ([item[side] for item in items] for side in (0, 1))
    both = [(spans_of(ours), spans_of(theirs)) for ours, theirs in items]
    right = Counter(kind for ours, theirs in both for kind, _, _ in ours & theirs)
    found = Counter(kind for ours, _ in both for kind, _, _ in ours)
    true = Counter(kind for _, theirs in both for kind, _, _ in theirs)
    scores = {one.label: one for one in span_report(predictions, labels).scores}
    assert scores.keys() == {*found, *true}
    for kind, one in scores.items():
        precision = right[kind] / found[kind] if found[kind] else 0.0
        recall = right[kind] / true[kind] if true[kind] else 0.0
        f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
        assert (one.precision, one.recall, one.f1) == pytest.approx((100 * precision, 100 * recall, 100 * f1))
        assert one.support == true[kind]


def test_numbers_that_differ_are_refused() -> None:
    with pytest.raises(DataError):
        label_report(["a"], ["a", "b"])
