"""IBM Model 1: which source word a target word translates, from the pairs alone."""

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import final

import numpy as np

from qkv.metrics.alignment import Link

ROUNDS = 10
"""Rounds of expectation maximization; later ones change links of rare words alone."""

SentencePair = tuple[Sequence[str], Sequence[str]]


def link_probabilities(pairs: Sequence[SentencePair]) -> list[np.ndarray]:
    """Return how likely each target word translates each source word of its sentence.

    Args:
        pairs: source words and target words.

    Returns:
        For each pair (target words, source words) in float64; rows sum to one. Equal words of a source share equally.

    Source: Brown et al. 1993, "The Mathematics of Statistical Machine Translation", section 4.2, without an empty word.

    Example:
        >>> pairs = [("das Haus".split(), "the house".split()), ("das Buch".split(), "the book".split())]
        >>> link_probabilities(pairs)[1].argmax(1).tolist()  # "the" is "das", "book" is "Buch"
        [0, 1]
    """
    if not pairs:
        return []
    sources, targets = ({word: number for number, word in enumerate(_words(pairs, side))} for side in (0, 1))
    shapes = [(len(target), len(source)) for source, target in pairs]
    # One entry for each target position of all pairs and source word of its pair.
    positions = np.repeat(
        np.arange(sum(rows for rows, _ in shapes)), [wide for rows, wide in shapes for _ in range(rows)]
    )
    source_words = np.array([sources[word] for source, target in pairs for _ in target for word in source], np.int64)
    target_words = np.array([targets[word] for source, target in pairs for word in target for _ in source], np.int64)
    words, entry = np.unique(source_words * len(targets) + target_words, return_inverse=True)
    source_of_entry = words // len(targets)
    translation = np.ones(len(words))
    for _ in range(ROUNDS):
        weight = translation[entry]
        link = weight / np.bincount(positions, weight)[positions]
        count = np.bincount(entry, link)
        translation = count / np.bincount(source_of_entry, count)[source_of_entry]
    ends = np.cumsum([rows * wide for rows, wide in shapes])[:-1]
    return [part.reshape(shape) for part, shape in zip(np.split(link, ends), shapes, strict=True)]


@final
class ExpectedLinks:
    """The links between words of sentence pairs that are likely from the pairs alone, to judge the links of a model.

    Args:
        pairs: source words and target words.

    Example:
        >>> pairs = [("das Haus".split(), "the house".split()), ("das Buch".split(), "the book".split())]
        >>> expected = ExpectedLinks(pairs)
        >>> round(expected.agreement([{(0, 0), (1, 1)}] * 2)), round(expected.agreement([{(1, 0), (0, 1)}] * 2))
        (1, 0)
    """

    signature = "links:ibm1|words:sqrt"

    def __init__(self, pairs: Sequence[SentencePair]) -> None:
        self._probabilities = link_probabilities(pairs)
        self._targets = [target for _, target in pairs]

    def agreement(self, links: Sequence[set[Link]]) -> float:
        """Return the mean probability of links; a target word that occurs n times counts √n times.

        If every occurrence counted, articles and marks would decide; if every word counted once, they would not count.

        Args:
            links: of each pair, source word first.
        """
        by_word = defaultdict[str, list[float]](list)
        for linked, target, probability in zip(links, self._targets, self._probabilities, strict=True):
            for s, t in linked:
                by_word[target[t]].append(probability[t, s])
        weights = [len(probabilities) ** 0.5 for probabilities in by_word.values()]
        return fmean(map(fmean, by_word.values()), weights) if by_word else 0.0


def _words(pairs: Sequence[SentencePair], side: int) -> dict[str, None]:
    return dict.fromkeys(word for pair in pairs for word in pair[side])
