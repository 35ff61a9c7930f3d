"""Which cases are slow: of a product, all but those in which every two values meet; of a list, all but those named."""

from collections.abc import Iterable
from itertools import combinations
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


def fast(cases: Iterable[Any], *names: str) -> list[Any]:
    """Mark cases as slow, all but those named: of each class the cheapest that fails for what the test is there for."""
    cases = list(cases)
    assert set(names) <= set(map(_name, cases)), names
    return [pytest.param(case, marks=() if _name(case) in names else pytest.mark.slow) for case in cases]


def _name(value: Any) -> str:
    return value if isinstance(value, str) else str(getattr(value, "__name__", value))
