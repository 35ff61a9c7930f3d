"""Sequences of symbols and their reversal: the smallest task that attention solves exactly."""

from random import Random
from string import ascii_lowercase

from qkv.data.corpus import Pair
from qkv.errors import ConfigError


def generate(
    count: int, seed: int, *, symbols: str = ascii_lowercase, shortest: int = 1, longest: int = 20
) -> list[Pair]:
    """Generate sequences with their reversal; all sources are distinct, so any two slices of the result are disjoint.

    Args:
        count: number of pairs.
        seed: random seed; the same seed always gives the same pairs.
        symbols: the characters of the sequences; each one is a symbol.
        shortest: minimum number of symbols; lengths are uniform if there are enough sequences.
        longest: maximum number of symbols.

    Returns:
        Pairs of a text and the reversed text, numbered from 1.

    Raises:
        ConfigError: `count` exceeds half the number of sequences of `longest` symbols, or the lengths are invalid.

    Example:
        >>> pair = generate(1, seed=0, symbols="ab", shortest=4, longest=4)[0]
        >>> pair.source == pair.target[::-1], len(pair.source)
        (True, 4)
    """
    if not 1 <= shortest <= longest:
        hint = "Give 1 <= shortest <= longest."
        raise ConfigError("shortest", f"a length from 1 to {longest}", str(shortest), hint)
    if not symbols or len(set(symbols)) != len(symbols):
        raise ConfigError("symbols", "distinct characters", repr(symbols), "Give each symbol once.")
    # Half of the number of longest sequences: beyond that, finding new ones at random would take long.
    limit = (len(symbols) ** longest + 1) // 2
    if not 0 <= count <= limit:
        hint = "Generate fewer, or longer ones."
        raise ConfigError("count", f"a number of pairs from 0 to {limit:,}", f"{count:,}", hint)
    random = Random(f"reverse:{seed}")
    pairs: dict[str, None] = {}
    while len(pairs) < count:
        length = shortest + int(random.random() * (longest - shortest + 1))
        pairs.setdefault("".join(symbols[int(random.random() * len(symbols))] for _ in range(length)))
    return [Pair(text, text[::-1], line) for line, text in enumerate(pairs, start=1)]
