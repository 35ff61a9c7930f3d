"""Spans encoded by a sequence of tags, and their F1."""

from collections.abc import Sequence
from typing import NamedTuple

from qkv.errors import DataError, error_message
from qkv.metrics.figure import Figure, require_same_length


class Span(NamedTuple):
    """The words start to stop − 1, and their kind."""

    kind: str
    start: int
    stop: int


def names_spans(labels: Sequence[str]) -> bool:
    """Return whether labels have the form O, B-KIND, I-KIND.

    Example:
        >>> names_spans(["B-PER", "I-PER", "O"]), names_spans(["NOUN", "VERB"])
        (True, False)
    """
    marked = [label for label in labels if label != "O"]
    return bool(marked) and all(label[:2] in ("B-", "I-") and len(label) > 2 for label in marked)


def spans(tags: Sequence[str]) -> list[Span]:
    """Decode the spans of a sentence; an I without a B starts a span, as in CoNLL's evaluation script.

    Args:
        tags: the tag of each word: O, B-KIND or I-KIND.

    Returns:
        The spans in order.

    Source: Ramshaw and Marcus 1995; Tjong Kim Sang and De Meulder 2003, `conlleval`.

    Example:
        >>> spans(["B-PER", "I-PER", "O", "I-LOC", "B-LOC"])
        [Span(kind='PER', start=0, stop=2), Span(kind='LOC', start=3, stop=4), Span(kind='LOC', start=4, stop=5)]
    """
    found: list[Span] = []
    kind, start = "", 0
    for place, tag in enumerate([*tags, "O"]):
        goes_on = tag[:2] == "I-" and tag[2:] == kind
        if kind and not goes_on:
            found.append(Span(kind, start, place))
            kind = ""
        if tag != "O" and not goes_on:
            kind, start = tag[2:], place
    return found


def span_f1(predictions: Sequence[Sequence[str]], labels: Sequence[Sequence[str]]) -> Figure:
    """Compute F1 of spans; a span is correct if its kind and both ends are.

    Args:
        predictions: the tags of each sentence.
        labels: the correct tags.

    Returns:
        The figure "span_f1" in percent; 100 if there are no spans on either side.

    Raises:
        DataError: the numbers of sentences or words differ, or are zero.

    Example:
        >>> round(span_f1([["B-PER", "O"]], [["B-PER", "B-LOC"]]).value, 2)
        66.67
    """
    require_same_length(predictions, labels)
    right = either = 0
    for number, (given, true) in enumerate(zip(predictions, labels, strict=True), start=1):
        if len(given) != len(true):
            got = f"{len(given)} in sentence {number}"
            raise DataError(error_message("predictions", f"{len(true)} tags", got, "Give one tag per word."))
        ours, theirs = set(spans(given)), set(spans(true))
        right += len(ours & theirs)
        either += len(ours) + len(theirs)
    return Figure("span_f1", 200 * right / either if either else 100.0, "average:micro|spans:conlleval")
