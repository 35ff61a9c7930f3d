"""Which algorithms can compute a problem, best first, and which of them computes a call."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from textwrap import fill
from typing import Any, final

import torch
from torch import Tensor

from qkv import forks
from qkv.engine.algorithm import Algorithm, Facts, Result
from qkv.engine.problem import Call, Problem
from qkv.errors import UnsupportedError, nearest
from qkv.normalizers.kinds import BLURRED, KNOWN
from qkv.notebooks import folded, table
from qkv.planner import certificates
from qkv.planner.costs import times
from qkv.planner.registry import ALGORITHMS, BACKENDS, algorithms_of
from qkv.scores.base import without_autocast
from qkv.shapes import show
from qkv.values.execution import traced

QUADRATIC_LIMIT = 1 << 18
"""The most (query, key) pairs per head for which `auto` may hold a full matrix: 512 × 512.

Measured on two cores with 8 heads: from there on tiles are as fast, so a higher limit gains nothing.
"""

QUADRATIC_BYTES = 1 << 28
"""The most bytes, over all leading dimensions, that such a matrix may take where another algorithm serves: 256 MiB."""

CLEARLY = 1.3
"""How many times as fast an algorithm must be predicted, by every table that applies, to replace a preferred one."""

_UNTRIED = "its launches were counted on fake CUDA tensors, and no GPU has run it"
AUTO = "auto"
_PARALLEL = 1 << 15
"""PyTorch computes fewer elements in one thread (its `GRAIN_SIZE`)."""


@final
@dataclass(frozen=True, repr=False)
class Plan:
    """The algorithm that computes a problem, and why it was chosen.

    Attributes:
        problem: the problem.
        requested: the value of `backend=`.
        candidates: the algorithms that may compute it, best first, up to one that can whatever the tensors hold; their
            values decide which one does.
        declined: candidates that the tensor values of a call ruled out, each with its reason; from `explain` only.
        facts: what the chosen algorithm found in the tensor values of a call; from `explain` only.
    """

    problem: Problem
    requested: str
    candidates: tuple[Algorithm, ...]
    declined: tuple[tuple[str, str], ...] = ()
    facts: str = ""

    def run(self, call: Call) -> Result:
        """Compute a call of this problem, outside of autocast.

        Raises:
            UnsupportedError: the tensor values rule out every candidate of the backend requested by name.
            ForkError: this process was forked from one with threads that PyTorch would wait for.
        """
        if self.problem.core == "tile":
            # A user's function runs under the caller's autocast.
            return self.run_outside_autocast(call)
        with without_autocast(call.query):
            return self.run_outside_autocast(call)

    def output(self, call: Call) -> Tensor:
        """Compute the output of a call of this problem with the bits that `bound` gives calls like it.

        Raises:
            UnsupportedError, ForkError: as `run`.
        """
        if forks.lost or self.problem.core == "tile" or self.problem.mode != "eager":
            return self.run(call).output
        with without_autocast(call.query):
            return self.bound(call)(call)

    def run_outside_autocast(self, call: Call) -> Result:
        """Compute a call as `run` does, where no autocast is active."""
        algorithm, call, facts = self._select(call, [])
        if forks.lost and algorithm.backend != "fused" and call.query.numel() + call.key.numel() >= _PARALLEL:
            forks.expect_threads("attention")
        return algorithm.run(self.problem, call, facts)

    def bound(self, call: Call) -> Callable[[Call], Tensor]:
        """Return `run_outside_autocast` for the outputs of calls like this one, with the choices made that they share.

        Args:
            call: one of the calls that the function is for; no threads are lost to a fork where they run.
        """
        first, problem = self.candidates[0], self.problem
        bound = None if first.bind is None else first.bind(problem, call)
        if bound is not None:
            return bound
        if first.inspect is not None:
            return lambda call: self.run_outside_autocast(call).output
        if first.reads_hidden_keys and problem.mask != "all":
            return lambda call: first.run(problem, call.without_hidden_keys(), None).output
        return lambda call: first.run(problem, call, None).output

    def inspected(self, call: Call) -> "Plan":
        """Return the plan after inspection of a call's tensor values."""
        declined: list[tuple[str, str]] = []
        algorithm, _, facts = self._select(call, declined)
        remaining = self.candidates[self.candidates.index(algorithm) :]
        description = algorithm.describe(facts) if algorithm.describe else ""
        return replace(self, candidates=remaining, declined=tuple(declined), facts=description)

    def prepared(self, call: Call) -> tuple[Algorithm, Call]:
        """Return the algorithm that computes a call, and the call, with hidden keys zeroed if it reads them."""
        return self._select(call, [])[:2]

    def _select(self, call: Call, declined: list[tuple[str, str]]) -> tuple[Algorithm, Call, Facts]:
        zeroed: Call | None = None
        inspected: dict[Any, Facts] = {}
        for algorithm in self.candidates:
            inputs = call
            if algorithm.reads_hidden_keys:
                inputs = zeroed = call.without_hidden_keys() if zeroed is None else zeroed
            if algorithm.inspect is None:
                return algorithm, inputs, None
            if algorithm.inspect not in inspected:
                inspected[algorithm.inspect] = algorithm.inspect(self.problem, inputs)
            facts = inspected[algorithm.inspect]
            reason = algorithm.declines(self.problem, facts)
            if reason is None:
                return algorithm, inputs, facts
            declined.append((algorithm.name, reason))
        raise _unsupported(self.problem, self.requested, "; ".join(f"{name}: {reason}" for name, reason in declined))

    @property
    def algorithm(self) -> str:
        """The name of the algorithm."""
        return self.candidates[0].name

    @property
    def backend(self) -> str:
        """The name of its family."""
        return self.candidates[0].backend

    @property
    def why(self) -> str:
        """The reason in one sentence."""
        declined, chosen = dict(self.declined), self.candidates[0]
        serving = _best_first(_serving(self.problem, self.requested), self.problem)
        others = [algorithm.name for algorithm in serving if algorithm is not chosen and algorithm.name not in declined]
        on_gpu = not self.problem.on_host
        choice = "taken before" if on_gpu else "predicted to be faster than"
        if self.problem.threads > 1 and chosen.alone(self.problem):
            choice = "waits for no other thread, and taken before"
        reason = f"{choice} {', '.join(others)}" if others else "the only one that serves"
        if self.requested != AUTO:
            reason = "requested by name" + (f", and {reason}" if others else "")
        tried = _UNTRIED if on_gpu else ""
        if chosen.needs_certificate:
            tried = certificates.standing(chosen, self.problem)
        return "; ".join(part for part in (f"{reason}: {chosen.summary}", self.facts, tried) if part)

    @property
    def operations(self) -> int:
        """Floating-point operations."""
        return self.candidates[0].work(self.problem).operations

    @property
    def bytes(self) -> int:
        """Memory beyond inputs and outputs."""
        return self.candidates[0].work(self.problem).bytes

    @property
    def microseconds(self) -> float:
        """The predicted time: the longest one if the processor was not measured."""
        return max(times(self.problem, self.candidates[0]))

    @property
    def row_state(self) -> str:
        """How `attention_with_state` differs from `attention`: another algorithm or pass; "" if it does not."""
        problem = self.problem._replace(state=True)
        if problem.normalizer not in KNOWN:
            return ""
        try:
            chosen = plan_for(problem, self.requested).candidates[0]
        except UnsupportedError:
            return f"{self.backend} computes none"
        parts = [f"by {chosen.name}"] if chosen.name != self.algorithm else []
        return ": ".join([*parts, *([more] if (more := chosen.row_state(problem)) else [])])

    @property
    def refusals(self) -> tuple[tuple[str, str], ...]:
        """Every other algorithm with its reason, or with its predicted time relative to that of the chosen one."""
        return tuple(self._others())

    def _others(self) -> Iterator[tuple[str, str]]:
        declined = dict(self.declined)
        for other in ALGORITHMS:
            if other.name != self.algorithm:
                reason = declined.get(other.name) or refusal(other, self.problem, self.requested)
                yield other.name, reason or self._compared(other)

    def _compared(self, other: Algorithm) -> str:
        """Say how long another algorithm takes, as far as what was measured on processors tells."""
        if not self.problem.on_host:
            return "serves too"
        return f"serves too, in {max(times(self.problem, other)) / self.microseconds:.1f} times the predicted time"

    def rows(self) -> list[tuple[str, str]]:
        """Return the plan as names and texts, the rows of its table."""
        return [
            ("problem", str(self.problem)),
            ("leading shape", show(self.problem.leading)),
            ("backend", self.backend),
            ("algorithm", self.algorithm),
            ("why", self.why),
            ("operations", f"{self.operations:.3g}"),
            ("memory", f"{_readable(self.bytes)} beyond inputs and output"),
            *([("row state", self.row_state)] if self.row_state else []),
            *([("hint", BLURRED)] if self.problem.blurs else []),
            *((f"not {name}", reason) for name, reason in self.refusals),
        ]

    def __str__(self) -> str:
        """Return a small table."""
        rows = self.rows()
        width = max(len(name) for name, _ in rows) + 2
        return "\n".join(fill(f"{name:<{width}}{text}", 80, subsequent_indent=" " * width) for name, text in rows)

    def __repr__(self) -> str:
        """Return the table, so that a prompt shows it without `print`."""
        return str(self)

    def _repr_html_(self) -> str:
        """Return the table for a notebook; the other algorithms and their reasons unfold."""
        rows, others = self.rows(), self.refusals
        return table(rows[: -len(others) or None]) + folded(f"{len(others)} other algorithms", table(others))


