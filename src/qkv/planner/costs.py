"""How long an algorithm is predicted to take: its counted work times coefficients measured on this processor model.

The coefficients lie in `coefficients/`, one file per measured processor, and are fitted by `python -m benchmarks.fit`.
A file applies alone on the models that it names. Any other processor is treated as if it might be any of those that
were measured.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import torch

from qkv.engine.algorithm import Algorithm
from qkv.engine.problem import Problem
from qkv.engine.work import preparing, zeroing

START = "call"
"""The kind of work that every call does once."""
_NEVER = 1e15
"""Microseconds that no measured algorithm takes."""

Terms = tuple[tuple[str, float], ...]
"""Microseconds of one thread per unit of work, by kind of work."""
Coefficients = dict[str, dict[str, dict[str, float]]]
"""Microseconds of one thread per unit of work: algorithm → "forward" or "with backward" → kind of work."""


class Processor(NamedTuple):
    """A kind of processor.

    Attributes:
        vendor, family, models: as in /proc/cpuinfo; no models where none is on record.
        capability: the widest instructions that PyTorch uses, such as AVX512.
    """

    vendor: str
    family: int
    models: tuple[int, ...]
    capability: str


class CostTable(NamedTuple):
    """What was measured on one kind of processor.

    Attributes:
        name: a name for people.
        processor: the models that it was measured on.
        coefficients: microseconds per unit of work, 0 included.
        terms: those that are not 0, which predictions read.
    """

    name: str
    processor: Processor
    coefficients: Coefficients
    terms: Mapping[tuple[str, str], Terms]


def times(problem: Problem, algorithm: Algorithm) -> tuple[float, ...]:
    """Return the predicted microseconds of an algorithm, one number per table that applies here.

    Args:
        problem: one that the algorithm does not refuse.
        algorithm: which one.
    """
    counts = counts_of(problem, algorithm)
    # Sizes may be symbols under tracing, and then PyTorch's number of threads is not known either.
    single = problem.threads == 1 or algorithm.alone(problem)
    parallel = 1 if single else max(1, min(problem.threads, problem.rows * problem.queries))
    return tuple(
        _time(coefficients, counts, parallel) for coefficients in _coefficients(algorithm.name, problem.gradient)
    )


def counts_of(problem: Problem, algorithm: Algorithm) -> Mapping[str, float]:
    """Return how often an algorithm does each kind of work, with what is done to its inputs before."""
    zeroed = zeroing(problem) if algorithm.reads_hidden_keys else {}
    return {**algorithm.work(problem).counts, **zeroed, **preparing(problem)}


def _time(coefficients: Terms, counts: Mapping[str, float], parallel: int) -> float:
    start, work = 0.0, 0.0
    for kind, coefficient in coefficients:
        if kind == START:
            start = coefficient
        elif kind in counts:
            work = work + coefficient * counts[kind]
    return start + work / parallel


def _coefficients(name: str, gradient: bool) -> tuple[Terms, ...]:
    """Return an algorithm's coefficients, by table; an algorithm that a table lacks is its last choice."""
    key = name, "with backward" if gradient else "forward"
    return tuple(table.terms.get(key, ((START, _NEVER),)) for table in tables())


# What torch.compiler.assume_constant_result does, without the import of the whole compiler: 1.4 s of every start.
_coefficients._dynamo_marked_constant = True  # type: ignore[attr-defined]


@lru_cache(maxsize=1)
def tables() -> tuple[CostTable, ...]:
    """Return the tables that apply on this machine: its own, or all of them for a processor that was not measured."""
    measured = next((table for table in all_tables() if _matches(table.processor)), None)
    return all_tables() if measured is None else (measured,)


@lru_cache(maxsize=1)
def all_tables() -> tuple[CostTable, ...]:
    """Return every table of the package, in the order of their names."""
    folder = resources.files(__package__) / "coefficients"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".json")), key=lambda file: file.name)
    return tuple(_read(json.loads(file.read_text(encoding="utf-8"))) for file in files)


def _read(data: dict[str, Any]) -> CostTable:
    processor = data["processor"]
    models = tuple(processor["models"])
    kind = Processor(processor["vendor"], processor["family"], models, processor["capability"])
    coefficients: Coefficients = data["algorithms"]
    terms = {
        (name, direction): tuple((work, each) for work, each in own.items() if each)
        for name, directions in coefficients.items()
        for direction, own in directions.items()
    }
    return CostTable(data["name"], kind, coefficients, terms)


def _matches(processor: Processor) -> bool:
    """Return whether a table's processor is this one; a table that names no model matches none."""
    this = this_processor()
    alike = (this.vendor, this.family, this.capability) == (processor.vendor, processor.family, processor.capability)
    return alike and this.models[0] in processor.models


@lru_cache(maxsize=1)
def this_processor() -> Processor:
    """Return what the system says of this machine's processor; empty where it says nothing."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0]
    except OSError:
        text = ""
    lines = (line.partition(":") for line in text.splitlines())
    fields = {name.strip(): value.strip() for name, _, value in lines}
    family, model = (int(fields[name]) if fields.get(name, "").isdigit() else -1 for name in ("cpu family", "model"))
    return Processor(fields.get("vendor_id", ""), family, (model,), torch.backends.cpu.get_cpu_capability())
