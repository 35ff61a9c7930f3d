"""What a model must serve to be decoded."""

from typing import Protocol, TypeVar

from torch import Tensor

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
