"""The table of worst errors per backend and dtype, as Markdown: `python -m tests.contract.table [--all]`.

A figure is the worst quotient of error and limit over all cases: 1 is the limit of the criterion (see `judge`).
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from tests.contract.judge import Case, Trial, cross_product, sample
from tests.contract.mechanisms import DTYPES, SCORES

from qkv.backends.registry import BACKENDS


@dataclass
class Worst:
    """The worst of a backend in a dtype."""

    cases: int = 0
    output: float = 0.0
    gradient: float = 0.0
    where: str = ""

    def add(self, case: Case, output: float, gradient: float) -> None:
        """Count a case, and remember it where it is the worst."""
        self.cases += 1
        if max(output, gradient) > max(self.output, self.gradient):
            self.where = f"{case.score.name} × {case.normalizer.name} × {case.mask.name}"
        self.output, self.gradient = max(self.output, output), max(self.gradient, gradient)


def measure(everything: bool) -> dict[tuple[str, torch.dtype], Worst]:
    """Run every case on every backend that serves it."""
    found: dict[tuple[str, torch.dtype], Worst] = {}
    choose = cross_product if everything else sample
    for dtype in DTYPES:
        for case in (case for score in SCORES for case in choose(score, dtype)):
            trial = Trial(case)
            for backend in BACKENDS:
                if trial.refusal(backend) is None:
                    found.setdefault((backend, dtype), Worst()).add(case, *trial.ratios(backend))
    return found


def rows(found: dict[tuple[str, torch.dtype], Worst]) -> Iterator[str]:
    """The table, line by line."""
    yield "| backend | dtype | cases | worst output | worst gradient | where |"
    yield "|---|---|---:|---:|---:|---|"
    for (backend, dtype), worst in found.items():
        name = str(dtype).removeprefix("torch.")
        yield f"| {backend} | {name} | {worst.cases:,} | {worst.output:.2f} | {worst.gradient:.2f} | {worst.where} |"


if __name__ == "__main__":
    torch.set_num_threads(1)
    for line in rows(measure("--all" in sys.argv)):
        print(line)  # noqa: T201