def _readable(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} TiB"


def plan_for(problem: Problem, backend: str = AUTO) -> Plan:
    """Return the algorithms that compute a problem, best first.

    Args:
        problem: the problem.
        backend: the name of a family or of an algorithm, or "auto" for every one that serves in linear memory.

    Raises:
        UnsupportedError: an unknown backend, or one that cannot serve; its reason is in the message.
    """
    # Sizes that vary have no hash.
    plan = _planned if torch.compiler.is_compiling() or traced() else _cached_plan
    return plan(problem, backend)


def _planned(problem: Problem, backend: str) -> Plan:
    candidates = _named(backend)
    if not candidates:
        names = [AUTO, *BACKENDS]
        raise UnsupportedError("backend", f"one of {', '.join(names)}", repr(backend), nearest(str(backend), names))
    serving = _fitting(problem, backend)
    ordered = _best_first(serving, problem)
    certain = next((index for index, algorithm in enumerate(ordered) if algorithm.inspect is None), len(ordered))
    reached = ordered[: certain + 1]
    # Whether kernels run here is asked of no other algorithm: asking loads them.
    if any(_lacks_kernels(algorithm) for algorithm in reached):
        reached = _best_first([algorithm for algorithm in serving if not _lacks_kernels(algorithm)], problem)
    if not reached:
        raise _unsupported(problem, backend, _reasons(candidates, problem, backend))
    return Plan(problem, backend, tuple(reached))


