"""Sentences in which people introduce each other, and answers that repeat their names, which are always new.

A source such as "hello , my name is Tazukori and this is Belmo ." is answered by "nice to meet you , Tazukori and
Belmo !". Names are random syllables, so a model can only answer by copying.
"""

from collections.abc import Sequence
from itertools import pairwise
from random import Random

from qkv.data.corpus import Pair
from qkv.data.dates import Splits
from qkv.errors import ConfigError

FORMS = (
    ("hello , my name is {a} .", "hello {a} !"),
    ("my name is {a} and I come from {b} .", "{a} , how is {b} this time of year ?"),
    ("this is {a} , a friend of {b} .", "{b} has told me about you , {a} ."),
    ("{a} and {b} are waiting for {c} .", "{c} , come ! {a} and {b} are here ."),
    ("have you seen {a} ? {b} asks for {a} .", "I will tell {a} that {b} asks ."),
    ("the train from {a} to {b} is late , says {c} .", "{c} says that the train to {b} left {a} late ."),
)
"""Sources and their answers; a, b and c are names."""

_ONSETS = ("b", "d", "f", "g", "h", "k", "l", "m", "n", "p", "r", "s", "t", "v", "w", "z", "br", "st", "tr", "kl")
_VOWELS = ("a", "e", "i", "o", "u", "ai", "ou")
_CODAS = ("", "", "", "n", "r", "l", "s", "k")
_MOST = 200_000


def splits(train: int, validation: int, test: int, seed: int) -> Splits:
    """Generate three sets of pairs such that no name of one occurs in another.

    Args:
        train: number of training pairs.
        validation: number of validation pairs.
        test: number of test pairs.
        seed: random seed.

    Returns:
        The three sets, each numbered from 1.

    Raises:
        ConfigError: a number is negative, or there are not enough names.

    Example:
        >>> sets = splits(2, 1, 1, seed=0)
        >>> [len(part) for part in sets]
        [2, 1, 1]
    """
    counts = (train, validation, test)
    if min(counts) < 0 or sum(counts) > _MOST:
        hint = "Generate fewer."
        raise ConfigError("train", f"from 0 to {_MOST:,} pairs in total", f"{counts}", hint)
    random = Random(f"introductions:{seed}")
    names = _names(3 * sum(counts), random)
    ends = [3 * sum(counts[:start]) for start in range(4)]
    return Splits(*(_pairs(names[start:stop], random) for start, stop in pairwise(ends)))


def _pairs(names: Sequence[str], random: Random) -> list[Pair]:
    """Build one pair from each three names."""
    pairs = []
    for line, start in enumerate(range(0, len(names), 3), start=1):
        a, b, c = names[start : start + 3]
        source, target = FORMS[int(random.random() * len(FORMS))]
        pairs.append(Pair(source.format(a=a, b=b, c=c), target.format(a=a, b=b, c=c), line))
    return pairs


def _names(count: int, random: Random) -> list[str]:
    """Generate distinct names of two to four syllables."""
    distinct: dict[str, None] = {}
    while len(distinct) < count:
        syllables = 2 + int(random.random() * 3)
        name = "".join(_pick(part, random) for _ in range(syllables) for part in (_ONSETS, _VOWELS, _CODAS))
        distinct.setdefault(name.capitalize())
    return list(distinct)


def _pick(parts: Sequence[str], random: Random) -> str:
    return parts[int(random.random() * len(parts))]
