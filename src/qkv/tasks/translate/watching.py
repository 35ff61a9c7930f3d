"""A translation model that also returns the attention of its newest token."""

from dataclasses import dataclass
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from qkv.decode.protocol import as_beam_stepper, start_in
from qkv.linalg.session import DecodingSession
from qkv.recording.recorder import record
from qkv.tasks.translate.model import TranslationModel


class Watched(NamedTuple):
    """A model's state, and the weights of each row (R, S)."""

    state: Any
    weights: Tensor


@final
@dataclass(frozen=True, eq=False)
class Watching:
    """A model as a `BeamStepper` whose state contains the weights of its alignment layer, averaged over heads.

    Args:
        model: a model with attention.
        layer: the attention that aligns target and source.
    """

    model: TranslationModel
    layer: str

    def start(self, source: Tensor, lengths: Tensor) -> Watched:
        """Encode the source."""
        return Watched(self.model.start(source, lengths), torch.zeros(source.shape, device=source.device))

    def start_in(self, session: DecodingSession, source: Tensor, lengths: Tensor) -> Watched:
        """Read the source, in a session."""
        model: Any = self.model
        return Watched(start_in(session, model, source, lengths), torch.zeros(source.shape, device=source.device))

    def step(self, tokens: Tensor, state: Watched) -> tuple[Tensor, Watched]:
        """Predict the next token, and record the attention weights."""
        model: Any = self.model
        with record(self.model, layers=[self.layer]) as trace:
            logits, after = model.step(tokens, state.state)
        weights = trace.weights(self.layer)
        weights_BQS = weights.mean(1) if weights.ndim == 4 else weights
        return logits, Watched(after, weights_BQS.flatten(0, 1))

    def select(self, state: Watched, rows: Tensor) -> Watched:
        """Select rows."""
        model: Any = self.model
        return Watched(model.select(state.state, rows), state.weights[rows])

    def fork(self, state: Watched, rows: Tensor, width: int) -> Watched:
        """Select rows, and repeat each for several hypotheses."""
        model: Any = as_beam_stepper(self.model)
        return Watched(model.fork(state.state, rows, width), state.weights[rows.repeat_interleave(width)])

    def regroup(self, state: Watched, rows: Tensor) -> Watched:
        """Select rows of a forked state."""
        model: Any = as_beam_stepper(self.model)
        return Watched(model.regroup(state.state, rows), state.weights[rows])
