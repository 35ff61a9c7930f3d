"""Normalizers that give most keys zero weight: sparsemax and the entmax family."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from qkv.normalizers import steep
from qkv.normalizers.base import Normalizer, empty_rows, hide, state_scores
from qkv.values.execution import on_host, readable
from qkv.values.mapped import by_sample
from qkv.values.parameters import Parameter, above, spread
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
        return _with_empty_rows(scores, visible, lambda z: entmax_weights(z, 2.0))

    def state(self, scores: Tensor, visible: Tensor | None = None) -> Tensor:
        """Compute the threshold τ; +inf for a fully masked row."""
        s, mask = state_scores(scores, visible, -torch.inf)
        return threshold(s, self(scores, mask).double(), 2.0)


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
        s, mask = state_scores(scores, visible, -torch.inf)
        return threshold(s, self(scores, mask).double(), spread(self.alpha))


def _with_empty_rows(scores: Tensor, visible: Tensor | None, weights_of: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply `weights_of`, in at least float32, to rows shifted to a maximum of 0; fully masked rows get weights 0."""
    if scores.shape[-1] == 0:
        return scores
    # Ranks and running sums of a row do not fit half precision.
    s = hide(scores if scores.dtype == torch.float64 else scores.float(), visible, -torch.inf)
    top = s.detach().amax(-1, keepdim=True)
    empty = (top == -torch.inf) if readable(s) else empty_rows(s)
    if readable(empty) and not bool(empty.any()):
        return hide(weights_of(s - top), visible, 0).to(scores.dtype)
    z = s - torch.where(empty, torch.zeros_like(top), top)
    # The support of the row lies within 1/(α−1) of the maximum: a masked score of -inf can stay out of the sums.
    z = torch.where(empty, torch.zeros_like(z), z)
    weights = torch.where(empty, torch.zeros_like(z), weights_of(z))
    return hide(weights, visible, 0).to(scores.dtype)


def _sorted_root(x: Tensor, alpha: float) -> Tensor:
    """Find τ for α = 1.5 or 2 by sorting; in float64, as running sums of many near ties lose digits.

    If the k largest scores are the support, τ is a root of k(τ² − 2mτ + q) = 1 for α = 1.5, with m and q the means of
    these scores and of their squares, and m − 1/k for α = 2.

    Source: Peters, Niculae and Martins 2019, "Sparse Sequence-to-Sequence Models", algorithm 2; Martins and Astudillo
        2016, "From Softmax to Sparsemax", algorithm 1.
    """
    ordered = x.double().sort(-1, descending=True).values
    rank = torch.arange(1, x.shape[-1] + 1, device=x.device, dtype=ordered.dtype)
    mean = ordered.cumsum(-1) / rank
    if alpha == 2:
        candidates = mean - 1 / rank
    else:
        squares = ordered.square().cumsum(-1) / rank
        candidates = mean - (mean.square() - squares + 1 / rank).clamp(min=0).sqrt()
    # Not in place: `vmap` has no batching rule for `clamp_`, and warns.
    support = (candidates < ordered).sum(-1, keepdim=True).clamp(min=1)
    return candidates.gather(-1, support - 1).to(x.dtype)


def entmax_weights(z: Tensor, alpha: float | Tensor) -> Tensor:
    """Compute the weights for any α > 1, from rows shifted to a maximum of 0.

    Example:
        >>> entmax_weights(torch.tensor([[0.0, -0.5]]), 2.0)
        tensor([[0.7500, 0.2500]])
    """
    if steep.served(z):
        if steep.is_steep(alpha):
            return steep.weights(z, alpha)
        if not isinstance(alpha, Tensor) and alpha in _QUADRATIC:
            if not (torch.is_grad_enabled() and z.requires_grad):
                return projection(z, alpha)[0]
            weights: Tensor = _Projection.apply(z, alpha)  # type: ignore[no-untyped-call]
            return weights
    return _literal(z, alpha)


_QUADRATIC = 1.5, 2.0
"""The α whose τ is a root of a polynomial of degree one or two."""


def _literal(z: Tensor, alpha: float | Tensor) -> Tensor:
    """Compute the weights by PyTorch's operators, differentiable twice."""
    if isinstance(alpha, Tensor):
        alpha = alpha.to(torch.promote_types(alpha.dtype, z.dtype))
    # Replace a masked -inf by a score that also has weight 0: alpha's gradient would be -inf times 0.
    hidden = z == -torch.inf
    x = torch.where(hidden, -2.0, torch.where(hidden, 0.0, z) * (alpha - 1))
    t = torch.relu(x - _threshold(x, alpha))
    return t * _slopes(t, alpha)


