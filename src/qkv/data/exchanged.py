"""Find pairs whose source and target are exchanged, by the words or characters of each side in the other lines.

The direction of a line is inferred from its words in the other lines. A line is reported only if source and target
each point in the wrong direction with odds of at least a hundred to one, and most of their known words are at least
five times as frequent on the opposite side elsewhere. Pairs in one language, copies, names, code and untranslated lines
are therefore never reported; pairs in two languages, or in two notations, can be.

Source: the directions are those of a mixture of two naive Bayes models, learned with hard expectation maximization from
several starts, each line judged by the other lines only.
"""

import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from qkv.data.corpus import Pair
from qkv.errors import brief

_LEAST = 20
"""The number of pairs below which none is judged."""
JUDGED = 20_000
"""The most pairs that are judged by default."""
_LEARNED_FROM = 2_000
"""The most pairs from which directions are first learned, before the others are classified."""
_CHARACTERS = 300
"""The length at which texts are cut before they are compared."""
_STARTS, _ROUNDS = 4, 30
_SMOOTHING = 0.5
_SIDE_ODDS, _ODDS = float(np.log(100)), float(np.log(1e6))
"""What each side of a line must exceed for its direction to be clear, and both together."""
_TYPICAL = float(np.log(5))
"""A word is typical of a side if it is five times as frequent there."""
_CLEAR = 0.6
"""Share of the lines whose direction must be clear, and of the words of an exchanged line that must be typical."""
_MARKED = 0.9
"""Share of the exchanged lines that a mark of their direction is in, if there is one."""
_BOTH = 0.1
"""With a larger share of other pairs in the other direction, there is no usual one."""
_KNOWN = 2
"""A word that occurs in fewer other lines says nothing about its side."""
_NAMED = 5
_WORD = re.compile(r"\w+|[^\w\s]")
_DIGITS = re.compile(r"\d")

Floats = NDArray[np.float64]
Directions = NDArray[np.int64]
"""The direction of each line: 1 or -1, or 0 if it is unknown."""


def words_of(text: str) -> frozenset[str]:
    """Return the words and marks of a text, in lower case."""
    return frozenset(_WORD.findall(text[:_CHARACTERS].lower()))


def bigrams_of(text: str) -> frozenset[str]:
    """Return the character bigrams of a text, with every digit replaced by 0."""
    body = _DIGITS.sub("0", text[:_CHARACTERS].strip())
    return frozenset(body[at : at + 2] for at in range(len(body) - 1))


def find_exchanged(pairs: Sequence[Pair], others: Sequence[Pair] = (), most: int = JUDGED) -> tuple[list[Pair], int]:
    """Find pairs whose source and target seem exchanged.

    Args:
        pairs: the pairs.
        others: further pairs of the same kind, such as those to train on beside those to validate on.
        most: how many pairs are judged; of more, these are taken at equal intervals.

    Returns:
        Those of `pairs` whose direction is not the one of most pairs and others, and how many of `pairs` were judged.
        None if the two sides do not differ clearly, if the pairs are few, or if a mark in the source tells the
        direction or every pair occurs in both directions, as in data that is meant for both.

    Example:
        >>> right = [Pair(f"ein Hund und {n} Katzen", f"a dog and {n} cats", n) for n in range(1, 40)]
        >>> wrong = [Pair("eine Katze", "a cat", 40), Pair("a dog and a cat", "ein Hund und eine Katze", 41)]
        >>> [pair.line for pair in find_exchanged([*right, *wrong])[0]]
        [41]
    """
    sample = _spread(pairs, most)
    other_sample = _spread(others, _LEARNED_FROM)
    if len(sample) + len(other_sample) >= _LEAST:
        for features in (words_of, bigrams_of):
            parts = _split([*sample, *other_sample], features)
            if parts is not None:
                usual, rows = parts
                exchanged = [sample[row] for row in rows if row < len(sample)]
                others_exchanged = len(rows) - len(exchanged) > _BOTH * len(other_sample)
                is_meant = others_exchanged or not exchanged or _is_meant(usual, exchanged, pairs)
                return [] if is_meant else exchanged, len(sample)
    return [], len(sample)


def exchanged_message(pairs: Sequence[Pair], others: Sequence[Pair] = ()) -> str | None:
    """Say which pairs have their source and target exchanged, and what to do; None if none seems so.

    Args:
        pairs, others: as for `find_exchanged`.
    """
    exchanged, judged = find_exchanged(pairs, others)
    if not exchanged:
        return None
    first, *more = exchanged
    also = f", and in {len(more):,} more of {judged:,} lines" if more else ""
    also += f" such as {', '.join(f'{pair.line:,}' for pair in more[:_NAMED])}" if len(more) > _NAMED else ""
    return (
        f'source and target seem exchanged in line {first.line:,}, where "{brief(first.source)}" has the target '
        f'"{brief(first.target)}"{also}. Exchange them there, unless both directions are meant.'
    )


