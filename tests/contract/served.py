"""Parametrize a test with the cases that each backend serves, as `served.json` records them.

To ask backends 30,000 times while tests are collected would take longer than many of the tests: `test_served.py` asks
them, once, that each serves what is recorded and refuses the rest. After a change on purpose, record again:

    python -m tests.contract.served
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from inspect import signature
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.contract.calls import Request
from tests.contract.mechanisms import ON_CPU

from qkv.compiled.available import why_unavailable

PATH = Path(__file__).with_name("served.json")
TESTS = Path(__file__).parents[1]
MODULES = tuple(
    f"tests.{folder}.{path.stem}"
    for folder in ("contract", "normalizers")
    for path in sorted((TESTS / folder).glob("test_*.py"))
    if "by_served(" in path.read_text(encoding="utf-8")
)
"""The modules whose tests are parametrized by what is served."""

Ask = Callable[..., Request | Iterable[Request]]


@dataclass(frozen=True)
class Case:
    """What a test asks of a backend, apart from axes on which serving does not depend."""

    backend: str
    ask: Ask
    arguments: dict[str, Any]

    def __str__(self) -> str:
        return _name(self.backend, *self.arguments.values())

    def requests(self) -> Iterator[Request]:
        requests = self.ask(**self.arguments)
        yield from [requests] if isinstance(requests, Request) else requests

    def is_served(self) -> bool:
        """Whether the backend serves one of the requests."""
        return self.backend == "auto" or any(request.is_served(self.backend) for request in self.requests())


@dataclass(frozen=True)
class Coverage:
    """The cases of one test, by backend."""

    cases: dict[str, list[Case]]

    def ask(self) -> dict[str, str]:
        """Return for each backend a digit for each case: 1 if it is served."""
        return {backend: "".join(str(int(case.is_served())) for case in cases) for backend, cases in self.cases.items()}

    def recorded(self, name: str) -> dict[str, str]:
        """Return the digits of the record, or ask where kernels cannot run, or for cases that are not recorded yet."""
        return _record()[name] if self.is_recorded(name) and why_unavailable() is None else self.ask()

    def is_recorded(self, name: str) -> bool:
        digits = _record().get(name, {})
        return all(len(digits.get(backend, "")) == len(cases) for backend, cases in self.cases.items())


COVERAGE: dict[str, Coverage] = {}
"""By the name of a test: its module and function."""


@cache
def _record() -> dict[str, dict[str, str]]:
    return json.loads(PATH.read_text(encoding="utf-8")) if PATH.exists() else {}


def by_served(
    ask: Ask, backends: Iterable[str] = ON_CPU, *, every: int = 1, **axes: Iterable[Any]
) -> Callable[[Any], Any]:
    """Return a decorator that calls a test with each backend and each case, by name, that the backend serves.

    Args:
        ask: takes the axes on which serving depends, by name, and returns the request of a case, or several: a backend
            that serves one of them serves the case.
        backends: their names; "auto" serves everything.
        every: of how many cases one is fast, starting one later for each backend and each value, as in `tests.pairs`.
        axes: the values of each argument; those with marks are `pytest.param` of one value.
    """
    decisive = [name for name in axes if name in signature(ask).parameters]
    values = {name: [_unmarked(value) for value in axis] for name, axis in axes.items()}
    positions = list(product(*(range(len(axis)) for axis in values.values())))

    def of(position: tuple[int, ...], names: Iterable[str]) -> dict[str, tuple[Any, Any]]:
        chosen = {name: axis[i] for (name, axis), i in zip(values.items(), position, strict=True)}
        return {name: chosen[name] for name in names}

    def key(position: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(i for name, i in zip(values, position, strict=True) if name in decisive)

    def decorate(test: Any) -> Any:
        asked = {key(position): position for position in reversed(positions)}
        asked = {key(position): position for position in positions if asked[key(position)] == position}
        arguments = [{name: value for name, (value, _) in of(at, decisive).items()} for at in asked.values()]
        coverage = Coverage({backend: [Case(backend, ask, each) for each in arguments] for backend in backends})
        name = f"{test.__module__}.{test.__name__}"
        COVERAGE[name] = coverage
        with torch.random.fork_rng(devices=[]):
            digits = coverage.recorded(name)
        order = {key: i for i, key in enumerate(asked)}
        cases = []
        # The backends of a case follow each other: what they are judged by may be computed once.
        for position, (place, backend) in product(positions, enumerate(coverage.cases)):
            if digits[backend][order[key(position)]] == "1":
                case = of(position, values).values()
                plain, marks = [value for value, _ in case], [mark for _, marks in case for mark in marks]
                if (sum(position) + place) % every:
                    marks.append(pytest.mark.slow)
                cases.append(pytest.param(backend, *plain, marks=marks, id=_name(backend, *plain)))
        return pytest.mark.parametrize(("backend", *values), cases)(test)

    return decorate


def _unmarked(value: Any) -> tuple[Any, Iterable[Any]]:
    is_marked = isinstance(value, type(pytest.param()))
    return (value.values[0], value.marks) if is_marked else (value, ())


def _name(*values: Any) -> str:
    return "-".join(value if isinstance(value, str) else getattr(value, "__name__", repr(value)) for value in values)


def coverages(module: str) -> dict[str, Coverage]:
    """Return what the tests of a module ask, by their names."""
    import_module(module)
    return {name: coverage for name, coverage in COVERAGE.items() if name.rpartition(".")[0] == module}


if __name__ == "__main__":
    from tests.contract import served  # the module that tests import is another one than __main__

    record = {name: each.ask() for module in MODULES for name, each in sorted(served.coverages(module).items())}
    PATH.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
