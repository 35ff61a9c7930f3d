"""What each label or type of spans gets: precision, recall, F1, support; and which labels are confused."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import final

from qkv.metrics.figure import require_same_length
from qkv.metrics.spans import spans


@final
@dataclass(frozen=True)
class LabelScore:
    """How well one label, or one type of spans, is found; rates in percent.

    Args:
        label: its name.
        precision: the share of right ones among the predicted; 0 if none is predicted.
        recall: the share of predicted ones among the right; 0 if there is none.
        f1: their harmonic mean; 0 if both are 0.
        support: how many there are.
    """

    label: str
    precision: float
    recall: float
    f1: float
    support: int


@final
@dataclass(frozen=True)
class Confusion:
    """How often one label was taken for another.

    Args:
        label: the right one.
        predicted: the one in its place.
        count: how often.
    """

    label: str
    predicted: str
    count: int


@final
@dataclass(frozen=True)
class LabelReport:
    """Labels one by one.

    Args:
        scores: by name.
        confusions: the most frequent first.
    """

    scores: tuple[LabelScore, ...]
    confusions: tuple[Confusion, ...]

    def tables(self) -> list[list[tuple[str, ...]]]:
        """Return both as tables of texts, each with a header."""
        rates: list[tuple[str, ...]] = [
            (one.label, f"{one.precision:.2f}", f"{one.recall:.2f}", f"{one.f1:.2f}", f"{one.support:,}")
            for one in self.scores
        ]
        pairs: list[tuple[str, ...]] = [(one.label, one.predicted, f"{one.count:,}") for one in self.confusions]
        header = ("label", "precision %", "recall %", "F1 %", "support")
        return [[header, *rates], *([[("label", "taken for", "times"), *pairs]] if pairs else [])]


def label_report(predictions: Sequence[str], labels: Sequence[str]) -> LabelReport:
    """Compare labels one by one.

    Args:
        predictions: one label per item.
        labels: the right ones.

    Raises:
        DataError: the numbers of labels differ or are zero.

    Example:
        >>> report = label_report(["a", "a", "b"], ["a", "b", "b"])
        >>> [(one.label, one.precision, one.recall, one.support) for one in report.scores]
        [('a', 50.0, 100.0, 1), ('b', 100.0, 50.0, 2)]
        >>> report.confusions
        (Confusion(label='b', predicted='a', count=1),)
    """
    require_same_length(predictions, labels)
    right = Counter(label for predicted, label in zip(predictions, labels, strict=True) if predicted == label)
    return LabelReport(_scores(right, Counter(predictions), Counter(labels)), _confusions(predictions, labels))


def span_report(predictions: Sequence[Sequence[str]], labels: Sequence[Sequence[str]]) -> LabelReport:
    """Compare spans type by type, and tags word by word.

    Args:
        predictions: the tags of each sentence.
        labels: the right ones, as many.

    Example:
        >>> span_report([["B-PER", "O"]], [["B-PER", "B-LOC"]]).scores[1]
        LabelScore(label='PER', precision=100.0, recall=100.0, f1=100.0, support=1)
    """
    predicted, true = ([{*spans(tags)} for tags in sentences] for sentences in (predictions, labels))
    right = (span.kind for ours, theirs in zip(predicted, true, strict=True) for span in ours & theirs)
    counts = (Counter(span.kind for found in side for span in found) for side in (predicted, true))
    words = ([tag for sentence in side for tag in sentence] for side in (predictions, labels))
    return LabelReport(_scores(Counter(right), *counts), _confusions(*words))


def _scores(right: Counter[str], predicted: Counter[str], true: Counter[str]) -> tuple[LabelScore, ...]:
    return tuple(
        LabelScore(
            label,
            100 * right[label] / predicted[label] if predicted[label] else 0.0,
            100 * right[label] / true[label] if true[label] else 0.0,
            200 * right[label] / (predicted[label] + true[label]),
            true[label],
        )
        for label in sorted(predicted.keys() | true.keys())
    )


def _confusions(predictions: Iterable[str], labels: Iterable[str]) -> tuple[Confusion, ...]:
    pairs = Counter(
        (label, predicted) for predicted, label in zip(predictions, labels, strict=True) if predicted != label
    )
    return tuple(Confusion(*pair, count) for pair, count in sorted(pairs.items(), key=lambda item: (-item[1], item[0])))
