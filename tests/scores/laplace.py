"""A score that the package lacks, added as a new one is: its class, its entry, and an algorithm of its own.

Loaded before anything else of the package reads the catalog, it stands for an edit of the files that it names.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import Tensor

import qkv.scores
from qkv.engine.algorithm import Algorithm, Facts, Result, Work
from qkv.engine.problem import Call, Problem
from qkv.engine.work import pairs_of
from qkv.scores.base import Operands, Score
from qkv.values.catalog import Catalog, Entry, Equation, Number
from qkv.values.parameters import Parameter, above, spread
from qkv.values.pytree import value


@final
@value
@dataclass(frozen=True, eq=False)
class Laplace(Score):
    """s = exp(−‖q−k‖₁/h), the Laplace kernel: in a file of `qkv/scores`, and exported by its `__init__`."""

    core: ClassVar[Any] = "manhattan"
    non_negative: ClassVar[bool] = True
    parameters: ClassVar[tuple[Parameter, ...]] = (Parameter("bandwidth", 0),)
    bandwidth: float | Tensor = 1.0

    def __post_init__(self) -> None:
        above("Laplace(bandwidth)", self.bandwidth, 0, "Widths are above 0.")

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        distance = (query[..., :, None, :] - key[..., None, :, :]).abs().sum(-1)
        return torch.exp(-distance / spread(self.bandwidth))

    def prepare(self, query: Tensor, key: Tensor) -> Operands:
        return Operands(query, key, 1 / spread(self.bandwidth))


ENTRY = Entry(
    name="laplace",
    package="qkv.scores",
    kind="Laplace",
    equation=Equation("exp(−‖q−k‖₁/h)", r"\exp(-\lVert q-k\rVert_1/h)"),
    aliases=("exponential",),
    numbers=(Number("bandwidth", default=1.0, low=0.5, high=9.0, step=0.5, above=0),),
    kernel=True,
    smoothing=0.8,
    note="heavy tails",
    source="Laplace 1774",
)
"""A line of `qkv/scores/catalog.py`."""


def refuses(problem: Problem) -> str | None:
    if problem.core != "manhattan":
        return f"the core is {problem.core}, not manhattan"
    plain = problem.normalizer == "sum" and problem.mask == "all" and problem.bias == "none" and not problem.gradient
    return None if plain and not (problem.dropout or problem.state) else "only plain kernel regression is served"


def work(problem: Problem) -> Work:
    operations = 3 * pairs_of(problem) * problem.width
    return Work(operations, 4 * problem.rows * 64 * problem.keys, {"features": operations})


def run(problem: Problem, call: Call, facts: Facts) -> Result:
    parts = []
    for query in call.query.split(64, -2):
        weights = call.score(query, call.key)
        parts.append(weights @ call.value / weights.sum(-1, keepdim=True))
    return Result(torch.cat(parts, -2), None)


ALGORITHM = Algorithm("manhattan.rows", "manhattan", "64 queries at a time", refuses, work, run)
"""A folder of `qkv/algorithms`."""


def install() -> None:
    """Write the three files."""
    from qkv.scores import catalog

    vars(qkv.scores)["Laplace"] = Laplace
    catalog.SCORES = Catalog([*catalog.SCORES.values(), ENTRY])
    # What follows from the list, at the end of that file.
    catalog.KERNELS, catalog.DISTANCES = (*catalog.KERNELS, "laplace"), (*catalog.DISTANCES, "laplace")
    from qkv.planner import registry

    registry.ALGORITHMS = (*registry.ALGORITHMS, ALGORITHM)
    registry.BACKENDS = (*registry.BACKENDS, "manhattan")


def pytest_load_initial_conftests() -> None:
    """As a plugin of pytest it is installed before tests are collected; imported by another test it changes nothing."""
    install()
