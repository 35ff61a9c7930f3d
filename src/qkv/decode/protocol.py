"""The interface of decoding: the methods that a model needs, and the hypotheses that come back."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar, runtime_checkable

from torch import Tensor

from qkv.linalg.session import DecodingSession

State = TypeVar("State")


@dataclass(frozen=True)
class Hypothesis:
    """A decoded target for one source.

    Args:
        ids: the tokens, without the begin and end tokens.
        score: the sum of the log-probabilities of `ids`, and of the end token if the sequence is finished; in nats.
        finished: whether the model ended the sequence itself; False if the limit cut it.
        log_probabilities: the terms of `score` in order, that of the end token last.
        ranked: the score normalized by length, by which a beam search ranked it; None without a beam.
        row: the row of the batch in which a beam search took its last step; None without a beam.

    Example:
        >>> Hypothesis(ids=(7, 9), score=-0.75, log_probabilities=(-0.25, -0.25, -0.25)).finished
        True
    """

    ids: tuple[int, ...]
    score: float
    finished: bool = True
    log_probabilities: tuple[float, ...] = ()
    ranked: float | None = None
    row: int | None = field(default=None, compare=False)

    def ended_at(self, ends: Collection[int]) -> "Hypothesis":
        """Return this hypothesis up to the first of some further end tokens.

        Args:
            ends: their ids.

        Example:
            >>> Hypothesis((7, 3, 9), -3.0, False, (-0.5, -0.5, -2.0)).ended_at({3})
            Hypothesis(ids=(7,), score=-1.0, finished=True, log_probabilities=(-0.5, -0.5), ranked=None, row=None)
        """
        length = next((index for index, token in enumerate(self.ids) if token in ends), None)
        if length is None:
            return self
        terms = self.log_probabilities[: length + 1]
        score = sum(terms) if terms else self.score
        return replace(self, ids=self.ids[:length], score=score, finished=True, log_probabilities=terms)


class Stepper(Protocol[State]):
    """A model that reads a source once, and then predicts one target token after another.

    A state is a value: `step` and `select` return new states and never change the old one, so decoding may continue
    from one state in two ways. The scores of a row depend on that row alone, not on the others of the batch.
    """

    def start(self, source: Tensor, lengths: Tensor, session: DecodingSession | None = None) -> State:
        """Read the source.

        Args:
            source: token ids (B, S), int64; those at or after a row's length are never read.
            lengths: tokens in each row (B,), int64, from 0 to S.
            session: of the decoding loop; can keep packed weights and memory for the steps that follow.

        Returns:
            The state before the first step, B rows.
        """
        ...

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Read the newest target token of each row, and predict the next one.

        Args:
            tokens: ids (B,), int64: the begin mark first, then the tokens that were chosen.
            state: the state after the tokens before them.

        Returns:
            Scores of the next token before the softmax (B, N), N the size of the vocabulary; and the state after
            `tokens`.
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
class BeamStepper(Stepper[State], Protocol[State]):
    """A model that can keep several hypotheses for a source without copies of the source."""

    def fork(self, state: State, rows: Tensor, width: int) -> State:
        """Take rows of a state, and turn each into `width` consecutive rows with the same past.

        Args:
            state: a state that was not forked.
            rows: indices into its rows (R,), int64.
            width: W, at least 1.

        Returns:
            The state of R·W rows.
        """
        ...

    def regroup(self, state: State, rows: Tensor) -> State:
        """Take rows of a forked state, W for each source that goes on.

        Args:
            state: of R·W rows, from `fork`.
            rows: indices into them (R'·W,), int64. Each group of W indices points into one old group of W rows; the
                groups keep their order.

        Returns:
            The state of R'·W rows.
        """
        ...


def fork(model: Stepper[State], state: State, rows: Tensor, width: int) -> State:
    """Take rows of a state, and turn each into several, as `BeamStepper.fork`; of other models with copies of a source.

    Args:
        model: of the state.
        state, rows, width: as for `BeamStepper.fork`.
    """
    if isinstance(model, BeamStepper):
        forked: State = model.fork(state, rows, width)
        return forked
    return model.select(state, rows.repeat_interleave(width))


def regroup(model: Stepper[State], state: State, rows: Tensor) -> State:
    """Take rows of a state that `fork` returned, as `BeamStepper.regroup`."""
    if isinstance(model, BeamStepper):
        kept: State = model.regroup(state, rows)
        return kept
    return model.select(state, rows)
