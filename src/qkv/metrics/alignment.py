"""Word alignments: links in the Pharaoh format, and the error rate against manual alignments."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from qkv.errors import DataError, Place, setting
from qkv.metrics.figure import Figure, require_same_length

Link = tuple[int, int]

_SIGNATURE = "links:word|average:corpus"
_LINK = re.compile(r"([0-9]{1,9})([-p])([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class Links:
    """The links of one sentence pair, each a source and a target position from 0.

    Args:
        sure: links that must be found.
        possible: links that may be found, including every sure one.

    Example:
        >>> parse_links("0-0 1p2").possible == {(0, 0), (1, 2)}
        True
    """

    sure: frozenset[Link]
    possible: frozenset[Link]


def parse_links(text: str, where: str = "links", first: int = 0) -> Links:
    """Read one line of links: "3-4" is a sure link, "3p4" a possible one.

    Args:
        text: links separated by white space; can be empty.
        where: the line's name in messages, as "test.align:17".
        first: the number of a sentence's first word in the text, 0 or 1.

    Returns:
        The links, whose positions count from 0.

    Raises:
        DataError: the line contains anything else, or a number below the first.

    Example:
        >>> sorted(parse_links("0-0 2-1 1p2").sure)
        [(0, 0), (2, 1)]
    """
    sure: set[Link] = set()
    possible: set[Link] = set()
    for item in text.split():
        match = _LINK.fullmatch(item)
        if match is None:
            got = ascii(item) if len(item) <= 40 else f"{item[:37]!a}..."
            hint = "Write SOURCE-TARGET for a sure link and SOURCEpTARGET for a possible one, counted from 0."
            raise DataError(where, "links like 3-4 or 3p4", got, hint)
        link = (int(match[1]) - first, int(match[3]) - first)
        if min(link) < 0:
            hint = "If the file counts words from 0, omit " + setting("gold_from") + "; if not, correct this link."
            raise DataError(where, f"numbers of words from {first}", item, hint)
        possible.add(link)
        if match[2] == "-":
            sure.add(link)
    return Links(frozenset(sure), frozenset(possible))


def parse_alignments(lines: Iterable[str], name: str, first: int = 0) -> list[Links]:
    """Read the lines of a file of links.

    Args:
        lines: one per sentence pair.
        name: the file's name, for messages.
        first: the number of a sentence's first word in the file, 0 or 1.

    Returns:
        The links, line by line.

    Raises:
        DataError: a line is invalid; the message gives its number.

    Example:
        >>> len(parse_alignments(["0-0 1p1", ""], "test.align"))
        2
    """
    return [parse_links(line, Place(name, number), first) for number, line in enumerate(lines, start=1)]


def expect_inside(references: Sequence[Links], sizes: Sequence[tuple[int, int]], name: str) -> None:
    """Refuse links to words that a sentence does not have.

    Args:
        references: the links of each sentence pair.
        sizes: the number of source and of target words of each.
        name: the file's name, for messages.

    Raises:
        DataError: a link lies outside its sentences; the message gives its line, and says if the whole file seems to
            count words from 1.

    Example:
        >>> expect_inside([parse_links("0-0 1-2")], [(2, 3)], "test.align")
    """
    for number, (links, (source, target)) in enumerate(zip(references, sizes, strict=True), start=1):
        outside = sorted(link for link in links.possible if link[0] >= source or link[1] >= target)
        if outside:
            hint = "Are these the manual alignments of these sentences, with the source word first?"
            if lacks_first_words(references):
                hint = "No link of the file has a 0: if it counts words from 1, give " + setting("gold_from", "1") + "."
            expected = f"links to {source} source and {target} target words, counted from 0"
            raise DataError(Place(name, number), expected, "{}-{}".format(*outside[0]), hint)


def lacks_first_words(references: Sequence[Links]) -> bool:
    """Return whether there are links, and none of them has the number 0, as in a file that counts words from 1.

    Example:
        >>> lacks_first_words([parse_links("1-1 2-3")]), lacks_first_words([parse_links("1-1 2-0")])
        (True, False)
    """
    return min((min(link) for alignment in references for link in alignment.possible), default=0) > 0


def alignment_error_rate(hypotheses: Sequence[Iterable[Link]], references: Sequence[Links]) -> Figure:
    """Compute the alignment error rate AER = 1 - (|A & S| + |A & P|) / (|A| + |S|) over all pairs.

    Args:
        hypotheses: the predicted links A of each sentence pair.
        references: the sure links S and the possible ones P, which include S, of each sentence pair.

    Returns:
        The figure "alignment_error_rate" in percent, lower is better.

    Raises:
        DataError: the numbers of sentence pairs differ, or there is no link.

    Source: Och and Ney 2003, "A systematic comparison of various statistical alignment models", section 5.

    Example:
        >>> alignment_error_rate([{(0, 0), (1, 1)}], [parse_links("0-0 1p1")]).value
        0.0
    """
    counts = _count(hypotheses, references)
    value = 1 - _share("links", counts.in_sure + counts.in_possible, counts.linked + counts.sure)
    return Figure("alignment_error_rate", 100 * value, _SIGNATURE, higher_is_better=False)


def alignment_precision(hypotheses: Sequence[Iterable[Link]], references: Sequence[Links]) -> Figure:
    """Compute the share of predicted links that are possible: |A & P| / |A|, over all pairs.

    Args:
        hypotheses: the predicted links A of each sentence pair.
        references: the manual alignments of each sentence pair.

    Returns:
        The figure "alignment_precision" in percent.

    Raises:
        DataError: the numbers of sentence pairs differ, or no link is predicted.

    Example:
        >>> alignment_precision([{(0, 0), (1, 2)}], [parse_links("0-0 1p1")]).value
        50.0
    """
    counts = _count(hypotheses, references)
    return Figure("alignment_precision", 100 * _share("hypotheses", counts.in_possible, counts.linked), _SIGNATURE)


def alignment_recall(hypotheses: Sequence[Iterable[Link]], references: Sequence[Links]) -> Figure:
    """Compute the share of sure links that are predicted: |A & S| / |S|, over all pairs.

    Args:
        hypotheses: the predicted links A of each sentence pair.
        references: the manual alignments of each sentence pair.

    Returns:
        The figure "alignment_recall" in percent.

    Raises:
        DataError: the numbers of sentence pairs differ, or there is no sure link.

    Example:
        >>> alignment_recall([{(0, 0), (1, 2)}], [parse_links("0-0 1p1")]).value
        100.0
    """
    counts = _count(hypotheses, references)
    return Figure("alignment_recall", 100 * _share("references", counts.in_sure, counts.sure), _SIGNATURE)


class _Counts(NamedTuple):
    linked: int
    sure: int
    in_sure: int
    in_possible: int


def _count(hypotheses: Sequence[Iterable[Link]], references: Sequence[Links]) -> _Counts:
    require_same_length(hypotheses, references)
    linked = sure = in_sure = in_possible = 0
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        links = frozenset(hypothesis)
        linked += len(links)
        sure += len(reference.sure)
        in_sure += len(links & reference.sure)
        in_possible += len(links & (reference.possible | reference.sure))
    return _Counts(linked, sure, in_sure, in_possible)


def _share(argument: str, part: int, total: int) -> float:
    if not total:
        raise DataError(argument, "at least one link", "none", "There is nothing to measure.")
    return part / total
