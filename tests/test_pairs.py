"""Which cases stay in the fast suite."""

from collections.abc import Iterable
from itertools import combinations, product
from typing import Any

from tests.pairs import every_pair, fast, in_turn

AXES = ("abc", (1, 2), "vwxyz")


def split(cases: Iterable[Any]) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """The cases of the fast suite, and all."""
    cases = list(cases)
    return [case.values for case in cases if not case.marks], [case.values for case in cases]


def test_every_two_values_meet_in_few_cases() -> None:
    chosen, every = split(every_pair(product(*AXES)))
    assert every == list(product(*AXES))
    assert len(chosen) < len(every) / 1.5
    for one, other in combinations(range(3), 2):
        assert {(case[one], case[other]) for case in chosen} == set(product(AXES[one], AXES[other]))


def test_cases_in_turn_have_every_value() -> None:
    for number in (2, 3, 4):
        chosen, every = split(in_turn(*AXES, every=number))
        assert every == list(product(*AXES))
        assert abs(len(chosen) - len(every) / number) < number
        assert [{case[axis] for case in chosen} for axis in range(3)] == [set(axis) for axis in AXES]
    assert split(in_turn("abcd"))[0] == [("a",), ("c",)]


def test_of_a_list_those_named_are_fast() -> None:
    assert split(fast("abc", "b"))[0] == [("b",)]
