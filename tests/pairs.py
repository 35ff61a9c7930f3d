"""Which cases are slow: of a product, all but those in which every two values meet, or all but some in turn; of a list,
all but those named."""

from collections.abc import Iterable
from itertools import combinations, product
from typing import Any

import pytest


def every_pair(cases: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Mark cases as slow, as many as leave every pair of values to the others.

    What goes wrong where two values meet is seen by `make test`, and where only three do by `make test-all`.

    Args:
        cases: the values of several arguments, such as `product(MASKS, DTYPES, BACKENDS)`; each has a name of its own.
    """
    cases = list(cases)
    names = [[_name(value) for value in case] for case in cases]
    pairs = [set(combinations(enumerate(case), 2)) for case in names]
    missing, chosen = set[Any]().union(*pairs), set[int]()
    while missing:
        best = max(range(len(cases)), key=lambda turn: len(pairs[turn] & missing))
        missing -= pairs[best]
        chosen.add(best)
    return [
        pytest.param(*case, marks=() if turn in chosen else pytest.mark.slow, id="-".join(names[turn]))
        for turn, case in enumerate(cases)
    ]


def in_turn(*axes: Iterable[Any], every: int = 2) -> list[Any]:
    """Mark combinations of values as slow, all but one in `every`, starting one later for each value of an axis.

    Each value stays in the fast suite, with others for each value of another axis. For what costs seconds, or where
    the values of an axis are kinds of one thing that differ little.

    Args:
        axes: the values of each argument, of at least one of which there are `every`.
        every: of how many combinations one is fast.
    """
    found = []
    for case in product(*(enumerate(axis) for axis in axes)):
        turn = sum(place for place, _ in case)
        found.append(pytest.param(*(value for _, value in case), marks=pytest.mark.slow if turn % every else ()))
    return found


def fast(cases: Iterable[Any], *names: str) -> list[Any]:
    """Mark cases as slow, all but those named: of each class the cheapest that fails for what the test is there for."""
    cases = list(cases)
    assert set(names) <= set(map(_name, cases)), names
    return [pytest.param(case, marks=() if _name(case) in names else pytest.mark.slow) for case in cases]


def _name(value: Any) -> str:
    return value if isinstance(value, str) else str(getattr(value, "__name__", value))