_cached_plan = lru_cache(maxsize=4096)(_planned)


def _named(backend: str) -> tuple[Algorithm, ...]:
    return ALGORITHMS if backend == AUTO else algorithms_of(backend)


def _fitting(problem: Problem, backend: str) -> list[Algorithm]:
    """Return the algorithms that compute a problem if their kernels run here."""
    fitting = [algorithm for algorithm in _named(backend) if _refusal_of_problem(algorithm, problem, backend) is None]
    if backend == AUTO and problem.mode != "compiled":
        small = [
            algorithm
            for algorithm in fitting
            if not algorithm.quadratic or algorithm.work(problem).bytes <= QUADRATIC_BYTES
        ]
        return small or fitting
    return fitting


def _serving(problem: Problem, backend: str) -> list[Algorithm]:
    return [algorithm for algorithm in _fitting(problem, backend) if not _lacks_kernels(algorithm)]


def _lacks_kernels(algorithm: Algorithm) -> bool:
    return algorithm.kernels is not None and algorithm.kernels() is not None


def _best_first(serving: Sequence[Algorithm], problem: Problem) -> list[Algorithm]:
    """Order algorithms by their largest regret over the processors whose coefficients may apply."""
    if len(serving) < 2:
        return list(serving)
    if not problem.on_host and any(algorithm.preferred for algorithm in serving):
        # What was measured on processors tells nothing of a GPU, for which PyTorch's own kernels were written.
        others = [algorithm for algorithm in serving if not algorithm.preferred]
        return [*(algorithm for algorithm in serving if algorithm.preferred), *_best_first(others, problem)]
    if problem.mode == "compiled":
        return _best_of_symbols(serving, problem)
    predicted = [times(problem, algorithm) for algorithm in serving]
    regrets = [0.0] * len(serving)
    for column in zip(*predicted, strict=True):
        least = min(column)
        regrets = [max(worst, time / least) for worst, time in zip(regrets, column, strict=True)]
    ranks = list(range(len(serving)))
    ranks.sort(key=regrets.__getitem__)
    ordered = [serving[rank] for rank in ranks]
    # PyTorch's kernel is preferred only for calls that a user could pass to it unchanged.
    preferred = next((algorithm for algorithm in ordered if algorithm.preferred), None)
    if preferred is not None and problem.as_given:
        ordered = _preferring(preferred, ordered, problem)
    if problem.threads > 1:
        # PyTorch wakes its threads for tiny work too. Beside a busy process, it waits a hundred times as long for them.
        ordered.sort(key=lambda algorithm: not algorithm.alone(problem))
    return ordered


