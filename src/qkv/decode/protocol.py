"""What a model must serve to be decoded."""

from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, final, runtime_checkable

from torch import Tensor

from qkv.linalg.session import Session

State = TypeVar("State")


class Stepper(Protocol[State]):
    """A model that reads a source once and then predicts one target token after another.

    A state is a value: `step` and `select` return new ones and leave those they were given as they were, so two
    futures may start from one state. What a row predicts depends on that row alone, never on its neighbors.
    """

    def start(self, source: Tensor, lengths: Tensor) -> State:
        """Read the source.

        Args:
            source: token ids (B, S), int64; what stands at or after a row's length is never read.
            lengths: tokens in each row (B,), int64, from 0 to S.

        Returns:
            The state before the first step, B rows.
        """
        ...

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Take the newest target token of each row and predict the next one.

        Args:
            tokens: ids (B,), int64: the begin mark first, then what was chosen.
            state: the state after the tokens before.

        Returns:
            Scores of the next token before the softmax (B, N), N the size of the vocabulary; and the state that
            includes `tokens`.
        """
        ...

    def select(self, state: State, rows: Tensor) -> State:
        """Take rows of a state: fewer, repeated, or in another order.

        Args:
            state: a state of B rows.
            rows: indices into them (R,), int64.

        Returns:
            The state of R rows.
        """
        ...


@runtime_checkable
class SessionStepper(Stepper[State], Protocol[State]):
    """A model that keeps packed weights and memory in a session of the decoding loop."""

    def start_in(self, session: Session, source: Tensor, lengths: Tensor) -> State:
        """Read the source, as `start`.

        Args:
            session: serves the steps that follow, so the state carries it.
            source, lengths: as for `start`.

        Returns:
            As `start`.
        """
        ...


def start_in(session: Session, model: Stepper[State], source: Tensor, lengths: Tensor) -> State:
    """Let a model read the source, in a session if it can use one.

    Args:
        session: of the decoding loop.
        model: what predicts.
        source, lengths: as for `Stepper.start`.

    Returns:
        The state before the first step.
    """
    if isinstance(model, SessionStepper):
        found: State = model.start_in(session, source, lengths)
        return found
    return model.start(source, lengths)


@runtime_checkable
class BeamStepper(Stepper[State], Protocol[State]):
    """A model that keeps several futures of one source without keeping the source several times."""

    def fork(self, state: State, rows: Tensor, width: int) -> State:
        """Take rows of a state, and let each become `width` rows beside each other that have the same past.

        Args:
            state: a state that was not forked.
            rows: indices into its rows (R,), int64.
            width: W, at least 1.

        Returns:
            The state of R·W rows.
        """
        ...

    def regroup(self, state: State, rows: Tensor) -> State:
        """Take rows of a forked state: each group of W continues rows of one group that was.

        Args:
            state: of R·W rows, from `fork`.
            rows: indices into them, groups of W whose members lie in one old group, the groups in their old order.

        Returns:
            The state of as many rows as there are indices.
        """
        ...


@final
@dataclass(frozen=True, eq=False)
class Repeating:
    """Any model as a `BeamStepper`, each source kept once for each of its futures.

    Args:
        model: what predicts.
    """

    model: Stepper[Any]

    def start(self, source: Tensor, lengths: Tensor) -> Any:
        """Read the source."""
        return self.model.start(source, lengths)

    def start_in(self, session: Session, source: Tensor, lengths: Tensor) -> Any:
        """Read the source, in a session if the model can use one."""
        return start_in(session, self.model, source, lengths)

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Predict the next token."""
        return self.model.step(tokens, state)

    def select(self, state: Any, rows: Tensor) -> Any:
        """Take rows."""
        return self.model.select(state, rows)

    def fork(self, state: Any, rows: Tensor, width: int) -> Any:
        """Take each row several times."""
        return self.model.select(state, rows.repeat_interleave(width))

    def regroup(self, state: Any, rows: Tensor) -> Any:
        """Take rows."""
        return self.model.select(state, rows)


def as_beam_stepper(model: Stepper[State]) -> BeamStepper[State]:
    """The model itself where it can fork, else one that repeats its sources."""
    return model if isinstance(model, BeamStepper) else Repeating(model)