@final
class _Projection(torch.autograd.Function):
    """With q = w^(2−α), the gradient of the scores is q(g − Σqg/Σq).

    Source: Peters, Niculae and Martins 2019, "Sparse Sequence-to-Sequence Models", section 3.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, alpha: float) -> Tensor:
        weights, q = projection(z, alpha)
        ctx.alpha = alpha
        ctx.save_for_backward(z, q)
        return weights

    @staticmethod
    @by_sample
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        z, q = ctx.saved_tensors
        if torch.is_grad_enabled():
            # Create a graph, for second derivatives.
            return torch.autograd.grad(_literal(z, ctx.alpha), z, g, create_graph=True)[0], None
        level = (q * g).sum(-1, keepdim=True) / q.sum(-1, keepdim=True)
        return (g - level).mul_(q), None


def projection(z: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """Compute sparsemax or entmax for α = 2 or 1.5, without recording a graph.

    Args:
        z: rows shifted to a maximum of 0, (..., K).
        alpha: 2 for sparsemax, or 1.5.

    Returns:
        The weights w, (..., K), and w^(2−α).

    Example:
        >>> projection(torch.tensor([[0.0, -0.5]]), 2.0)
        (tensor([[0.7500, 0.2500]]), tensor([[1., 1.]]))
    """
    # A score 1/(α−1) below the largest has weight 0, and so has a masked one of -inf.
    x = (z if alpha == 2 else z * (alpha - 1)).clamp(min=-2)
    # Newton's method reads after each step whether it has converged.
    root = _root_by_sort if x.numel() <= _FEW or not on_host(x.device) else _root_by_newton
    t = torch.relu(x - root(x, alpha))
    return (t, (t > 0).to(t.dtype)) if alpha == 2 else (t * t, t)


_FEW = 1 << 13
"""Up to this many numbers a sort, which takes few operators, is faster than Newton's method; beyond, it is slower."""
_STEPS = 64
"""Far more than a row needs: each step at least halves the error, and near the root squares it."""


def _root_by_sort(x: Tensor, alpha: float) -> Tensor:
    """Find τ by sorting, then refine it: one Newton step is exact to the last bit of float32, two of float64."""
    tau = _newton(x, _sorted_root(x, alpha), alpha)
    return _newton(x, tau, alpha) if x.dtype == torch.float64 else tau


def _root_by_newton(x: Tensor, alpha: float) -> Tensor:
    """Find τ by Newton's method, in few passes over memory.

    Σ max(0, x − τ)^p − 1, with p = 1 or 2, is convex and decreases with τ. From τ = −1, where it is not negative, no
    step overshoots the root, and about ten steps reach the last bit.

    Source: Michelot 1986, "A finite algorithm for finding the projection of a point onto the canonical simplex";
        Peters, Niculae and Martins 2019, "Sparse Sequence-to-Sequence Models", section 3.
    """
    tau, t = torch.full_like(x[..., :1], -1.0), torch.empty_like(x)
    tolerance = 2 * torch.finfo(x.dtype).eps
    for _ in range(_STEPS):
        torch.sub(x, tau, out=t).relu_()
        if alpha == 2:
            step = (t.sum(-1, keepdim=True) - 1) / (t > 0).sum(-1, keepdim=True).clamp_(min=1)
        else:
            slope = 2 * t.sum(-1, keepdim=True)
            step = (t.square().sum(-1, keepdim=True) - 1) / slope.masked_fill_(slope == 0, 1)
        tau += step
        if not bool((step > tolerance).any()):
            break
    return tau


def _threshold(x: Tensor, alpha: float | Tensor) -> Tensor:
    """Find the root τ of Σ max(0, x − τ)^p = 1, p = 1/(α−1), for rows whose maximum is 0; differentiable twice.

    The root is found to the last bit without recording a graph. Each Newton step from there leaves the value unchanged
    and doubles the order to which its derivatives in x and α are correct.
    """
    with torch.no_grad():
        tau = _sorted_root(x, 2.0) if not isinstance(alpha, Tensor) and alpha == 2 else _root(x, alpha)
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
    3,000 keys.) For α > 2 it is not convex: the interval from −1 to −n^(1−α) is bisected, and where α cannot be read,
    for any α, as one of its steps takes fewer operators than one of Newton's.

    Source: Michelot 1986, "A finite algorithm for finding the projection of a point onto the canonical simplex" (α =
        2); Peters, Niculae and Martins 2019, "Sparse Sequence-to-Sequence Models", algorithm 1 (bisection).
    """
    digits = 24 if x.dtype == torch.float32 else 53
    tau = torch.full_like(x[..., :1], -1)
    if not _all_at_most_two(alpha):
        power = 1 / (alpha - 1)
        # Under tracing, a tensor made from the number of keys would turn that number into a constant.
        width = 1 - torch.full_like(tau, x.shape[-1]) ** (1 - alpha)
        for _ in range(digits + 7):
            width = width / 2
            middle = tau + width
            tau = torch.where(torch.relu(x - middle).pow(power).sum(-1, keepdim=True) >= 1, middle, tau)
        return tau
    for _ in range(digits // 2):
        t = torch.relu(x - tau)
        slopes = _slopes(t, alpha)
        total = (t * slopes).sum(-1, keepdim=True)
        next_tau = tau + (total - total ** (2 - alpha)) / slopes.sum(-1, keepdim=True)
        if readable(x) and not bool((next_tau > tau).any()):
            break
        tau = next_tau
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
    """Return max(0, base)^exponent; 0 with zero gradient where base is not positive."""
    inside = base > 0
    return torch.where(inside, torch.where(inside, base, torch.ones_like(base)) ** exponent, torch.zeros_like(base))


def threshold(s: Tensor, w: Tensor, alpha: float | Tensor) -> Tensor:
    """Recover τ from w = max(0, (α−1)s − τ)^(1/(α−1)) at each row's largest weight; +inf for a fully masked row."""
    if not s.shape[-1]:
        return s.new_full(s.shape[:-1], torch.inf)
    largest, largest_index = w.max(-1, keepdim=True)
    # In a fully masked row the gradient of α would be −inf times 0.
    empty = largest <= 0
    tau = s.gather(-1, largest_index).masked_fill(empty, 0) * (alpha - 1) - largest.masked_fill(empty, 1) ** (alpha - 1)
    return tau.masked_fill(empty, torch.inf).squeeze(-1)
