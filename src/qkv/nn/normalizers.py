"""Normalizers that own their parameters and build the normalizer's value at each forward."""

import math
from abc import abstractmethod
from typing import final

import torch
from torch import Tensor, nn

from qkv.errors import ConfigError, error_message
from qkv.normalizers.base import Normalizer
from qkv.normalizers.dense import Sigmoid, Softmax
from qkv.normalizers.sparse import Entmax
from qkv.values.parameters import Owner


class NormalizerModule(nn.Module, Owner):
    """Parameters of a normalizer; `attention(..., normalizer=module.value())` learns them."""

    @abstractmethod
    def value(self) -> Normalizer:
        """The normalizer with the parameters as they are now."""

    def forward(self, scores: Tensor, visible: Tensor | None = None) -> Tensor:
        """The weights themselves (..., Q, K), by the equation: for study and tests."""
        return self.value()(scores, visible)


@final
class SinkSoftmax(NormalizerModule):
    """exp(s)/(Σexp(s) + exp(sink)), with the sink learned: a head may attend to nothing.

    Args:
        heads: H, for a sink of each head's own; None for one.
        sink: at the start; 0 adds 1 below the line.

    Source: Miller 2023, "Attention Is Off By One"; OpenAI 2025, "gpt-oss" (one learned sink for each head).

    Example:
        >>> SinkSoftmax(heads=2)(torch.zeros(2, 1, 3)).sum(-1).tolist()
        [[0.75], [0.75]]
    """

    def __init__(self, heads: int | None = None, sink: float = 0.0) -> None:
        super().__init__()
        self.sink = nn.Parameter(_full(heads, sink))

    def value(self) -> Normalizer:
        """Softmax with the sink as it is now."""
        return Softmax(self.sink)


@final
class LearnedSigmoid(NormalizerModule):
    """σ(s + b), each weight on its own, with b learned.

    Args:
        keys: n, how many keys rows see as a rule: b starts at −log n, so that rows start with sums of about one.
        heads: H, for a bias of each head's own; None for one.

    Raises:
        ConfigError: fewer than one key.

    Source: Ramapuram et al. 2024, "Theory, Analysis, and Best Practices for Sigmoid Self-Attention", section 3.

    Example:
        >>> round(LearnedSigmoid(keys=100)(torch.zeros(1, 100)).sum().item(), 2)
        0.99
    """

    def __init__(self, keys: int, heads: int | None = None) -> None:
        super().__init__()
        if keys < 1:
            raise ConfigError(error_message("keys", "a number from 1", f"{keys}", "It is how many keys a row sees."))
        self.bias = nn.Parameter(_full(heads, -math.log(keys)))

    def value(self) -> Normalizer:
        """The sigmoid with the bias as it is now."""
        return Sigmoid(self.bias)


@final
class LearnedEntmax(NormalizerModule):
    """Entmax with α = 1 + σ(a), a learned: each head finds its place between softmax (1) and sparsemax (2).

    Args:
        heads: H, for an α of each head's own; None for one.
        alpha: at the start.

    Raises:
        ConfigError: an alpha that is not between 1 and 2.

    Source: Correia, Niculae and Martins 2019, "Adaptively Sparse Transformers", section 3.2.

    Example:
        >>> LearnedEntmax()(torch.tensor([[0.0, 0.0, -10.0]]))
        tensor([[0.5000, 0.5000, 0.0000]], grad_fn=<WhereBackward0>)
    """

    def __init__(self, heads: int | None = None, alpha: float = 1.5) -> None:
        super().__init__()
        if not 1 < alpha < 2:
            hint = "Softmax() is alpha = 1, and Sparsemax() is alpha = 2."
            raise ConfigError(error_message("alpha", "a number between 1 and 2", f"{alpha:g}", hint))
        self.logit = nn.Parameter(_full(heads, math.log((alpha - 1) / (2 - alpha))))

    def value(self) -> Normalizer:
        """Entmax with the alpha as it is now."""
        return Entmax(1 + self.logit.sigmoid())


def _full(heads: int | None, number: float) -> Tensor:
    return torch.full(() if heads is None else (heads,), number)
