"""The contract over several processes: every score, normalizer and mask, judged as one process is."""

from collections.abc import Iterator
from itertools import cycle, product
from typing import Any

import pytest
import torch
from tests.contract.criterion import failed
from tests.contract.judge import Answer, Case, Trial, paired
from tests.contract.mechanisms import DTYPES, KEYS, MASK, NORMALIZER, QUERIES, SCORE, SCORES
from tests.distributed.group import Processes
from tests.distributed.work import assembled

from qkv.distributed import Layout

SPLITS: dict[int, list[tuple[tuple[int, ...], tuple[int, ...]]]] = {
    2: [((16, 16), (20, 20)), ((5, 27), (31, 9)), ((0, 32), (40, 0))],
    3: [((11, 10, 11), (13, 14, 13)), ((0, 25, 7), (19, 0, 21))],
    4: [((8, 8, 8, 8), (10, 10, 10, 10)), ((1, 0, 20, 11), (0, 33, 2, 5))],
    8: [((4,) * 8, (5,) * 8), ((0, 9, 1, 0, 3, 7, 12, 0), (7, 0, 2, 2, 0, 20, 0, 9))],
}
"""Positions of queries and keys by process, even, uneven and empty."""
CONFIGURATIONS = [
    (size, layout, method, split)
    for size in (2, 3, 4)
    for split in range(len(SPLITS[size]))
    for layout in ("contiguous", "zigzag")
    for method in ("auto", "gather")
]


class SharedTrial(Trial):
    """A case whose backend "processes" is a group."""

    processes: Processes
    layout: str
    method: str
    counts: tuple[tuple[int, ...], tuple[int, ...]]

    @classmethod
    def of(cls, case: Case, turn: int, processes: Processes, layout: str, method: str, counts: Any) -> "SharedTrial":
        trial = cls(case, turn)
        trial.processes, trial.layout, trial.method, trial.counts = processes, layout, method, counts
        return trial

    def at(self, turn: int) -> Trial:
        if turn == self.turn:
            return self
        return SharedTrial.of(self.case, turn, self.processes, self.layout, self.method, self.counts)

    def answer(self, backend: str, dtype: torch.dtype) -> Answer:
        if backend != "processes":
            return super().answer(backend, dtype)
        names = (*self.case.names, f"{self.case.dtype}".removeprefix("torch."))
        kind = f"{dtype}".removeprefix("torch.")
        answers = self.processes.run(
            len(self.counts[0]), "contract", names, self.turn, kind, self.layout, self.method, self.counts
        )
        layouts = [Layout(self.layout, count) for count in self.counts]  # type: ignore[arg-type]
        assert all(output.dtype == dtype for output, _ in answers)
        return Answer(*assembled(answers, *layouts))

    def allowed(self, backend: str) -> dict[str, float]:
        """What PyTorch's kernel may exceed, as in one process."""
        return super().allowed("sdpa" if backend == "processes" else backend)


def wrong(cases: Iterator[tuple[Case, Any]], processes: Processes) -> list[str]:
    found = []
    for case, (size, layout, method, split) in cases:
        trial = SharedTrial.of(case, 0, processes, layout, method, SPLITS[size][split])
        for name, share in failed(trial.shares("processes")).items():
            at = f"{size} processes, {layout}, {method}, split {split}"
            found.append(f"{at}: {case}: {name} {share:.2f} of the limit")
    return found


def every_case() -> list[tuple[Case, Any]]:
    """Each case of the subset of the contract, in one of the configurations."""
    cases = [case for score in SCORES for case in paired(score)]
    return list(zip(cases, cycle(CONFIGURATIONS), strict=False))


@pytest.mark.parametrize("score", [score.name for score in SCORES])
def test_processes_are_exact(score: str, processes: Processes) -> None:
    cases = [(case, at) for case, at in every_case() if case.score.name == score]
    assert not wrong(iter(cases), processes)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_softmax_over_products_is_exact(dtype: torch.dtype, processes: Processes) -> None:
    """Its gradients come from PyTorch's kernel, given the merged result."""
    ways = [(2, layout, "ring", split) for split in range(3) for layout in ("contiguous", "zigzag")]
    cases = [Case(SCORE["scaled_dot"], NORMALIZER["softmax"], MASK[mask], dtype) for mask in ("none", "causal")]
    assert not wrong(iter(product(cases, ways)), processes)


@pytest.mark.slow
def test_eight_processes_are_exact(eight_processes: Processes) -> None:
    eight = [(8, layout, "auto", split) for split in (0, 1) for layout in ("contiguous", "zigzag")]
    cases = [case for case, _ in every_case()[::6]]
    assert not wrong(zip(cases, cycle(eight), strict=False), eight_processes)


def test_sizes_are_those_of_the_contract() -> None:
    for splits in SPLITS.values():
        assert all(sum(queries) == QUERIES and sum(keys) == KEYS for queries, keys in splits)
