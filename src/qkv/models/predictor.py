"""Base classes of models that predict one token after another: translators, language models, pointer networks."""

from abc import abstractmethod
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from torch import Tensor, nn

from qkv.linalg.matmul import apply_layer
from qkv.linalg.session import DecodingSession
from qkv.models.checks import check_target
from qkv.nn.decoding.cache import BatchRows
from qkv.values.hooks import step_through_hooks

State = TypeVar("State")


class Predictor(nn.Module, Generic[State]):
    """Base class of models that predict one token after another."""

    @abstractmethod
    def _predict(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Return the scores of the token after each one (B, T, N), and the state after the last."""

    @abstractmethod
    def select(self, state: State, rows: Tensor) -> State:
        """Select rows of a state: fewer, repeated or reordered."""

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Read the newest token of each row and predict the next one, within the hooks of this model.

        Hooks see the tokens (B, 1) and their scores (B, 1, N), as those of a target of length 1.

        Args:
            tokens: ids (B,), int64; of a pointer network, positions.
            state: state after the previous tokens.

        Returns:
            Scores (B, N), logits or log-probabilities as those of the model; and the state that includes `tokens`.
        """
        scores, after = step_through_hooks(self, self._predict, tokens[:, None], state)
        return scores[:, 0], after


class InSession(Protocol):
    """A decoder's state that knows the session of its decoding."""

    @property
    def session(self) -> DecodingSession | None:
        """What keeps packed weights and memory for the steps; None to keep nothing."""


SessionState = TypeVar("SessionState", bound=InSession)


class EncoderDecoder(Predictor[SessionState]):
    """Base class of translators. A subclass encodes the source, advances its state by target tokens, and selects rows.

    Attributes:
        config: the sizes.
        embed: the embedding of tokens.
        embed_source: that of source tokens, if they have another one.
        output: the output layer.
    """

    config: Any
    embed: nn.Embedding
    embed_source: nn.Embedding | None
    output: nn.Linear

    @property
    def source_embedding(self) -> nn.Embedding:
        """The embedding of source tokens."""
        return self.embed if self.embed_source is None else self.embed_source

    @abstractmethod
    def read(
        self, source: Tensor, lengths: Tensor, session: DecodingSession | None = None
    ) -> tuple[SessionState, Tensor]:
        """Like `start`, but also return the encoder's states (B, S, M)."""

    @abstractmethod
    def advance(self, target: Tensor, state: SessionState) -> tuple[Tensor, SessionState]:
        """Return the output layer's input for each target token.

        Args:
            target: ids (B, T), int64.
            state: state after the previous tokens.

        Returns:
            (B, T, M), and the state that includes the tokens.
        """

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

    def start(self, source: Tensor, lengths: Tensor, session: DecodingSession | None = None) -> SessionState:
        """Encode the source.

        Args:
            source: token ids (B, S), int64.
            lengths: (B,), int64, from 0 to S.
            session: keeps packed weights and memory for this and later steps.

        Returns:
            The state before the first step.

        Raises:
            ShapeError: a shape, dtype or id is wrong.
        """
        return self.read(source, lengths, session)[0]

    def predict(self, target: Tensor, state: SessionState) -> tuple[Tensor, tuple[Tensor, SessionState]]:
        """Predict each next target token, within the hooks of this model, which see `target` and the scores.

        Args:
            target: ids (B, T), int64.
            state: state after the previous tokens.

        Returns:
            Scores (B, T, N); and what `advance` returns.
        """
        return step_through_hooks(self, self._predict_with_states, target, state)

    def _predict(self, target: Tensor, state: SessionState) -> tuple[Tensor, SessionState]:
        scores, (_, after) = self._predict_with_states(target, state)
        return scores, after

    def _predict_with_states(self, target: Tensor, state: SessionState) -> tuple[Tensor, tuple[Tensor, SessionState]]:
        states, after = self.advance(target, state)
        return apply_layer(self.output, states, after.session), (states, after)


class TokenPredictor(Predictor[SessionState]):
    """Base class of language models. A subclass creates the initial state, advances it by tokens, and selects rows.

    Attributes:
        config: the sizes.
        embed: the embedding of tokens.
        output: the output layer.
        rows: tells hooks where a batch starts and which rows go on.
    """

    config: Any
    embed: nn.Embedding
    output: nn.Linear
    rows: BatchRows

    @abstractmethod
    def begin(self, tokens: Tensor, session: DecodingSession | None = None) -> SessionState:
        """Return the initial state for a batch of tokens (B, T); a session keeps packed weights for all steps."""

    @abstractmethod
    def continued(self, tokens: Tensor, state: SessionState) -> tuple[Tensor, SessionState]:
        """Return the output layer's input for each of some valid tokens (B, T, M), and the state after the last."""

    def forward(self, tokens: Tensor) -> Tensor:
        """Predict the token after each one.

        Args:
            tokens: ids (B, T), int64; T at most `context` if positions are learned.

        Returns:
            Logits, (B, T, N).

        Raises:
            ShapeError: a shape, dtype or id is wrong.
        """
        return self._predict(tokens, None)[0]

    def read(
        self, tokens: Tensor, state: SessionState | None = None, *, session: DecodingSession | None = None
    ) -> tuple[Tensor, SessionState]:
        """Read tokens that follow those of a state, and predict the one after each, within the hooks of this model.

        Hooks see what they see of `forward`: the tokens and their scores.

        Args:
            tokens: ids (B, T), int64.
            state: state after the previous tokens; None initially.
            session: keeps packed weights and memory for this and later steps; used if `state` is None.

        Returns:
            Scores (B, T, N), and the state that includes `tokens`.

        Raises:
            ShapeError: a shape, dtype or id is wrong.
        """
        return step_through_hooks(self, partial(self._predict, session=session), tokens, state)

    def _predict(
        self, tokens: Tensor, state: SessionState | None, session: DecodingSession | None = None
    ) -> tuple[Tensor, SessionState]:
        states, after = self.advance(tokens, state, session)
        return self.logits(states, after.session), after

    def advance(
        self, tokens: Tensor, state: SessionState | None = None, session: DecodingSession | None = None
    ) -> tuple[Tensor, SessionState]:
        """Like `read`, but return the inputs of the output layer, (B, T, M)."""
        check_target(tokens, tokens.shape[0], self.config.size)
        return self.continued(tokens, self.begin(tokens, session) if state is None else state)

    def logits(self, states: Tensor, session: DecodingSession | None = None) -> Tensor:
        """Apply the output layer: (..., M) to (..., N)."""
        return apply_layer(self.output, states, session)
