"""Validation pairs out of training pairs, where the user gives none."""

from collections.abc import Sequence
from random import Random

from qkv.data.corpus import Pair
from qkv.errors import ConfigError, error_message


def hold_out(pairs: Sequence[Pair], count: int, seed: int) -> tuple[list[Pair], list[Pair]]:
    """Divide pairs so that no source text is on both sides.

    Args:
        pairs: all pairs; those that share a source text stay together.
        count: how many pairs to hold out, at least; a group of equal sources may exceed it.
        seed: decides which.

    Returns:
        The pairs to train on and the pairs held out, each in the order given.

    Raises:
        ConfigError: nothing would be left to train on, or nothing is to be held out.

    Example:
        >>> train, held = hold_out([Pair(c, c, n) for n, c in enumerate("abca", start=1)], 1, seed=0)
        >>> len(train) + len(held), {p.source for p in train} & {p.source for p in held}
        (4, set())
    """
    if count < 1:
        raise ConfigError(error_message("count", "at least 1 pair", str(count), "Hold out a few hundred pairs."))
    frequency: dict[str, int] = {}
    for pair in pairs:
        frequency[pair.source] = frequency.get(pair.source, 0) + 1
    random = Random(f"hold out:{seed}")
    held: set[str] = set()
    found = 0
    for source in sorted(frequency, key=lambda _: random.random()):
        if found >= count:
            break
        held.add(source)
        found += frequency[source]
    if found < count or found == len(pairs):
        got = f"{len(pairs):,} pairs with {len(frequency):,} distinct sources"
        raise ConfigError(error_message("count", f"more than {count:,} pairs to take from", got, "Hold out fewer."))
    return [p for p in pairs if p.source not in held], [p for p in pairs if p.source in held]