def _preferring(preferred: Algorithm, ordered: Sequence[Algorithm], problem: Problem) -> list[Algorithm]:
    """Move an algorithm ahead of those that are not clearly faster by every table that applies."""
    preferred_times = times(problem, preferred)
    faster = []
    for other in ordered:
        pairs = zip(times(problem, other), preferred_times, strict=True)
        if other is not preferred and all(time * CLEARLY <= reference for time, reference in pairs):
            faster.append(other)
    return [*faster, preferred, *(other for other in ordered if other is not preferred and other not in faster)]


def _best_of_symbols(serving: Sequence[Algorithm], problem: Problem) -> list[Algorithm]:
    """Move the fastest algorithm to the front. Symbolic sizes can be compared but not sorted."""
    best, least = serving[0], times(problem, serving[0])[0]
    for other in serving[1:]:
        time = times(problem, other)[0]
        if time < least:
            best, least = other, time
    return [best, *(other for other in serving if other is not best)]


def refusal(algorithm: Algorithm, problem: Problem, backend: str = AUTO) -> str | None:
    """Return why an algorithm does not compute a problem, None if it may.

    Args:
        algorithm: the algorithm.
        problem: the problem.
        backend: the value of `backend=`; "auto" takes quadratic memory for small problems only.
    """
    reason = _refusal_of_problem(algorithm, problem, backend)
    return algorithm.kernels() if reason is None and algorithm.kernels else reason


def _refusal_of_problem(algorithm: Algorithm, problem: Problem, backend: str) -> str | None:
    reason = algorithm.refuses(problem)
    if reason is not None or backend != AUTO:
        return reason
    if algorithm.quadratic and problem.rows and problem.queries * problem.keys > QUADRATIC_LIMIT:
        return f"memory grows with Q·K, and {problem.queries} × {problem.keys} is over the limit of {QUADRATIC_LIMIT}"
    if algorithm.needs_certificate and not _lacks_kernels(algorithm):
        return certificates.refusal(algorithm, problem)
    return None


def _reasons(candidates: Sequence[Algorithm], problem: Problem, backend: str) -> str:
    refusals = [(algorithm.name, refusal(algorithm, problem, backend)) for algorithm in candidates]
    reasons = {reason for _, reason in refusals}
    return str(refusals[0][1]) if len(reasons) == 1 else "; ".join(f"{name}: {reason}" for name, reason in refusals)


def _unsupported(problem: Problem, backend: str, reasons: str) -> UnsupportedError:
    if backend == AUTO:
        hint = f'Each said why: {reasons}. backend="reference" computes it with the full matrix.'
        return UnsupportedError("backend", "one that serves in linear memory", f"none for {problem}", hint)
    hint = 'backend="auto" takes one that can; qkv.explain shows what each says.'
    return UnsupportedError("backend", f"one that serves {problem!s}", f"{backend!r}: {reasons}", hint)
