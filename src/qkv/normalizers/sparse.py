"""Normalizers that give most keys zero weight: sparsemax and the entmax family."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from qkv.normalizers import steep
from qkv.normalizers.base import Normalizer, hide, state_scores
from qkv.values.parameters import Parameter, above, readable, spread
from qkv.values.pytree import value


@final
@value
@dataclass(frozen=True)
class Sparsemax(Normalizer):
    """w = max(0, s − τ), the Euclidean projection of the scores onto the simplex; τ makes the row sum to one.

    Source: Martins and Astudillo 2016, "From Softmax to Sparsemax", algorithm 1.

    Example:
        >>> Sparsemax()(torch.tensor([[1.0, 0.5, -1.0]]))
        tensor([[0.7500, 0.2500, 0.0000]])
    """

    convex: ClassVar[bool] = True

    def __call__(self, scores: Tensor, visible: Tensor | None = None) -> Tensor:
        """Compute max(0, s − τ)."""
        return _with_empty_rows(scores, visible, lambda z: torch.relu(z - sparsemax_threshold(z)))

    def state(self, scores: Tensor, visible: Tensor | None = None) -> Tensor:
        """Compute the threshold τ; +inf for a fully masked row."""
        s, seen = state_scores(scores, visible, -torch.inf)
        return threshold(s, self(s, seen), 2.0)


@final
@value
@dataclass(frozen=True, eq=False)
class Entmax(Normalizer):
    """w = max(0, (α−1)s − τ)^(1/(α−1)), the family between softmax (α → 1) and sparsemax (α = 2).

    Args:
        alpha: α > 1, a number or tensor (H,) per head; it can be learned.

    Raises:
        ConfigError: alpha is not above 1.

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
        """Compute max(0, (α−1)s − τ)^(1/(α−1))."""
        alpha = spread(self.alpha)
        return _with_empty_rows(scores, visible, lambda z: entmax_weights(z, alpha))

    def state(self, scores: Tensor, visible: Tensor | None = None) -> Tensor:
        """Compute the threshold τ; +inf for a fully masked row."""
        s, seen = state_scores(scores, visible, -torch.inf)
        return threshold(s, self(s, seen), spread(self.alpha))