def _spread(pairs: Sequence[Pair], most: int) -> Sequence[Pair]:
    """Return at most so many pairs, at equal distances."""
    return pairs[:: max(1, -(-len(pairs) // most))]


@final
class _Table:
    """Which words each side of each line has: one entry for each line, side and word."""

    def __init__(self, pairs: Sequence[Pair], features: Callable[[str], frozenset[str]]) -> None:
        index: dict[str, int] = defaultdict(lambda: len(index))
        words, ends = array("i"), array("i", [0])
        for pair in pairs:
            for text in (pair.source, pair.target):
                words.extend(index[word] for word in features(text))
                ends.append(len(words))
        sizes = np.diff(np.array(ends))
        self.words = np.array(words)
        self.rows = np.repeat(np.arange(2 * len(pairs), dtype=np.int32) // 2, sizes)
        self.signs = np.repeat(np.tile(np.array([1, -1], dtype=np.int8), len(pairs)), sizes)
        self.lines, self.size = len(pairs), len(index)

    def counts(self, directions: Directions) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return for each entry how many other lines have its word on the first side, and how many on the second."""
        sides = self.signs * directions[self.rows]
        first = np.bincount(self.words, sides > 0, self.size)[self.words] - (sides > 0)
        second = np.bincount(self.words, sides < 0, self.size)[self.words] - (sides < 0)
        return first, second

    def evidence(self, directions: Directions) -> Floats:
        """Return the log odds of each entry that its line has the usual direction, by the other lines only."""
        first, second = self.counts(directions)
        odds: Floats = np.log((first + _SMOOTHING) / (second + _SMOOTHING))
        return self.signs * odds

    def sums(self, values: Floats, sign: int) -> NDArray[Any]:
        """Add the values of each line's entries on one side."""
        totals: NDArray[Any] = np.bincount(self.rows, np.where(self.signs == sign, values, 0.0), minlength=self.lines)
        return totals

    def learned(self, directions: Directions) -> tuple[Directions, float]:
        """Return the directions that agree with each other best, from these on, and how clear they are."""
        total = 0.0
        for _ in range(_ROUNDS):
            odds = np.bincount(self.rows, self.evidence(directions), minlength=self.lines)
            total, before = float(np.abs(odds).sum()), directions
            directions = np.sign(odds).astype(np.int64)
            if np.array_equal(before, directions):
                break
        return directions, total

    def starts(self) -> Iterator[Directions]:
        """Yield directions to begin with: as the lines are, and those of each of the most frequent words."""
        yield np.ones(self.lines, dtype=np.int64)
        for word in np.argsort(-np.bincount(self.words, minlength=self.size), kind="stable")[:_STARTS]:
            at = self.words == word
            directions = np.zeros(self.lines, dtype=np.int64)
            np.add.at(directions, self.rows[at], self.signs[at])
            yield directions

    def clear(self, directions: Directions, sign: int) -> NDArray[np.bool_]:
        """Return the lines whose two sides both show a direction: by their odds, and by most of their known words."""
        first, second = self.counts(directions)
        known = (first + second >= _KNOWN).astype(np.float64)
        odds = sign * self.evidence(directions)
        typical = known * (odds > _TYPICAL)
        clear: NDArray[np.bool_] = self.sums(odds, 1) + self.sums(odds, -1) > _ODDS
        for side in (1, -1):
            clear &= self.sums(odds, side) > _SIDE_ODDS
            clear &= self.sums(typical, side) > _CLEAR * self.sums(known, side)
        return clear


def _directions(pairs: Sequence[Pair], features: Callable[[str], frozenset[str]]) -> tuple[_Table, Directions]:
    """Learn the direction of each pair: first of some of them, from several starts."""
    stride = max(1, -(-len(pairs) // _LEARNED_FROM))
    table = _Table(pairs[::stride], features)
    directions, _ = max((table.learned(start) for start in table.starts()), key=lambda learned: learned[1])
    if stride == 1:
        return table, directions
    start = np.zeros(len(pairs), dtype=np.int64)
    start[::stride] = directions
    table = _Table(pairs, features)
    return table, table.learned(start)[0]


def _split(pairs: list[Pair], features: Callable[[str], frozenset[str]]) -> tuple[list[Pair], list[int]] | None:
    """Return the pairs in the usual direction and the rows of exchanged ones; None if most show no clear direction."""
    table, directions = _directions(pairs, features)
    if directions.sum() < 0:
        directions = -directions
    usual = table.clear(directions, 1)
    # Judged by the usual lines alone, so that a third language that has one direction only is not taken for exchanged.
    exchanged = table.clear(np.maximum(directions, 0), -1)
    if (usual | exchanged).sum() < _CLEAR * len(pairs):
        return None
    return [pairs[row] for row in np.flatnonzero(usual)], np.flatnonzero(exchanged).tolist()


def _is_meant(usual: Sequence[Pair], exchanged: Sequence[Pair], pairs: Sequence[Pair]) -> bool:
    """Whether the data is for both directions: a mark in the source tells which, or each pair occurs in both."""
    both = {text for pair in exchanged for text in (pair.source, pair.target)}
    counts = Counter((pair.source, pair.target) for pair in pairs if pair.source in both and pair.target in both)
    mirrored = sum(counts[pair.source, pair.target] == counts[pair.target, pair.source] for pair in exchanged)
    most = _MARKED * len(exchanged)
    words = Counter(word for pair in exchanged for word in set(pair.source.split()))
    marks = {word for word, count in words.items() if count >= most}
    for pair in usual if marks else ():
        marks.difference_update(pair.source.split())
    for pair in pairs if marks else ():
        marks.difference_update(pair.target.split())
    return mirrored >= most or bool(marks)
