"""The ranking of hypotheses of different lengths, by length normalization and the coverage penalty."""

import math
from dataclasses import dataclass
from typing import Literal, final, get_args

import torch
from torch import Tensor

from qkv.errors import ConfigError, nearest

Normalization = Literal["plain", "wu"]
_NAMES: tuple[str, ...] = get_args(Normalization)


@final
@dataclass(frozen=True)
class Ranking:
    """s(Y) = log P(Y) / lp(Y) + cp(Y), with lp = |Y|^α, or Wu's ((5 + |Y|) / 6)^α; |Y| counts the end token too.

    The coverage penalty is cp = β Σ_i log min(Σ_j p_ij, 1), with p_ij the attention weight of source position i at
    target token j. It is 0 if every source position received a total weight of at least 1, and negative otherwise.

    Args:
        length_penalty: α, at least 0: 0 compares log-probabilities, 1 their means per token.
        normalization: "plain" or "wu".
        coverage: β, at least 0.

    Raises:
        ConfigError: an unknown name, or a negative number.

    Source: Wu et al. 2016, "Google's Neural Machine Translation System", eq. 14.

    Example:
        >>> Ranking(1.0).score(-3.0, length=4), Ranking(1.0, "wu").score(-3.0, length=4)
        (-0.75, -2.0)
    """

    length_penalty: float = 1.0
    normalization: Normalization = "plain"
    coverage: float = 0.0

    def __post_init__(self) -> None:
        for name, number in (("length_penalty", self.length_penalty), ("coverage", self.coverage)):
            if not 0 <= number < math.inf:
                raise ConfigError(name, "0 or more", f"{number}", "0 switches it off.")
        if self.normalization not in _NAMES:
            got, hint = repr(self.normalization), nearest(str(self.normalization), _NAMES)
            raise ConfigError("normalization", '"plain" or "wu"', got, hint)

    def divisor(self, length: int) -> float:
        """Return lp for a length of at least 1."""
        base = length if self.normalization == "plain" else (5 + length) / 6
        return float(base**self.length_penalty)

    def score(self, total: float, length: int, covered: float = 0.0) -> float:
        """Return s(Y).

        Args:
            total: log P(Y).
            length: |Y|, the end token included, at least 1.
            covered: Σ_i log min(Σ_j p_ij, 1).
        """
        return total / self.divisor(length) + self.coverage * covered

    def bound(self, total: float, limit: int) -> float:
        """Return an upper bound of s for all continuations of a hypothesis.

        Log-probabilities only fall, the limit is the largest length to divide by, and the coverage penalty is never
        positive.

        Args:
            total: log P of the hypothesis so far.
            limit: the largest length.
        """
        return total / self.divisor(limit)


def log_coverage(weights_RS: Tensor, lengths: Tensor) -> Tensor:
    """Return Σ_i log min(Σ_j p_ij, 1) over real source positions.

    Args:
        weights_RS: for each row, the attention weight of each source position, summed over target tokens.
        lengths: the number of real source positions (R,).

    Returns:
        (R,), float64; 0 for an empty source.

    Example:
        >>> log_coverage(torch.tensor([[1.5, 0.5, 0.0]]), torch.tensor([2])).exp()
        tensor([0.5000], dtype=torch.float64)
    """
    real = torch.arange(weights_RS.shape[-1], device=lengths.device) < lengths[:, None]
    return torch.where(real, weights_RS.double().clamp(max=1.0), 1.0).log().sum(-1)
