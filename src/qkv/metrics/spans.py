"""Spans that tags encode, such as names, and F1 of them."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from qkv.errors import DataError
from qkv.metrics.figure import Figure, require_same_length


class TagSpan(NamedTuple):
    """The words start to stop − 1, and their kind; "" if tags have none."""

    kind: str
    start: int
    stop: int


_SCHEMES = (frozenset("BIES"), frozenset("BILU"))
"""The first letters of IOB1, IOB2 and IOBES, and those of BILOU, which writes L and U for E and S."""
_CLOSING = frozenset("ELSU")
_NEVER_INSIDE = frozenset("BSUO")


def names_spans(labels: Iterable[str]) -> bool:
    """Return whether labels are `O` or `PREFIX-TYPE`, or all of them without a type, as in IOB, IOBES or BILOU.

    Example:
        >>> names_spans(["B-PER", "I-PER", "O"]), names_spans(["U-PER", "O"]), names_spans(["NOUN", "VERB"])
        (True, True, False)
        >>> names_spans(["B", "I", "O"]), names_spans(["N", "O"])
        (True, False)
    """
    names = set(labels)
    marked = names - {"O"}
    typed = all(label[1:2] == "-" and len(label) > 2 for label in marked)
    # Single letters can be tags of another kind: two of B, I and O tell.
    untyped = all(len(label) == 1 for label in marked) and len(names & set("BIO")) > 1
    letters = {label[0] for label in marked if label}
    return bool(marked) and (typed or untyped) and any(letters <= scheme for scheme in _SCHEMES)


def spans(tags: Sequence[str]) -> list[TagSpan]:
    """Decode the spans of a sentence; a span without its beginning starts where it is, as in CoNLL's evaluation script.

    Args:
        tags: the tag of each word: O, or B, I, E, L, S or U, and a dash and a kind unless there is only one.

    Returns:
        The spans in order.

    Source: Ramshaw and Marcus 1995; Tjong Kim Sang and De Meulder 2003, `conlleval`; Ratinov and Roth 2009 for BILOU.

    Example:
        >>> spans(["B-PER", "I-PER", "O", "I-LOC"])
        [TagSpan(kind='PER', start=0, stop=2), TagSpan(kind='LOC', start=3, stop=4)]
        >>> spans(["B-PER", "E-PER", "S-LOC"])
        [TagSpan(kind='PER', start=0, stop=2), TagSpan(kind='LOC', start=2, stop=3)]
        >>> spans(["B", "I", "B", "O"])
        [TagSpan(kind='', start=0, stop=2), TagSpan(kind='', start=2, stop=3)]
    """
    result: list[TagSpan] = []
    kind: str | None = None
    start, open_span = 0, False
    for index, tag in enumerate([*tags, "O"]):
        continues = open_span and tag[:1] not in _NEVER_INSIDE and tag[2:] == kind
        if kind is not None and not continues:
            result.append(TagSpan(kind, start, index))
            kind = None
        if tag != "O" and not continues:
            kind, start = tag[2:], index
        open_span = tag != "O" and tag[0] not in _CLOSING
    return result


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
    for number, (predicted, true) in enumerate(zip(predictions, labels, strict=True), start=1):
        if len(predicted) != len(true):
            got = f"{len(predicted)} in sentence {number}"
            raise DataError("predictions", f"{len(true)} tags", got, "Give one tag per word.")
        ours, theirs = set(spans(predicted)), set(spans(true))
        right += len(ours & theirs)
        either += len(ours) + len(theirs)
    return Figure("span_f1", 200 * right / either if either else 100.0, "average:micro|spans:conlleval")
