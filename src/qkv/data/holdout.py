"""Splitting validation pairs off the training pairs, if the user gives none."""

from collections.abc import Sequence
from random import Random

from qkv.data.corpus import Pair
from qkv.errors import ConfigError, error_message


def hold_out(pairs: Sequence[Pair], count: int, seed: int) -> tuple[list[Pair], list[Pair]]:
    """Split pairs so that no source text is on both sides.

    Args:
        pairs: all pairs; those that share a source text stay together.
        count: minimum number of pairs to hold out; a group of equal sources can exceed it.
        seed: random seed.

    Returns:
        The training pairs and the held-out pairs, each in the given order.

    Raises:
        ConfigError: nothing would remain for training, or nothing is held out.

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
        hint = "Hold out fewer, or give pairs to validate on (--valid-data)."
        raise ConfigError(error_message("count", f"more than {count:,} pairs with distinct sources", got, hint))
    return [p for p in pairs if p.source not in held], [p for p in pairs if p.source in held]
