"""The interface of an algorithm: what it refuses, how much work it does, what it inspects, how it runs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, final

from torch import Tensor

from qkv.engine.problem import Call, Problem

Facts = Any
"""What `inspect` found in the tensors of a call; each algorithm defines its own type."""


class Result(NamedTuple):
    """What an algorithm returns.

    Attributes:
        output: (..., Q, V), the problem's leading shape.
        state: the row state's value (..., Q), float64; None if it was not requested.
    """

    output: Tensor
    state: Tensor | None


class Work(NamedTuple):
    """The work that an algorithm does for a problem, counted and not timed.

    Attributes:
        operations: floating-point operations.
        bytes: memory beyond inputs and outputs.
        counts: how often it does each kind of work; the planner's coefficients turn them into microseconds.
    """

    operations: int
    bytes: int
    counts: Mapping[str, float]


def _never_declines(problem: Problem, facts: Facts) -> str | None:
    return None


def _never_alone(problem: Problem) -> bool:
    return False


def _no_extra_pass(problem: Problem) -> str | None:
    return None


@final
@dataclass(frozen=True)
class Algorithm:
    """One way to compute attention.

    Attributes:
        name: folder and file, such as `additive.factored`; `backend=` accepts it.
        backend: the family, another value of `backend=`.
        summary: one phrase that says how it computes, for `explain`.
        refuses: returns the reason why it cannot compute a problem, or None if it can.
        work: counts the work of a problem.
        run: computes the problem. It never chooses another algorithm.
        inspect: reads tensor values of a call, for `declines` and `run`; None if nothing needs to be read.
            Algorithms that share it are inspected once per call.
        declines: returns the reason why the facts rule the algorithm out, or None; the planner then takes the next one.
        describe: returns a phrase about the facts, for `explain`.
        preferred: whether the planner takes it unless another is clearly faster by every table that applies.
        alone: whether the calling thread computes a problem by itself, however many threads PyTorch uses, because that
            takes less than to wait for another.
        kernels: returns why its compiled kernels cannot run here, or None if they can; None if it has none. The planner
            asks only where the algorithm may be taken, since asking loads LLVM.
        quadratic: whether memory grows with Q·K, so that `auto` takes it for small problems only.
        reads_hidden_keys: whether keys and values that no query may see must be zeroed first.
        prepare_loop: returns a function that attends to a call's fixed keys and values one query at a time, without
            gradients, for decoding; None if that would save no time.
        bind: returns a function that computes the output of calls like this one, without a row state and outside of
            autocast; the choices that depend on sizes and numbers alone are made once. None if `run` makes few.
        by_strides: whether a bound call may hold query, key and value as the caller gave them, heads not split into
            groups: the function finds the groups in the visibility, and its output has the heads of the query.
        needs_certificate: whether `auto` takes it only on a device that `qkv tune` has certified.
        row_state: returns how it computes a row state that takes an extra pass, for `explain`; None if it takes none.
    """

    name: str
    backend: str
    summary: str
    refuses: Callable[[Problem], str | None]
    work: Callable[[Problem], Work]
    run: Callable[[Problem, Call, Facts], Result]
    inspect: Callable[[Problem, Call], Facts] | None = None
    declines: Callable[[Problem, Facts], str | None] = _never_declines
    describe: Callable[[Facts], str] | None = None
    preferred: bool = False
    alone: Callable[[Problem], bool] = _never_alone
    kernels: Callable[[], str | None] | None = None
    quadratic: bool = False
    reads_hidden_keys: bool = True
    prepare_loop: Callable[[Problem, Call], Callable[[Tensor], Tensor] | None] | None = None
    bind: Callable[[Problem, Call], Callable[[Call], Tensor] | None] | None = None
    by_strides: bool = False
    needs_certificate: bool = False
    row_state: Callable[[Problem], str | None] = _no_extra_pass
