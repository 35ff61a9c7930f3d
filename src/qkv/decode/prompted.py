"""A language model as a `Stepper`: the source is a prompt, and the target its continuation."""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, final

import torch
from torch import Tensor

from qkv.errors import ConfigError
from qkv.linalg.session import DecodingSession
from qkv.values.rows import select_rows


class PaddedReader(Protocol):
    """A language model that reads rows of different lengths, padded at the left."""

    def read(
        self,
        tokens: Tensor,
        state: Any = None,
        *,
        padding: Tensor | None = None,
        session: DecodingSession | None = None,
    ) -> tuple[Tensor, Any]:
        """Read tokens (B, T), of which each row's first `padding` (B,) hide; return scores (B, T, N) and the state."""
        ...

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Read the newest token of each row (B,); return the scores of the next one (B, N) and the state."""
        ...

    def select(self, state: Any, rows: Tensor) -> Any:
        """Take rows of a state."""
        ...


class Continuation(NamedTuple):
    """The state after a prompt.

    Attributes:
        scores: of the first token after the prompt (B, N); None once it was chosen.
        inner: the model's own state.
    """

    scores: Tensor | None
    inner: Any


@final
@dataclass(frozen=True)
class Prompted:
    """Continues prompts of different lengths by greedy decoding, beams or sampling.

    The begin mark of the decoding is not read: a prompt is followed by what the model predicts after it.

    Args:
        model: the language model.

    Example:
        >>> from qkv.decode.greedy import greedy
        >>> from qkv.models.configs.language_model import DecoderConfig
        >>> from qkv.models.language_model import LanguageModel
        >>> model = Prompted(LanguageModel(DecoderConfig(size=20, width=16, heads=2)).eval())
        >>> prompts, lengths = torch.tensor([[5, 6, 7], [8, 0, 0]]), torch.tensor([3, 1])
        >>> [len(hypothesis.ids) <= 4 for hypothesis in greedy(model, prompts, lengths, bos=0, eos=1, limit=4)]
        [True, True]
    """

    model: PaddedReader

    def start(self, source: Tensor, lengths: Tensor, session: DecodingSession | None = None) -> Continuation:
        """Read the prompts.

        Args:
            source: token ids (B, S), int64; those at or after a row's length are never read.
            lengths: tokens in each row (B,), int64, from 1 to S.
            session: keeps packed weights and memory for all steps.

        Returns:
            The state after them.

        Raises:
            ConfigError: a prompt is empty.
        """
        if not bool((lengths > 0).all()):
            hint = "Begin with the model's begin token."
            raise ConfigError("source", "prompts of at least one token", "an empty one", hint)
        count = source.shape[1]
        missing = count - lengths
        index = torch.arange(count, device=source.device) - missing[:, None]
        tokens = source.gather(1, index.clamp(min=0)).where(index >= 0, 0)
        # Not every model can read padding.
        padding = {"padding": missing} if bool(missing.any()) else {}
        scores, state = self.model.read(tokens, session=session, **padding)
        return Continuation(scores[:, -1], state)

    def step(self, tokens: Tensor, state: Continuation) -> tuple[Tensor, Continuation]:
        """Predict the next token; the first tokens given are the begin tokens, which are not read."""
        if state.scores is not None:
            return state.scores, Continuation(None, state.inner)
        scores, inner = self.model.step(tokens, state.inner)
        return scores, Continuation(None, inner)

    def select(self, state: Continuation, rows: Tensor) -> Continuation:
        """Take rows of a state."""
        scores = None if state.scores is None else select_rows(state.scores, rows)
        return Continuation(scores, self.model.select(state.inner, rows))
