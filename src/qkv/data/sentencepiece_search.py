"""How SentencePiece splits a text: into the likeliest pieces (unigram), or by merging pairs (byte pair encoding)."""

import ctypes
import re
from array import array
from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from typing import Protocol, final

_UNKNOWN_PENALTY = 10.0


class Splitter(Protocol):
    """Splits a text into pieces."""

    def split(self, text: str) -> list[str]:
        """Return the pieces, which together are the text; an unknown character is one of its own."""

    def knows(self, piece: str) -> bool:
        """Return whether it is one of the model's pieces that are used."""


@final
class LikeliestPieces:
    """Finds the pieces with the largest sum of scores.

    All sums are in single precision, as in SentencePiece, so that ties fall alike.

    Args:
        scores: the score of each piece.
        user_defined: pieces that are always taken.

    Source: Kudo 2018, "Subword Regularization", section 3.2.

    Example:
        >>> LikeliestPieces({"a": -1.0, "b": -1.0, "ab": -1.5}, ()).split("aba")
        ['ab', 'a']
    """

    __slots__ = ("_lengths", "_scores", "_unknown")

    def __init__(self, scores: Mapping[str, float], user_defined: Sequence[str]) -> None:
        """Keep the pieces by their first character."""
        self._unknown = _single(min(scores.values(), default=0.0) - _UNKNOWN_PENALTY)
        # Measured with version 0.2.3; in the source of 0.2.1 it is -0.1.
        always = {piece: _single(0.1 * (len(piece.encode()) - 1)) for piece in user_defined}
        self._scores = {**scores, **always}
        lengths: dict[str, set[int]] = {}
        for piece in self._scores:
            lengths.setdefault(piece[0], set()).add(len(piece))
        self._lengths = {first: sorted(some) for first, some in lengths.items()}

    def knows(self, piece: str) -> bool:
        """Return whether it is one of the model's pieces that are used."""
        return piece in self._scores

    def split(self, text: str) -> list[str]:
        """Return the pieces with the largest sum of scores."""
        size, scores = len(text), self._scores
        best, begins = array("f", bytes(4 * (size + 1))), [-1] * (size + 1)
        total = array("f", [0.0])
        for start in range(size):
            so_far = best[start]
            for length in self._lengths.get(text[start], ()):
                end = start + length
                if end > size:
                    break
                if (score := scores.get(text[start:end])) is not None:
                    total[0] = score + so_far
                    if begins[end] < 0 or total[0] > best[end]:
                        best[end], begins[end] = total[0], start
            if text[start] not in scores:
                total[0] = self._unknown + so_far
                if begins[start + 1] < 0 or total[0] > best[start + 1]:
                    best[start + 1], begins[start + 1] = total[0], start
        pieces, end = list[str](), size
        while end:
            pieces.append(text[begins[end] : end])
            end = begins[end]
        return pieces[::-1]


@final
class MergedPairs:
    """Merges, again and again, the two neighbors that make the piece with the largest score.

    Args:
        scores: the score of each piece.
        user_defined: pieces that are always taken, and never merged.
        unused: pieces that are split again where they were made.

    Source: Sennrich et al. 2016, "Neural machine translation of rare words with subword units", algorithm 1.

    Example:
        >>> MergedPairs({"a": 0.0, "b": 0.0, "ab": -1.0, "aba": -2.0}, (), ()).split("abab")
        ['ab', 'ab']
    """

    __slots__ = ("_fixed", "_scores", "_unused")

    def __init__(self, scores: Mapping[str, float], user_defined: Sequence[str], unused: Sequence[str]) -> None:
        """Keep the pieces."""
        self._scores, self._unused = dict(scores), frozenset(unused)
        longest_first = sorted(user_defined, key=len, reverse=True)
        self._fixed = re.compile("(" + ("|".join(map(re.escape, longest_first)) or "(?!)") + ")|.", re.DOTALL)

    def knows(self, piece: str) -> bool:
        """Return whether it is one of the model's pieces that are used."""
        return piece in self._scores and piece not in self._unused

    def split(self, text: str) -> list[str]:
        """Return the pieces that merging ends with."""
        matches = list(self._fixed.finditer(text))
        symbols, fixed = [match[0] for match in matches], [match[1] is not None for match in matches]
        count = len(symbols)
        before, after = list(range(-1, count - 1)), [*range(1, count), -1]
        agenda, made = list[tuple[float, int, int, int]](), dict[str, tuple[str, str]]()

        def propose(left: int, right: int) -> None:
            if left < 0 or right < 0 or fixed[left] or fixed[right]:
                return
            piece = symbols[left] + symbols[right]
            if (score := self._scores.get(piece)) is not None:
                heappush(agenda, (-score, left, right, len(piece)))
                if piece in self._unused:
                    made[piece] = symbols[left], symbols[right]

        for index in range(1, count):
            propose(index - 1, index)
        while agenda:
            _, left, right, length = heappop(agenda)
            # A symbol that was merged into another one is empty.
            if not symbols[left] or not symbols[right] or len(symbols[left]) + len(symbols[right]) != length:
                continue
            symbols[left], symbols[right] = symbols[left] + symbols[right], ""
            after[left] = after[right]
            if after[right] >= 0:
                before[after[right]] = left
            propose(before[left], left)
            propose(left, after[left])
        return _parts([symbol for symbol in symbols if symbol], made)


def _parts(symbols: list[str], made: Mapping[str, tuple[str, str]]) -> list[str]:
    """Split again the symbols that were made of two, as often as possible."""
    pieces, waiting = list[str](), symbols[::-1]
    while waiting:
        piece = waiting.pop()
        if piece in made:
            waiting += reversed(made[piece])
        else:
            pieces.append(piece)
    return pieces


def _single(number: float) -> float:
    """Round to single precision."""
    return ctypes.c_float(number).value
