"""Normalizers that own their parameters and build the normalizer's value in each forward pass."""

import math
from abc import abstractmethod
from typing import final

import torch
from torch import Tensor, nn

from qkv.errors import ConfigError
from qkv.nn.inputs import expect_optional_sizes
from qkv.normalizers.base import Normalizer
from qkv.normalizers.dense import Sigmoid, Softmax
from qkv.normalizers.sparse import Entmax
from qkv.values.checked import checked
from qkv.values.parameters import Owner, expect_floats


@checked
class NormalizerModule(nn.Module, Owner):
    """Parameters of a normalizer, for `attention(..., normalizer=module.value())`."""

    @abstractmethod
    def value(self) -> Normalizer:
        """Build the normalizer with the current parameters."""

    def forward(self, scores: Tensor, visible: Tensor | None = None) -> Tensor:
        """Compute the weights (..., Q, K) by the equation, for inspection and tests."""
        expect_floats("scores", scores)
        return self.value()(scores, visible)


@checked
@final
class SinkSoftmax(NormalizerModule):
    """exp(s)/(Σexp(s) + exp(sink)) with a learned sink, which lets a head attend to nothing.

    Args:
        heads: H, for one sink per head; None for one.
        sink: initial value; 0 adds 1 to the denominator.

    Source: Miller 2023, "Attention Is Off By One"; OpenAI 2025, "gpt-oss" (one learned sink for each head).

    Example:
        >>> SinkSoftmax(heads=2)(torch.zeros(2, 1, 3)).sum(-1).tolist()
        [[0.75], [0.75]]
    """

    def __init__(self, heads: int | None = None, sink: float = 0.0) -> None:
        super().__init__()
        self._initial = sink
        self.sink = nn.Parameter(_full(heads, sink))

    def reset_parameters(self) -> None:
        """Set the initial sinks."""
        nn.init.constant_(self.sink, self._initial)

    def value(self) -> Normalizer:
        """Build the softmax with the current sink."""
        return Softmax(self.sink)


@checked
@final
class LearnedSigmoid(NormalizerModule):
    """σ(s + b), each weight independently, with b learned.

    Args:
        keys: n, how many keys a row typically sees: b starts at −log n, so that row sums start at about one.
        heads: H, for one bias per head; None for one.

    Raises:
        ConfigError: `keys` is less than one.

    Source: Ramapuram et al. 2024, "Theory, Analysis, and Best Practices for Sigmoid Self-Attention", section 3.

    Example:
        >>> round(LearnedSigmoid(keys=100)(torch.zeros(1, 100)).sum().item(), 2)
        0.99
    """

    def __init__(self, keys: int, heads: int | None = None) -> None:
        super().__init__()
        if keys < 1:
            raise ConfigError("keys", "a number from 1", f"{keys}", "It is how many keys a row sees.")
        self._initial = -math.log(keys)
        self.bias = nn.Parameter(_full(heads, self._initial))

    def reset_parameters(self) -> None:
        """Set the initial biases."""
        nn.init.constant_(self.bias, self._initial)

    def value(self) -> Normalizer:
        """Build the sigmoid with the current bias."""
        return Sigmoid(self.bias)


@checked
@final
class LearnedEntmax(NormalizerModule):
    """Entmax with α = 1 + σ(a) and a learned: each head learns an α between softmax (1) and sparsemax (2).

    Args:
        heads: H, for one α per head; None for one.
        alpha: initial α.

    Raises:
        ConfigError: alpha is not between 1 and 2.

    Source: Correia, Niculae and Martins 2019, "Adaptively Sparse Transformers", section 3.2.

    Example:
        >>> LearnedEntmax()(torch.tensor([[0.0, 0.0, -10.0]])).detach()
        tensor([[0.5000, 0.5000, 0.0000]])
    """

    def __init__(self, heads: int | None = None, alpha: float = 1.5) -> None:
        super().__init__()
        if not 1 < alpha < 2:
            hint = "For alpha = 1 use Softmax(), for alpha = 2 Sparsemax()."
            raise ConfigError("alpha", "a number between 1 and 2", f"{alpha:g}", hint)
        self._initial = math.log((alpha - 1) / (2 - alpha))
        self.logit = nn.Parameter(_full(heads, self._initial))

    def reset_parameters(self) -> None:
        """Set the initial alphas."""
        nn.init.constant_(self.logit, self._initial)

    def value(self) -> Normalizer:
        """Build entmax with the current alpha."""
        return Entmax(1 + self.logit.sigmoid())


def module_or_value(
    normalizer: Normalizer | NormalizerModule | None,
) -> tuple[NormalizerModule | None, Normalizer | None]:
    """Return (module, None) for a normalizer with parameters, else (None, value): a layer registers modules only.

    Example:
        >>> module_or_value(Softmax())
        (None, Softmax(sink=None))
    """
    return (normalizer, None) if isinstance(normalizer, NormalizerModule) else (None, normalizer)


def _full(heads: int | None, number: float) -> Tensor:
    expect_optional_sizes(heads=heads)
    return torch.full(() if heads is None else (heads,), float(number))