def _with_empty_rows(scores: Tensor, visible: Tensor | None, weights_of: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply `weights_of`, in at least float32, to rows shifted to a maximum of 0; fully masked rows get weights 0."""
    if scores.shape[-1] == 0:
        return scores
    # Ranks and running sums of a row do not fit half precision.
    s = hide(scores if scores.dtype == torch.float64 else scores.float(), visible, -torch.inf)
    top = s.detach().amax(-1, keepdim=True)
    empty = top == -torch.inf
    z = s - torch.where(empty, torch.zeros_like(top), top)
    # The support of the row lies within 1/(α−1) of the maximum: a masked score of -inf can stay out of the sums.
    z = torch.where(empty, torch.zeros_like(z), z)
    weights = torch.where(empty, torch.zeros_like(z), weights_of(z))
    return hide(weights, visible, 0).to(scores.dtype)


def sparsemax_threshold(z: Tensor) -> Tensor:
    """Find τ with Σ max(0, z − τ) = 1 for each row, (..., 1), by sorting and one Newton step, which rounds once.

    Example:
        >>> sparsemax_threshold(torch.tensor([[0.0, -0.5]]))
        tensor([[-0.7500]])
    """
    with torch.no_grad():
        ordered = z.clamp(min=-2).sort(-1, descending=True).values
        rank = torch.arange(1, z.shape[-1] + 1, device=z.device, dtype=z.dtype)
        total = ordered.cumsum(-1) - 1
        support = (rank * ordered > total).sum(-1, keepdim=True).clamp(min=1)
        start = total.gather(-1, support - 1) / support.to(z.dtype)
    return _newton(z, start, 2.0)


def entmax_weights(z: Tensor, alpha: float | Tensor) -> Tensor:
    """Compute the weights for any α > 1, from rows shifted to a maximum of 0.

    Example:
        >>> entmax_weights(torch.tensor([[0.0, -0.5]]), 2.0)
        tensor([[0.7500, 0.2500]])
    """
    if steep.served(z) and steep.is_steep(alpha):
        return steep.weights(z, alpha)
    if isinstance(alpha, Tensor):
        alpha = alpha.to(torch.promote_types(alpha.dtype, z.dtype))
    # Replace a masked -inf by a score that also has weight 0: alpha's gradient would be -inf times 0.
    hidden = z == -torch.inf
    x = torch.where(hidden, -2.0, torch.where(hidden, 0.0, z) * (alpha - 1))
    t = torch.relu(x - _threshold(x, alpha))
    return t * _slopes(t, alpha)


def _threshold(x: Tensor, alpha: float | Tensor) -> Tensor:
    """Find the root τ of Σ max(0, x − τ)^p = 1, p = 1/(α−1), for rows whose maximum is 0; differentiable twice.

    The root is found to the last bit without recording a graph. Each Newton step from there leaves the value unchanged
    and doubles the order to which its derivatives in x and α are correct.
    """
    with torch.no_grad():
        tau = _root(x, alpha)
    return _newton(x, _newton(x, tau, alpha), alpha)


def _newton(x: Tensor, tau: Tensor, alpha: float | Tensor) -> Tensor:
    """Take one Newton step towards Σ max(0, x − τ)^p = 1."""
    t = torch.relu(x - tau)
    slopes = _slopes(t, alpha)
    excess = (t * slopes).sum(-1, keepdim=True) - 1
    return tau + excess * (alpha - 1) / slopes.sum(-1, keepdim=True)


def _root(x: Tensor, alpha: float | Tensor) -> Tensor:
    """Find τ by iterating from its smallest possible value −1.

    For α ≤ 2 the p-norm of max(0, x − τ) is convex in τ: Newton steps towards norm 1 never overshoot the root, and each
    at least quarters the product of the remaining error and its slope. (The most observed is ten steps, in float64 with
    3,000 keys.) For α > 2 it is not convex: the interval from −1 to −n^(1−α) is bisected.

    Source: Michelot 1986, "A finite algorithm for finding the projection of a point onto the canonical simplex" (α =
        2); Peters, Niculae and Martins 2019, "Sparse Sequence-to-Sequence Models", algorithm 1 (bisection).
    """
    convex = _all_at_most_two(alpha)
    digits = 24 if x.dtype == torch.float32 else 53
    low = torch.full_like(x[..., :1], -1)
    # Under tracing, a tensor made from the number of keys would turn that number into a constant.
    high = low * torch.full_like(low, x.shape[-1]) ** (1 - alpha)
    tau = low
    for _ in range(digits // 2 if convex else digits + 7):
        t = torch.relu(x - tau)
        slopes = _slopes(t, alpha)
        total = (t * slopes).sum(-1, keepdim=True)
        following = tau + (total - total ** (2 - alpha)) / slopes.sum(-1, keepdim=True)
        if not convex:
            low, high = torch.where(total >= 1, tau, low), torch.where(total >= 1, high, tau)
            following = torch.where(torch.as_tensor(alpha, device=tau.device) > 2, (low + high) / 2, following)
        moved = following > tau if convex else following != tau
        if readable(x) and not bool(moved.any()):
            break
        tau = following
    return tau


def _all_at_most_two(alpha: float | Tensor) -> bool:
    """Return whether α ≤ 2 everywhere, as far as that can be known."""
    if isinstance(alpha, Tensor):
        return readable(alpha) and bool((alpha <= 2).all())
    return alpha <= 2


def _slopes(t: Tensor, alpha: float | Tensor) -> Tensor:
    """Return t^(p−1) where t > 0, and 0 elsewhere."""
    if not isinstance(alpha, Tensor) and alpha in (1.5, 2.0):
        return t if alpha == 1.5 else (t > 0).to(t.dtype)
    return clamped_power(t, (2 - alpha) / (alpha - 1))


def clamped_power(base: Tensor, exponent: float | Tensor) -> Tensor:
    """Return max(0, base)^exponent, 0 with zero gradient outside."""
    inside = base > 0
    return torch.where(inside, torch.where(inside, base, torch.ones_like(base)) ** exponent, torch.zeros_like(base))


def threshold(s: Tensor, w: Tensor, alpha: float | Tensor) -> Tensor:
    """Recover τ from w = max(0, (α−1)s − τ)^(1/(α−1)) at each row's largest weight; +inf for a fully masked row."""
    if not s.shape[-1]:
        return s.new_full(s.shape[:-1], torch.inf)
    largest, place = w.max(-1, keepdim=True)
    tau = s.gather(-1, place) * (alpha - 1) - largest ** (alpha - 1)
    return torch.where(largest > 0, tau, torch.full_like(tau, torch.inf)).squeeze(-1)
