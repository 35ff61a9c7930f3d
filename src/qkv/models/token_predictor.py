"""The methods that all language models share; each model advances its own state."""

from abc import abstractmethod
from functools import partial
from typing import Any, Generic, TypeVar

from torch import Tensor, nn

from qkv.linalg.matmul import apply_layer
from qkv.linalg.session import DecodingSession
from qkv.models.checks import check_target
from qkv.models.encoder_decoder import InSession
from qkv.nn.decoding.cache import BatchRows
from qkv.values.hooks import step_through_hooks

State = TypeVar("State", bound=InSession)


class TokenPredictor(nn.Module, Generic[State]):
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
    def begin(self, tokens: Tensor, session: DecodingSession | None = None) -> State:
        """Return the initial state for a batch of tokens (B, T); a session keeps packed weights for all steps."""

    @abstractmethod
    def continued(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Return the output layer's input for each token (B, T, M), and the state after the last. Tokens are valid."""

    @abstractmethod
    def select(self, state: State, rows: Tensor) -> State:
        """Select rows of a state: fewer, repeated or reordered."""

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
        self, tokens: Tensor, state: State | None = None, *, session: DecodingSession | None = None
    ) -> tuple[Tensor, State]:
        """Read tokens that follow those of a state, and predict the one after each, within the hooks of this model.

        Hooks see what they see of `forward`: the tokens and their scores.

        Args:
            tokens: ids (B, T), int64.
            state: state after the previous tokens; None initially.
            session: keeps packed weights and memory for this and later steps; initially.

        Returns:
            Scores (B, T, N), and the state that includes `tokens`.

        Raises:
            ShapeError: a shape, dtype or id is wrong.
        """
        return step_through_hooks(self, partial(self._predict, session=session), tokens, state)

    def _predict(
        self, tokens: Tensor, state: State | None, session: DecodingSession | None = None
    ) -> tuple[Tensor, State]:
        states, after = self.advance(tokens, state, session)
        return self.logits(states, after.session), after

    def advance(
        self, tokens: Tensor, state: State | None = None, session: DecodingSession | None = None
    ) -> tuple[Tensor, State]:
        """Like `read`, but return the inputs of the output layer, (B, T, M)."""
        check_target(tokens, tokens.shape[0], self.config.size)
        return self.continued(tokens, self.begin(tokens, session) if state is None else state)

    def logits(self, states: Tensor, session: DecodingSession | None = None) -> Tensor:
        """Apply the output layer: (..., M) to (..., N)."""
        return apply_layer(self.output, states, session)

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Read the newest token of each row and predict the next one, as `read`.

        Args:
            tokens: ids (B,), int64.
            state: state after the previous tokens.

        Returns:
            Scores (B, N), and the state that includes `tokens`.
        """
        logits, after = self.read(tokens[:, None], state)
        return logits[:, 0], after
