"""The methods that all translators share; each model encodes the source and advances its own state."""

from abc import abstractmethod
from typing import Any, Generic, Protocol, TypeVar

from torch import Tensor, nn

from qkv.linalg.matmul import apply_layer
from qkv.linalg.session import DecodingSession
from qkv.models.checks import check_target
from qkv.values.hooks import step_through_hooks


class InSession(Protocol):
    """A decoder's state that knows the session of its decoding."""

    @property
    def session(self) -> DecodingSession | None:
        """What keeps packed weights and memory for the steps; None to keep nothing."""


State = TypeVar("State", bound=InSession)


class EncoderDecoder(nn.Module, Generic[State]):
    """Base class of translators. A subclass encodes the source, advances its state by target tokens, and selects rows.

    Attributes:
        config: the sizes.
        embed: the embedding of tokens.
        output: the output layer.
    """

    config: Any
    embed: nn.Embedding
    output: nn.Linear

    @abstractmethod
    def read(self, source: Tensor, lengths: Tensor, session: DecodingSession | None = None) -> tuple[State, Tensor]:
        """Like `start` or `start_in`, but also return the encoder's states (B, S, M)."""

    @abstractmethod
    def advance(self, target: Tensor, state: State) -> tuple[Tensor, State]:
        """Return the output layer's input for each target token.

        Args:
            target: ids (B, T), int64.
            state: state after the previous tokens.

        Returns:
            (B, T, M), and the state that includes the tokens.
        """

    @abstractmethod
    def select(self, state: State, rows: Tensor) -> State:
        """Select rows of a state: fewer, repeated or reordered."""

    def forward(self, source: Tensor, source_lengths: Tensor, target: Tensor) -> Tensor:
        """Predict each next target token, given the ones before it.

        Args:
            source: token ids (B, S), int64; entries at or after a row's length are never read.
            source_lengths: (B,), int64.
            target: token ids (B, T): the begin token first.

        Returns:
            Logits, (B, T, N).

        Raises:
            ShapeError: a shape, dtype or id is wrong.
        """
        return apply_layer(self.output, self.states(source, source_lengths, target))

    def states(self, source: Tensor, source_lengths: Tensor, target: Tensor) -> Tensor:
        """Return the output layer's input for each target token, (B, T, M). Arguments are those of `forward`."""
        state = self.start(source, source_lengths)
        check_target(target, source.shape[0], self.config.size)
        return self.advance(target, state)[0]

    def start(self, source: Tensor, lengths: Tensor) -> State:
        """Encode the source.

        Args:
            source: token ids (B, S), int64.
            lengths: (B,), int64, from 0 to S.

        Returns:
            The state before the first step.

        Raises:
            ShapeError: a shape, dtype or id is wrong.
        """
        return self.read(source, lengths)[0]

    def start_in(self, session: DecodingSession, source: Tensor, lengths: Tensor) -> State:
        """Like `start`, with a session that keeps packed weights and memory for this and later steps."""
        return self.read(source, lengths, session)[0]

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Read the newest token of each row and predict the next one, within the hooks of this model.

        Hooks see the tokens (B, 1) and their scores (B, 1, N), as those of a target of length 1.

        Args:
            tokens: ids (B,), int64.
            state: state after the previous tokens.

        Returns:
            Scores (B, N), and the state that includes `tokens`.
        """
        logits, (_, after) = self.predict(tokens[:, None], state)
        return logits[:, 0], after

    def predict(self, target: Tensor, state: State) -> tuple[Tensor, tuple[Tensor, State]]:
        """Predict each next target token, within the hooks of this model, which see `target` and the scores.

        Args:
            target: ids (B, T), int64.
            state: state after the previous tokens.

        Returns:
            Scores (B, T, N); and what `advance` returns.
        """
        return step_through_hooks(self, self._predict, target, state)

    def _predict(self, target: Tensor, state: State) -> tuple[Tensor, tuple[Tensor, State]]:
        states, after = self.advance(target, state)
        return apply_layer(self.output, states, after.session), (states, after)
