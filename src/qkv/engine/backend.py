"""The interface of a backend: a name and three functions (`refuses`, `cost`, `run`)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, final

from torch import Tensor

from qkv.engine.problem import Call, Cost, Problem
from qkv.scores.base import Score

DirectCall = Callable[[Tensor, Tensor, Tensor, Score], Tensor]
"""(query, key, value, score) -> output, for calls without other tensors and without broadcasting."""


class Result(NamedTuple):
    """What a backend returns.

    Attributes:
        output: (..., Q, V), the problem's leading shape.
        state: the row state's value (..., Q), at least float32; None if it was not requested.
    """

    output: Tensor
    state: Tensor | None


@final
@dataclass(frozen=True)
class Backend:
    """One way to compute attention.

    Attributes:
        name: the value of `backend=`, shown by `explain`.
        what: a short description of its algorithm.
        refuses: returns the reason why it cannot compute a problem, or None if it can.
        cost: returns the predicted cost of a problem.
        run: computes the problem.
        quadratic: whether memory grows with Q·K, so that `auto` takes it for small problems only.
        tells: returns a short description of the properties of a call's tensors that decide how they are computed.
        direct: returns a function with less overhead and the same output, for calls that hold only query, key, value
            and score and whose mask is `all` or `causal`; None if there is none.
        repeats: returns a function that attends to a call's fixed keys and values, without gradients, one query at a
            time, for decoding; None if only `run` is available.
        shields: whether `run` itself ignores keys and queries that are fully masked; otherwise they are zeroed first.
    """

    name: str
    what: str
    refuses: Callable[[Problem], str | None]
    cost: Callable[[Problem], Cost]
    run: Callable[[Problem, Call], Result]
    quadratic: bool = False
    tells: Callable[[Problem, Call], str] | None = None
    shields: bool = False
    direct: Callable[[Problem], DirectCall | None] | None = None
    repeats: Callable[[Problem, Call], Callable[[Tensor], Tensor] | None] | None = None
