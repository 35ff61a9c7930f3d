"""Several models as one, by the mean of their predictions."""

from dataclasses import dataclass
from typing import Any, final, get_args

import torch
from torch import Tensor

from qkv.decode.choices import Mean
from qkv.decode.likeliest import log_probabilities
from qkv.decode.protocol import Stepper, fork, regroup
from qkv.errors import ConfigError, expect_name
from qkv.linalg.session import DecodingSession


@final
@dataclass(frozen=True, eq=False)
class Ensemble:
    """Models over one vocabulary that are decoded together, as a model whose state holds a state of each.

    Args:
        models: the models, at least one.
        mean: "probability" for the arithmetic mean of their probabilities, in which one model can make a token likely;
            "log_probability" for the geometric mean, in which one model can rule a token out.

    Raises:
        ConfigError: no models, or an unknown mean.

    Example:
        >>> class Fixed:
        ...     def __init__(self, *probabilities):
        ...         self.scores = torch.tensor(probabilities).log()
        ...     def start(self, source, lengths, session=None):
        ...         return source
        ...     def step(self, tokens, state):
        ...         return self.scores.expand(len(tokens), -1), state
        ...     def select(self, state, rows):
        ...         return state[rows]
        >>> both = Ensemble((Fixed(0.9, 0.1), Fixed(0.5, 0.5)))
        >>> scores, _ = both.step(torch.zeros(1), both.start(torch.zeros(1, 2), torch.ones(1)))
        >>> scores.softmax(-1)
        tensor([[0.7000, 0.3000]])
    """

    models: tuple[Stepper[Any], ...]
    mean: Mean = "probability"

    def __post_init__(self) -> None:
        if not self.models:
            raise ConfigError("models", "at least one", "none", "Give the models to decode together.")
        expect_name("mean", self.mean, get_args(Mean))

    def start(self, source: Tensor, lengths: Tensor, session: DecodingSession | None = None) -> tuple[Any, ...]:
        """Read the source with each model; they share the session."""
        return tuple(model.start(source, lengths, session) for model in self.models)

    def step(self, tokens: Tensor, state: tuple[Any, ...]) -> tuple[Tensor, tuple[Any, ...]]:
        """Read the newest tokens, and return log-probabilities (B, N), up to a constant in each row."""
        steps = [model.step(tokens, part) for model, part in zip(self.models, state, strict=True)]
        predicted = torch.stack([log_probabilities(logits) for logits, _ in steps])
        together = predicted.logsumexp(0) if self.mean == "probability" else predicted.mean(0)
        return together, tuple(after for _, after in steps)

    def select(self, state: tuple[Any, ...], rows: Tensor) -> tuple[Any, ...]:
        """Take rows."""
        return tuple(model.select(part, rows) for model, part in zip(self.models, state, strict=True))

    def fork(self, state: tuple[Any, ...], rows: Tensor, width: int) -> tuple[Any, ...]:
        """Take rows, and turn each into several with the same past."""
        return tuple(fork(model, part, rows, width) for model, part in zip(self.models, state, strict=True))

    def regroup(self, state: tuple[Any, ...], rows: Tensor) -> tuple[Any, ...]:
        """Take rows of a forked state."""
        return tuple(regroup(model, part, rows) for model, part in zip(self.models, state, strict=True))
