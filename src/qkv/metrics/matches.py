"""Answers that are right or wrong: exact match, accuracy and F1 of labels."""

from collections import Counter
from collections.abc import Hashable, Sequence

from qkv.metrics.figure import Figure, require_same_length


def exact_match(hypotheses: Sequence[str], references: Sequence[str]) -> Figure:
    """Compute the share of texts that are entirely correct.

    Args:
        hypotheses: one text per item.
        references: one text per item.

    Returns:
        The figure "exact_match" in percent.

    Raises:
        DataError: the numbers of texts differ or are zero.

    Example:
        >>> exact_match(["2011-05-03", "2011-05-04"], ["2011-05-03", "2011-04-05"]).value
        50.0
    """
    return Figure("exact_match", _share(hypotheses, references), "unit:text|case:mixed")


def accuracy(predictions: Sequence[Hashable], labels: Sequence[Hashable]) -> Figure:
    """Compute the share of correct labels.

    Args:
        predictions: one label per item.
        labels: one label per item.

    Returns:
        The figure "accuracy" in percent.

    Raises:
        DataError: the numbers of labels differ or are zero.

    Example:
        >>> accuracy([1, 0, 1, 1], [1, 0, 0, 1]).value
        75.0
    """
    return Figure("accuracy", _share(predictions, labels), "unit:label")


def macro_f1(predictions: Sequence[Hashable], labels: Sequence[Hashable]) -> Figure:
    """Compute the mean over classes of the harmonic mean of precision and recall.

    Args:
        predictions: one label per item.
        labels: one label per item.

    Returns:
        The figure "macro_f1" in percent; every class that occurs on either side has equal weight.

    Raises:
        DataError: the numbers of labels differ or are zero.

    Example:
        >>> round(macro_f1(["a", "a", "b"], ["a", "b", "b"]).value, 2)
        66.67
    """
    require_same_length(predictions, labels)
    right = Counter(p for p, label in zip(predictions, labels, strict=True) if p == label)
    # F1 = 2 correct / (predicted + labeled); the sum of the two counts is never 0 for a class that occurs.
    either = Counter(predictions) + Counter(labels)
    value = sum(2 * right[label] / count for label, count in either.items()) / len(either)
    return Figure("macro_f1", 100 * value, "average:macro|classes:all that occur")


def _share(hypotheses: Sequence[Hashable], references: Sequence[Hashable]) -> float:
    count = require_same_length(hypotheses, references)
    return 100 * sum(h == r for h, r in zip(hypotheses, references, strict=True)) / count
