"""Sequences of symbols and the same sequences backwards: the smallest task that attention solves exactly."""

from random import Random
from string import ascii_lowercase

from qkv.data.corpus import Pair
from qkv.errors import ConfigError, error_message


def generate(
    count: int, seed: int, *, symbols: str = ascii_lowercase, shortest: int = 1, longest: int = 20
) -> list[Pair]:
    """Generate sequences with their reversal; any two slices of the result are disjoint sets.

    Args:
        count: how many pairs; no two have the same source.
        seed: decides which: the same seed always gives the same pairs.
        symbols: the characters that sequences are made of; each one is a symbol.
        shortest: how many symbols a sequence has at least; lengths are uniform where there are enough sequences.
        longest: how many it has at most.

    Returns:
        Pairs of a text and the same text backwards, numbered from 1.

    Raises:
        ConfigError: fewer than `count` sequences are possible at half of the ones of `longest` symbols, or sizes that
            leave nothing.

    Example:
        >>> pair = generate(1, seed=0, symbols="ab", shortest=4, longest=4)[0]
        >>> pair.source == pair.target[::-1], len(pair.source)
        (True, 4)
    """
    if not 1 <= shortest <= longest:
        hint = "Give 1 <= shortest <= longest."
        raise ConfigError(error_message("shortest", f"a length from 1 to {longest}", str(shortest), hint))
    if not symbols or len(set(symbols)) != len(symbols):
        raise ConfigError(error_message("symbols", "different characters", repr(symbols), "Name each symbol once."))
    # Half of what is possible with the longest ones alone: beyond it, drawing new ones would take long.
    most = (len(symbols) ** longest + 1) // 2
    if not 0 <= count <= most:
        hint = "Generate fewer, or longer ones."
        raise ConfigError(error_message("count", f"a number of pairs from 0 to {most:,}", f"{count:,}", hint))
    random = Random(f"reverse:{seed}")
    found: dict[str, None] = {}
    while len(found) < count:
        length = shortest + int(random.random() * (longest - shortest + 1))
        found.setdefault("".join(symbols[int(random.random() * len(symbols))] for _ in range(length)))
    return [Pair(text, text[::-1], line) for line, text in enumerate(found, start=1)]
