"""Hashed features of a text: words, word pairs, character n-grams."""

import zlib

from qkv.data.segments import bare, words

_SHORTEST, _LONGEST = 3, 6


def text_features(text: str, buckets: int) -> tuple[int, ...]:
    """Hash the words, the pairs of neighboring words, and the 3- to 6-character n-grams within words of a text.

    An unseen word still has n-grams that training saw. The hashes are the same on every machine.

    Args:
        text: any text.
        buckets: number of hash buckets; a few features share one.

    Returns:
        The distinct buckets, from 0 to buckets − 1, sorted.

    Source: Joulin et al. 2017, "Bag of Tricks for Efficient Text Classification", section 2.2 (pairs, hashing);
        Bojanowski et al. 2017, "Enriching Word Vectors with Subword Information", section 3.2 (n-grams with
        boundaries).

    Example:
        >>> len(text_features("a film", 1000))  # 2 words, 3 pairs with both ends, "<a>", and 10 n-grams of "<film>"
        16
    """
    bare_words = [bare(piece) for piece in words(text)]
    pairs = {f"{first} {second}" for first, second in zip(["", *bare_words], [*bare_words, ""], strict=True)}
    runs = {run for word in set(bare_words) for run in _runs(f"<{word}>")}
    named = [f"{kind}:{each}" for kind, some in (("word", bare_words), ("pair", pairs), ("run", runs)) for each in some]
    return tuple(sorted({zlib.crc32(each.encode()) % buckets for each in named}))


def _runs(word: str) -> list[str]:
    return [
        word[start : start + length]
        for length in range(_SHORTEST, _LONGEST + 1)
        for start in range(len(word) - length + 1)
    ]
