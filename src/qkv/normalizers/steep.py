"""Entmax at extreme α: near 1, where weights are high powers, and above 2, where they are roots.

Let z ≤ 0 be the scores of a row minus its largest, and p the largest weight. The weights are

    w_j = p·(1 + (α−1)·z_j·p^(1−α))^(1/(α−1)),

and log p, between −log n and 0, is chosen so that they sum to one. The threshold τ = −p^(α−1) is less precise: near
α = 1 a roundoff of τ changes every weight by 1/(α−1) roundoffs, and above 2 a weight of one tenth can correspond to a
difference of 1e-9 between τ and its score. Everything here is float64. Sometimes no double gives a sum of one, because
between two neighboring ones a weight appears that grows like a root of their difference; then the weights lie between
those of the two neighbors.
"""

import math
from typing import Any, final

import torch
from torch import Tensor

from qkv.values.execution import forward_mode, readable, transformed
from qkv.values.mapped import by_sample

MIDDLE = 1.25, 2.0
"""The range of α in which τ in the scores' own dtype is accurate: at most a power of 4, and no root."""

_HALVINGS = 60
"""Enough bisections to narrow log p to less than a roundoff of p."""

_HALF_WAY = 1.5

_MOST = 700.0
"""The exponential of this is still a finite double."""


def is_steep(alpha: float | Tensor) -> bool:
    """Return whether some α lies outside `MIDDLE`, as far as that can be known.

    Example:
        >>> is_steep(1.5), is_steep(10.0), is_steep(torch.tensor([1.5, 1.001]))
        (False, True, True)
    """
    low, high = MIDDLE
    if isinstance(alpha, Tensor):
        return readable(alpha) and bool(((alpha < low) | (alpha > high)).any())
    return not low <= alpha <= high


def served(z: Tensor) -> bool:
    """Return whether these weights can be computed here: eagerly, on the CPU, without forward-mode derivatives."""
    return readable(z) and not forward_mode() and not transformed()


def weights(z: Tensor, alpha: float | Tensor) -> Tensor:
    """Compute the weights of rows shifted to a maximum of 0, differentiable any number of times.

    Args:
        z: (..., K).
        alpha: a number, or a tensor (..., 1, 1).

    Example:
        >>> weights(torch.tensor([[0.0, 0.0, -0.01]]), 10.0)
        tensor([[0.5000, 0.5000, 0.0000]])
    """
    wide = alpha.double() if isinstance(alpha, Tensor) else alpha
    result: Tensor = _Weights.apply(z.double(), wide)  # type: ignore[no-untyped-call]
    return result.to(z.dtype)


def _weights(z: Tensor, alpha: float | Tensor) -> Tensor:
    """Find log p by bisection."""
    power = alpha - 1
    high = torch.zeros_like(z[..., :1] * power)
    low = high - math.log(2 * z.shape[-1])
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        enough = _weights_given(z, power, middle).sum(-1, keepdim=True) >= 1
        low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
    less, more = _weights_given(z, power, low), _weights_given(z, power, high)
    lacking = 1 - less.sum(-1, keepdim=True)
    gap = (more - less).sum(-1, keepdim=True)
    share = torch.where(gap == 0, torch.ones_like(gap), lacking / gap)
    return torch.lerp(less, more, share)


def _weights_given(z: Tensor, power: float | Tensor, log_p: Tensor) -> Tensor:
    """Compute the weights of a row whose largest weight is p."""
    # Whatever p is, the largest score keeps weight p: 0·∞ would be NaN.
    share = torch.where(z == 0, z, z * power * torch.exp(-power * log_p))
    outside = share <= -1
    share = torch.where(outside, 0.0, share)
    return torch.where(outside, 0.0, torch.exp(log_p + torch.log1p(share) / power))


def slopes(w: Tensor, g: Tensor, alpha: float | Tensor, g_tau: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Compute the gradients of scores and α from those of the weights and of τ.

    With q = w^(2−α): dw/ds = diag(q) − qqᵀ/Σq. Above α = 2 the smallest weight has by far the largest q, and the mean
    Σqg/Σq is nearly its g. So all differences are taken relative to that g, and its own gradient is the negative sum of
    the others.

    Args:
        w: the weights (..., K), in float64.
        g: gradient of the weights, (..., K).
        alpha: a number, or a tensor (..., 1, 1).
        g_tau: gradient of τ, (..., 1), or None.

    Returns:
        The gradient of the scores (..., K), and that of α for each row (..., 1).

    Source: Peters, Niculae and Martins 2019, "Sparse Sequence-to-Sequence Models", section 3; Correia, Niculae and
        Martins 2019, "Adaptively Sparse Transformers", proposition 1.
    """
    if not w.shape[-1]:
        return g, g.sum(-1, keepdim=True)
    inside = w > 0
    log_w = torch.where(inside, w, 1.0).log()
    log_q = torch.where(inside, (2 - alpha) * log_w, -torch.inf)
    largest_index = log_q.detach().argmax(-1, keepdim=True)
    # A fully masked row has no q.
    largest = torch.where(inside.any(-1, keepdim=True), log_q.gather(-1, largest_index), 0.0)
    q = torch.exp(log_q - largest)
    total = q.sum(-1, keepdim=True)
    total = torch.where(total == 0, torch.ones_like(total), total)
    apart = g - g.gather(-1, largest_index)
    level = (q * apart).sum(-1, keepdim=True) / total
    others = torch.exp(log_q.clamp(max=_MOST)) * (apart - level)
    others = others.masked_fill(~inside, 0).scatter(-1, largest_index, 0.0)
    g_scores = others.scatter(-1, largest_index, -others.sum(-1, keepdim=True))
    g_alpha = (_alpha_derivative(w, log_w, log_q, alpha) * (apart - level)).sum(-1, keepdim=True)
    return g_scores if g_tau is None else g_scores + (alpha - 1) * g_tau * q / total, g_alpha


def _alpha_derivative(w: Tensor, log_w: Tensor, log_q: Tensor, alpha: float | Tensor) -> Tensor:
    """Compute dw/dα without its multiple of q, which cancels: the row's mean removes any multiple of q.

    It is w/(α−1)² − w·log w/(α−1). Near α = 1 both terms are large and cancel. Minus q/(α−1)², it is
    −w·(log w)²·(e^(−x) − 1 + x)/x² with x = (α−1)·log w.
    """
    power = alpha - 1
    x = power * log_w
    series = 0.5 - x / 6 + x**2 / 24 - x**3 / 120 + x**4 / 720
    # Below 1/16 the series truncates less than 1e-9 of the value; above, cancellation loses less than 1e-13.
    q = torch.exp(log_q.clamp(max=_MOST))
    less = torch.where(x > -0.0625, -w * log_w**2 * series, (w - q - w * x) / power**2)
    share = (w - w * x) / power**2
    return torch.where(torch.as_tensor(alpha < _HALF_WAY, device=w.device), less, share)


@final
class _Weights(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, alpha: float | Tensor) -> Tensor:
        w = _weights(z, alpha)
        learns = isinstance(alpha, Tensor)
        ctx.alpha, ctx.shape = None if learns else alpha, z.shape
        ctx.save_for_backward(w, alpha if learns else None)
        return w

    @staticmethod
    @by_sample
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        w, alpha = ctx.saved_tensors
        g_scores, g_alpha = slopes(w, g, ctx.alpha if alpha is None else alpha)
        return g_scores.sum_to_size(ctx.shape), None if alpha is None else g_alpha.sum_to_size(alpha.shape)
