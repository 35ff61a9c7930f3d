"""Which backend computes a problem: the cheapest that does not refuse."""

from functools import lru_cache

import torch

from qkv.engine.problem import Plan, Problem
from qkv.errors import UnsupportedError, error_message, nearest
from qkv.planner.registry import BACKENDS

QUADRATIC_LIMIT = 1 << 18
"""The most (query, key) pairs per head for which `auto` may hold a full matrix: 512 × 512.

Measured on two cores with 8 heads: from there on stripes are as fast, so a higher limit wins nothing.
"""

AUTO = "auto"


def choose(problem: Problem, backend: str = AUTO) -> str:
    """Name the backend that computes a problem.

    Args:
        problem: what is asked.
        backend: a name, or "auto" for the cheapest that serves in linear memory.

    Returns:
        The backend's name.

    Raises:
        UnsupportedError: an unknown backend, or one that cannot serve; its reason is in the message.
    """
    if torch.compiler.is_compiling():
        return _choose(problem, backend)
    return _remembered(problem, backend, torch.get_num_threads())


def plan(problem: Problem, backend: str = AUTO) -> Plan:
    """Choose a backend, with the reason and every other backend's refusal or relative cost.

    Args:
        problem: what is asked.
        backend: a name, or "auto".

    Returns:
        The plan.

    Raises:
        UnsupportedError: as `choose`.
    """
    name = choose(problem, backend)
    cost = BACKENDS[name].cost(problem)
    serving = [other for other in BACKENDS if _refusal(other, problem, backend) is None]
    if backend != AUTO:
        why = f"asked for by name: {BACKENDS[name].what}"
    elif len(serving) == 1:
        why = f"the only one that serves: {BACKENDS[name].what}"
    else:
        why = f"the cheapest of {', '.join(serving)}: {BACKENDS[name].what}"
    return Plan(problem, name, why, cost, tuple(_others(problem, name, backend, cost.time)))


def _others(problem: Problem, chosen: str, backend: str, time: float) -> list[tuple[str, str]]:
    reasons = []
    for name, other in BACKENDS.items():
        if name != chosen:
            reason = _refusal(name, problem, backend)
            dearer = other.cost(problem).time / time
            reasons.append((name, reason or f"serves too, at about {dearer:.1f} times the predicted time"))
    return reasons


def _refusal(name: str, problem: Problem, backend: str) -> str | None:
    candidate = BACKENDS[name]
    reason = candidate.refuses(problem)
    if reason is None and backend == AUTO and candidate.quadratic and problem.queries * problem.keys > QUADRATIC_LIMIT:
        return f"memory grows with Q·K, and {problem.queries} × {problem.keys} is over the limit of {QUADRATIC_LIMIT}"
    return reason


def _choose(problem: Problem, backend: str) -> str:
    if backend != AUTO:
        return _asked_for(problem, backend)
    best, least = "", 0.0
    for name, candidate in BACKENDS.items():
        if _refusal(name, problem, backend) is None:
            time = candidate.cost(problem).time
            if not best or time < least:
                best, least = name, time
    if not best:
        reasons = "; ".join(f"{name}: {_refusal(name, problem, backend)}" for name in BACKENDS)
        hint = f'Each said why: {reasons}. backend="reference" computes it with the full matrix.'
        raise UnsupportedError(
            error_message("backend", "one that serves in linear memory", f"none for {problem}", hint)
        )
    return best


@lru_cache(maxsize=4096)
def _remembered(problem: Problem, backend: str, threads: int) -> str:
    """What is chosen for so many threads of PyTorch: some backends serve where each of them has enough to do."""
    return _choose(problem, backend)


def _asked_for(problem: Problem, backend: str) -> str:
    if backend not in BACKENDS:
        names = [AUTO, *BACKENDS]
        raise UnsupportedError(
            error_message("backend", f"one of {', '.join(names)}", repr(backend), nearest(str(backend), names))
        )
    reason = BACKENDS[backend].refuses(problem)
    if reason is not None:
        hint = 'backend="auto" takes one that can; qkv.explain shows what each says.'
        raise UnsupportedError(error_message("backend", f"one that serves {problem}", f"{backend!r}: {reason}", hint))
    return backend
