"""Normalizers that give most keys nothing: sparsemax and the entmax family."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from qkv.normalizers.base import Normalizer, hide
from qkv.parameters import Parameter, above, spread
from qkv.pytree import value


@final
@value
@dataclass(frozen=True)
class Sparsemax(Normalizer):
    """w = max(0, s − τ), the Euclidean projection of the scores on the simplex; τ makes the row sum to one.

    Source: Martins and Astudillo 2016, "From Softmax to Sparsemax", algorithm 1.

    Example:
        >>> Sparsemax()(torch.tensor([[1.0, 0.5, -1.0]]))
        tensor([[0.7500, 0.2500, 0.0000]])
    """

    convex: ClassVar[bool] = True

    def __call__(self, scores: Tensor, visible: Tensor | None = None) -> Tensor:
        """max(0, s − τ)."""
        return _with_empty_rows(scores, visible, lambda z: torch.relu(z - sparsemax_threshold(z)))


@final
@value
@dataclass(frozen=True, eq=False)
class Entmax(Normalizer):
    """w = max(0, (α−1)s − τ)^(1/(α−1)), the family between softmax (α → 1) and sparsemax (α = 2).

    Args:
        alpha: α > 1, a number or tensor (H,) per head; it may be learned.

    Raises:
        ConfigError: an alpha that is not above 1.

    Source: Peters, Niculae and Martins 2019, "Sparse Sequence-to-Sequence Models", eq. 10 and algorithm 2;
        Correia et al. 2019, "Adaptively Sparse Transformers" (learned α).

    Example:
        >>> Entmax()(torch.tensor([[0.0, 0.0, -10.0]]))
        tensor([[0.5000, 0.5000, 0.0000]])
    """

    convex: ClassVar[bool] = True
    parameters: ClassVar[tuple[Parameter, ...]] = (Parameter("alpha", 0),)
    alpha: float | Tensor = 1.5

    def __post_init__(self) -> None:
        above("Entmax(alpha)", self.alpha, 1, "alpha = 1 is softmax: use Softmax().")

    def __call__(self, scores: Tensor, visible: Tensor | None = None) -> Tensor:
        """max(0, (α−1)s − τ)^(1/(α−1))."""
        if not isinstance(self.alpha, Tensor) and self.alpha == 1.5:
            return _with_empty_rows(scores, visible, lambda z: torch.relu(z / 2 - entmax15_threshold(z / 2)).square())
        # A number stays a double, whatever the scores are: a tensor without dimensions does not widen them.
        alpha = torch.as_tensor(spread(self.alpha), device=scores.device, dtype=_dtype(self.alpha))
        return _with_empty_rows(scores, visible, lambda z: entmax_weights(z, alpha))


def _dtype(parameter: float | Tensor) -> torch.dtype:
    return parameter.dtype if isinstance(parameter, Tensor) else torch.float64


def _with_empty_rows(scores: Tensor, visible: Tensor | None, weigh: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply `weigh`, in float32 at least, to rows shifted to a maximum of 0; rows that see nothing get weights 0."""
    if scores.shape[-1] == 0:
        return scores
    # Ranks and running sums of a row do not fit in half precision.
    s = hide(scores if scores.dtype == torch.float64 else scores.float(), visible, -torch.inf)
    top = s.detach().amax(-1, keepdim=True)
    empty = top == -torch.inf
    z = s - torch.where(empty, torch.zeros_like(top), top)
    # The support of the row lies within 1/(α−1) of the maximum: a hidden score of -inf needs no place in the sums.
    z = torch.where(empty, torch.zeros_like(z), z)
    weights = torch.where(empty, torch.zeros_like(z), weigh(z))
    return hide(weights, visible, 0).to(scores.dtype)


def sparsemax_threshold(z: Tensor) -> Tensor:
    """τ with Σ max(0, z − τ) = 1 for each row, by sorting; (..., 1).

    Example:
        >>> sparsemax_threshold(torch.tensor([[0.0, -0.5]]))
        tensor([[-0.7500]])
    """
    ordered = z.sort(-1, descending=True).values
    ordered = torch.where(ordered < -2, torch.full_like(ordered[..., :1], -2), ordered)
    rank = torch.arange(1, z.shape[-1] + 1, device=z.device, dtype=z.dtype)
    total = ordered.cumsum(-1) - 1
    support = (rank * ordered > total).sum(-1, keepdim=True).clamp(min=1)
    return total.gather(-1, support - 1) / support.to(z.dtype)


def entmax15_threshold(z: Tensor) -> Tensor:
    """τ with Σ max(0, z − τ)² = 1 for each row, by sorting and a quadratic equation; (..., 1).

    Example:
        >>> entmax15_threshold(torch.tensor([[0.0, -5.0]]))
        tensor([[-1.]])
    """
    ordered = z.sort(-1, descending=True).values
    ordered = torch.where(ordered < -2, torch.full_like(ordered[..., :1], -2), ordered)
    rank = torch.arange(1, z.shape[-1] + 1, device=z.device, dtype=z.dtype)
    mean = ordered.cumsum(-1) / rank
    spread_ = (ordered.square().cumsum(-1) / rank - mean.square()) * rank
    rest = (1 - spread_) / rank
    # sqrt has no gradient at 0, where the support is about to change: take the one-sided limit 0.
    positive = rest > 0
    root = torch.where(positive, torch.where(positive, rest, torch.ones_like(rest)).sqrt(), torch.zeros_like(rest))
    candidates = mean - root
    support = (candidates <= ordered).sum(-1, keepdim=True).clamp(min=1)
    return candidates.gather(-1, support - 1)


def entmax_weights(z: Tensor, alpha: Tensor) -> Tensor:
    """The weights for any α > 1, rows shifted to a maximum of 0: bisection, then differentiable Newton steps.

    Bisection finds τ to the last bit without recording anything; each Newton step at the solution then leaves the
    value and doubles the order to which its derivatives in z and α are right.

    Example:
        >>> entmax_weights(torch.tensor([[0.0, -0.5]]), torch.tensor(2.0))
        tensor([[0.7500, 0.2500]])
    """
    # A hidden -inf is moved to where its weight is 0 as well: alpha's gradient would be -inf times 0.
    hidden = z == -torch.inf
    x = torch.where(hidden, -2.0, torch.where(hidden, 0.0, z) * (alpha - 1))
    with torch.no_grad():
        low = torch.full_like(x[..., :1], -1)
        high = -(torch.as_tensor(x.shape[-1], dtype=x.dtype, device=x.device) ** (1 - alpha))
        high = high.expand_as(low).clone()
        for _ in range(60 if x.dtype == torch.float64 else 30):
            middle = (low + high) / 2
            enough = clamped_power(x - middle, 1 / (alpha - 1)).sum(-1, keepdim=True) >= 1
            low, high = torch.where(enough, middle, low), torch.where(enough, high, middle)
    threshold = low
    for _ in range(2):
        excess = clamped_power(x - threshold, 1 / (alpha - 1)).sum(-1, keepdim=True) - 1
        slope = (clamped_power(x - threshold, (2 - alpha) / (alpha - 1)) / (alpha - 1)).sum(-1, keepdim=True)
        threshold = threshold + excess / slope
    return clamped_power(x - threshold, 1 / (alpha - 1))


def clamped_power(base: Tensor, exponent: Tensor) -> Tensor:
    """max(0, base)^exponent, 0 with zero gradient outside."""
    inside = base > 0
    return torch.where(inside, torch.where(inside, base, torch.ones_like(base)) ** exponent, torch.zeros_like(base))
