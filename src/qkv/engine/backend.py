"""What a backend is: a name and three functions behind one seam."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, final

from torch import Tensor

from qkv.engine.problem import Call, Cost, Problem
from qkv.scores.base import Score

DirectCall = Callable[[Tensor, Tensor, Tensor, Score], Tensor]
"""(query, key, value, score) -> output, for a problem whose call holds nothing else and broadcasts nothing."""


class Result(NamedTuple):
    """What a backend returns.

    Attributes:
        output: (..., Q, V), the problem's leading shape.
        state: the row state's value (..., Q), at least float32; None where it was not asked for.
    """

    output: Tensor
    state: Tensor | None


@final
@dataclass(frozen=True)
class Backend:
    """One way to compute attention.

    Attributes:
        name: what `backend=` takes and `explain` shows.
        what: its algorithm in a few words.
        refuses: the reason why it cannot serve a problem, or None.
        cost: what a problem takes.
        run: compute it.
        quadratic: whether memory grows with Q·K, so that `auto` takes it for small problems only.
        tells: what it finds in the tensors of a call that decides how it computes them, in a few words.
        direct: a shorter way to the same output for a problem whose call holds nothing beside query, key, value and
            score, and whose mask is `all` or `causal`; None where there is none.
        repeats: what attends with other queries over a call's keys and values, which get no gradient, where queries
            follow one another; None where only `run` does.
        shields: whether `run` itself keeps out what no one may see; else that is zeroed before.
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
