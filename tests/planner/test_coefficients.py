"""What the tables of measured processors predict, compared with each other."""

import pytest
import torch
from benchmarks.engine.mechanisms import Size
from benchmarks.fit import DIRECTIONS, ON_A_LINE, VARIANTS, Variant, kinds_of_work, make
from tests.pairs import in_turn

from qkv.engine.problem import Problem
from qkv.planner import costs
from qkv.planner.registry import ALGORITHMS

APART = 12.0
"""Processors of the same years differ less. A table that has a kind of work for free differs more, and is believed."""


def problem_of(variant: Variant, n: int, width: int, direction: str) -> Problem:
    size = Size((1, 8), n, n, 1 if variant.mechanism in ON_A_LINE else width, width)
    return make(variant, size, direction).plan().problem


@pytest.mark.parametrize(("variant", "direction"), in_turn(VARIANTS, DIRECTIONS, every=8), ids=str)
def test_no_table_has_for_free_what_another_knows_to_take_long(
    variant: Variant, direction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(costs, "tables", costs.all_tables)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        problems = [problem_of(variant, n, width, direction) for n, width in ((64, 64), (256, 256), (700, 64))]
    finally:
        torch.set_num_threads(threads)
    for problem in problems:
        for algorithm in ALGORITHMS:
            if algorithm.refuses(problem) is None:
                predicted = costs.times(problem, algorithm)
                assert max(predicted) <= APART * min(predicted), (algorithm.name, problem.queries, predicted)


def test_every_table_knows_every_kind_of_work() -> None:
    kinds = kinds_of_work()
    for table in costs.all_tables():
        for name, directions in table.coefficients.items():
            for direction, known in directions.items():
                assert kinds[name, direction] <= set(known), (table.name, name, direction)
