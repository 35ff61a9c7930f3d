"""What stands in a text, as numbers of a hash table: words, pairs of words, runs of characters."""

import zlib

from qkv.data.segments import bare, words

_SHORTEST, _LONGEST = 3, 6


def text_features(text: str, buckets: int) -> tuple[int, ...]:
    """Number the words, the pairs of neighboring words, and the runs of 3 to 6 characters within words of a text.

    A word that training never saw still has runs that it did see. The numbers are the same on every machine.

    Args:
        text: any text.
        buckets: how many numbers there are; a few features share one.

    Returns:
        The different numbers, from 0 to buckets − 1, sorted.

    Source: Joulin et al. 2017, "Bag of Tricks for Efficient Text Classification", section 2.2 (pairs, hashing);
        Bojanowski et al. 2017, "Enriching Word Vectors with Subword Information", section 3.2 (runs between marks).

    Example:
        >>> len(text_features("a film", 1000))  # 2 words, 3 pairs with both ends, "<a>", and 10 runs of "<film>"
        16
    """
    found = [bare(piece) for piece in words(text)]
    pairs = {f"{first} {second}" for first, second in zip(["", *found], [*found, ""], strict=True)}
    runs = {run for word in set(found) for run in _runs(f"<{word}>")}
    named = [f"{kind}:{each}" for kind, some in (("word", found), ("pair", pairs), ("run", runs)) for each in some]
    return tuple(sorted({zlib.crc32(each.encode()) % buckets for each in named}))


def _runs(word: str) -> list[str]:
    return [
        word[start : start + length]
        for length in range(_SHORTEST, _LONGEST + 1)
        for start in range(len(word) - length + 1)
    ]
