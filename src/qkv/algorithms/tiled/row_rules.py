"""Normalizers on the whole rows of a tile, and their gradients by explicit formulas.

Autograd records nothing, so that a tile runs the same inside a registered operator. The equations are those of
`qkv.scores.pointwise` and `qkv.normalizers`; p stands for a row of weights, g for a gradient.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.normalizers import steep
from qkv.normalizers.base import count, divide
from qkv.normalizers.dense import Hard
from qkv.normalizers.sparse import Entmax, projection, threshold
from qkv.scores.pointwise import (
    BoxcarShape,
    EpanechnikovShape,
    GaussianShape,
    Leaky,
    Linear,
    NegativeHalf,
    Pointwise,
    Softcap,
)
from qkv.values.parameters import finite, logaddexp

_SATURATED = 40.0
"""Twice the argument from which on tanh is 1 in float64."""


def apply_pointwise(pointwise: Pointwise, x: Tensor) -> Tensor:
    """Return pointwise(x), without recording a graph; x is not changed, but may itself be returned.

    PyTorch's tanh takes three times as long as its e^x − 1, of which tanh follows without cancellation.

    Example:
        >>> apply_pointwise(Softcap(2.0), torch.tensor([-1e30, 1e-30, 2.0, torch.nan]))
        tensor([-2.0000e+00,  1.0000e-30,  1.5232e+00,         nan])
    """
    if not isinstance(pointwise, Softcap):
        return pointwise(x)
    e = (x * (2 / pointwise.cap)).clamp_(-_SATURATED, _SATURATED).expm1_()
    return e.div_(e + 2).mul_(pointwise.cap)


def pointwise_gradient(pointwise: Pointwise, x: Tensor, y: Tensor, g: Tensor) -> Tensor | None:
    """Return the gradient of x, given y = pointwise(x) and the gradient g of y; None if it is zero."""
    match pointwise:
        case BoxcarShape():
            return None
        case Softcap(cap):
            # 1 − tanh² in one pass over the gradient.
            return torch.addcmul(g, g, y.square(), value=-(cap**-2))
        case Leaky(negative_slope):
            slope: Tensor | float = torch.where(x > 0, torch.ones_like(x), negative_slope)
        case GaussianShape():
            slope = y * -0.5
        case EpanechnikovShape(power):
            slope = _epanechnikov_slope(x, power)
        case _:
            slope = -0.5 if isinstance(pointwise, NegativeHalf) else 1.0
    return g if isinstance(pointwise, Linear) else g * slope


def _epanechnikov_slope(x: Tensor, power: float) -> Tensor:
    """Return d/dx max(0, 1 − x^(power/2)); 0 outside the support, and at x = 0 where a root has no derivative."""
    slope = torch.full_like(x, -1.0) if power == 2 else x.pow(power / 2 - 1).mul_(-power / 2)
    outside = x >= 1
    return slope.masked_fill_(outside if power == 2 else outside | (x == 0), 0)


def _per_row(parameter: Tensor) -> Tensor:
    """Drop the last dimension of a parameter, so that it broadcasts with (..., h)."""
    return parameter.squeeze(-1) if parameter.ndim else parameter


class ScoreRows(NamedTuple):
    """The scores of a tile's rows, and what a normalizer needs besides.

    Attributes:
        scores: s, (..., h, c); masked ones have the rule's value `hidden`.
        visible: bool, broadcasts to (..., h, c); None if all is visible.
        parameter: sink, alpha or bias of the normalizer, (..., 1, 1) or a float64 scalar; None if it has none.
    """

    scores: Tensor
    visible: Tensor | None
    parameter: Tensor | None


class Upstream(NamedTuple):
    """The upstream gradients of a tile's rows.

    Attributes:
        weights: gradients of the weights, (..., h, c).
        state: gradients of the row state, (..., h); None if it has none.
    """

    weights: Tensor
    state: Tensor | None


RowGradients = tuple[Tensor | None, Tensor | None]
"""The gradients of the scores and of the parameter; None where zero."""


class Rule(NamedTuple):
    """A normalizer on whole rows.

    Attributes:
        hidden: the value of masked scores.
        weights: `(row) -> w`.
        state: `(row, w) -> (..., h)`, float64.
        backward: `(row, w, upstream) -> gradients of scores and parameter`.
    """

    hidden: float
    weights: Callable[[ScoreRows], Tensor]
    state: Callable[[ScoreRows, Tensor], Tensor]
    backward: Callable[[ScoreRows, Tensor, Upstream], RowGradients]


def _softmax(row: ScoreRows) -> Tensor:
    s, visible, sink = row
    if s.shape[-1] == 0:
        return s.clone()
    if sink is None:
        w = torch.softmax(s, -1)
        return w if visible is None else w.masked_fill_(s.amax(-1, keepdim=True) == -torch.inf, 0)
    sink = finite(sink.to(s.dtype))
    top = torch.maximum(s.amax(-1, keepdim=True), sink)
    top = top.masked_fill_(top == -torch.inf, 0)
    e = (s - top).exp_()
    return e.div_(_safe(e.sum(-1, keepdim=True) + torch.exp(sink - top)))


def _safe(total: Tensor) -> Tensor:
    """Replace totals of 0 by 1, to divide by them: the terms of such a total are all 0."""
    return torch.where(total == 0, torch.ones_like(total), total)


def _lse(row: ScoreRows, w: Tensor) -> Tensor:
    s, _, sink = row
    s = s.double()
    lse = s.logsumexp(-1) if s.shape[-1] else s.new_full(s.shape[:-1], -torch.inf)
    return lse if sink is None else logaddexp(lse, _per_row(sink).to(lse.dtype).expand_as(lse))


def _softmax_backward(row: ScoreRows, w: Tensor, upstream: Upstream) -> RowGradients:
    """Return p(g − Σpg). The row state log Σ exp(s) has the gradient p; a sink is one more key, without a value."""
    g, g_state = upstream
    g_scores = torch.ops.aten._softmax_backward_data(g, w, -1, w.dtype)
    if g_state is not None:
        g_scores = g_scores.addcmul_(w, g_state.unsqueeze(-1))
    if row.parameter is None:
        return g_scores, None
    share = torch.exp(finite(row.parameter) - finite(_lse(row, w)).unsqueeze(-1)).to(w.dtype)
    g_sink = (w * g).sum(-1, keepdim=True).neg_()
    return g_scores, share * (g_sink if g_state is None else g_sink + g_state.unsqueeze(-1))


def _sum(row: ScoreRows) -> Tensor:
    return divide(row.scores, row.scores.sum(-1, keepdim=True))


def _total(row: ScoreRows, w: Tensor) -> Tensor:
    return row.scores.sum(-1, dtype=torch.float64)


def _sum_backward(row: ScoreRows, w: Tensor, upstream: Upstream) -> RowGradients:
    """Return (g − Σwg)/Σs."""
    g, g_state = upstream
    total = row.scores.sum(-1, keepdim=True)
    g_scores = (g - (w * g).sum(-1, keepdim=True)).div_(_safe(total)).masked_fill_(total == 0, 0)
    return g_scores if g_state is None else g_scores + g_state.unsqueeze(-1), None


def _count_visible(row: ScoreRows, w: Tensor) -> Tensor:
    n = count(row.visible, row.scores.double()).squeeze(-1)
    return n.expand(row.scores.shape[:-1])


def _mean(row: ScoreRows) -> Tensor:
    return row.scores / count(row.visible, row.scores).clamp(min=1)


def _mean_backward(row: ScoreRows, w: Tensor, upstream: Upstream) -> RowGradients:
    return upstream.weights / count(row.visible, row.scores).clamp(min=1), None


def _no_state(row: ScoreRows, w: Tensor) -> Tensor:
    return row.scores.new_zeros(row.scores.shape[:-1], dtype=torch.float64)


def _sigmoid(row: ScoreRows) -> Tensor:
    s, visible, bias = row
    bias = -count(visible, s).clamp(min=1).log() if bias is None else bias
    w = torch.sigmoid(s + bias)
    return w if visible is None else w.masked_fill_(~visible, 0)


def _sigmoid_backward(row: ScoreRows, w: Tensor, upstream: Upstream) -> RowGradients:
    g_scores = torch.ops.aten.sigmoid_backward(upstream.weights, w)
    return g_scores, None if row.parameter is None else g_scores.sum(-1, keepdim=True)


def _largest(row: ScoreRows, w: Tensor) -> Tensor:
    s = row.scores
    return (s.amax(-1) if s.shape[-1] else s.new_full(s.shape[:-1], -torch.inf)).double()


def _hard_backward(row: ScoreRows, w: Tensor, upstream: Upstream) -> RowGradients:
    """Return the gradient of the row state, 1 at the largest score, shared by ties as in `amax`; weights have none."""
    if upstream.state is None or not row.scores.shape[-1]:
        return None, None
    ties = row.scores == row.scores.amax(-1, keepdim=True)
    return ties / ties.sum(-1, keepdim=True).clamp(min=1) * upstream.state.unsqueeze(-1), None


def _project(s: Tensor, alpha: float) -> Tensor:
    """Compute the weights of sparsemax (α = 2) or of entmax with α = 1.5; 0 in fully masked rows."""
    if s.shape[-1] == 0:
        return s.clone()
    top = s.amax(-1, keepdim=True)
    empty = top == -torch.inf
    return projection(s - top.masked_fill_(empty, 0), alpha)[0].masked_fill_(empty, 0)


def _entmax(row: ScoreRows) -> Tensor:
    assert row.parameter is not None
    # Powers with a number for an exponent are three times as fast as with a tensor.
    alpha = row.parameter[..., 0, 0] if row.parameter.ndim else row.parameter.item()
    return Entmax(alpha)(row.scores, row.visible)


def _projection_gradient(w: Tensor, q: Tensor, upstream: Upstream, alpha: float | Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient of s, and Σq, for q = p^(2−α): dp/ds = diag(q) − qqᵀ/Σq and dτ/ds = (α−1)q/Σq."""
    g, g_state = upstream
    total = q.sum(-1, keepdim=True)
    total = total.masked_fill_(total == 0, 1)
    mean = (q * g).sum(-1, keepdim=True) / total
    if g_state is not None:
        mean = mean - (alpha - 1) * g_state.unsqueeze(-1) / total
    return q * (g - mean), total


def _entmax_backward(row: ScoreRows, w: Tensor, upstream: Upstream) -> RowGradients:
    """Return the gradients of s and α.

    dp/dα = p/(α−1)² − p log p/(α−1) + qC with Σ dp/dα = 0; dτ/dα = τ/(α−1) − (α−1)C.

    Source: Correia, Niculae and Martins 2019, "Adaptively Sparse Transformers", proposition 1.
    """
    alpha = row.parameter
    assert alpha is not None
    if steep.is_steep(alpha):
        return _steep_backward(row, w, upstream, alpha)
    inside = w > 0
    q = torch.where(inside, w.clamp(min=torch.finfo(w.dtype).tiny) ** (2 - alpha), torch.zeros_like(w))
    g_scores, total = _projection_gradient(w, q, upstream, alpha)
    d = w / (alpha - 1) ** 2 - torch.special.xlogy(w, w) / (alpha - 1)
    # With d = dp/dα − qC, Σ(d + qC)g = Σ d(g − mean) is one sum of differences; two separate sums would cancel.
    mean = (q * upstream.weights).sum(-1, keepdim=True) / total
    g_alpha = (d * (upstream.weights - mean)).sum(-1, keepdim=True)
    if upstream.state is not None:
        tau = threshold(row.scores, w, alpha).unsqueeze(-1)
        slope = tau / (alpha - 1) + (alpha - 1) * d.sum(-1, keepdim=True) / total
        g_alpha = g_alpha + torch.where(tau == torch.inf, 0, slope * upstream.state.unsqueeze(-1))
    return g_scores, g_alpha


def _steep_backward(row: ScoreRows, w: Tensor, upstream: Upstream, alpha: Tensor) -> RowGradients:
    g_tau = None if upstream.state is None else upstream.state.unsqueeze(-1).double()
    w64 = w.double()
    g_scores, g_alpha = steep.slopes(w64, upstream.weights.double(), alpha.double(), g_tau)
    if g_tau is not None:
        g_alpha = g_alpha + _tau_gradient(row, w64, alpha) * g_tau
    return g_scores.to(w.dtype), g_alpha.to(w.dtype)


def _tau_gradient(row: ScoreRows, w: Tensor, alpha: Tensor) -> Tensor:
    """Return dτ/dα of τ = (α−1)s − w^(α−1), averaged with weights q, as Σ dw/dα = 0; 0 if nothing is visible."""
    inside = w > 0
    q = torch.where(inside, torch.exp((2 - alpha) * torch.where(inside, w, 1.0).log()).clamp(max=1e300), 0.0)
    slope = torch.where(inside, row.scores.double() - torch.xlogy(w ** (alpha - 1), w), 0.0)
    total = q.sum(-1, keepdim=True)
    return (q * slope).sum(-1, keepdim=True) / torch.where(total == 0, torch.ones_like(total), total)


def _tau(row: ScoreRows, w: Tensor, alpha: float | Tensor | None) -> Tensor:
    assert alpha is not None
    return threshold(row.scores.double(), w.double(), alpha)


def _of_fixed_alpha(alpha: float, slope: Callable[[Tensor], Tensor]) -> Rule:
    """Return the rule of a projection with a fixed α; `slope` computes p^(2−α)."""

    def backward(row: ScoreRows, w: Tensor, upstream: Upstream) -> RowGradients:
        return _projection_gradient(w, slope(w), upstream, alpha)[0], None

    return Rule(-torch.inf, lambda row: _project(row.scores, alpha), lambda row, w: _tau(row, w, alpha), backward)


RULES = {
    "softmax": Rule(-torch.inf, _softmax, _lse, _softmax_backward),
    "sum": Rule(0.0, _sum, _total, _sum_backward),
    "mean": Rule(0.0, _mean, _count_visible, _mean_backward),
    "identity": Rule(0.0, lambda row: row.scores, _no_state, lambda row, w, upstream: (upstream.weights, None)),
    "sigmoid": Rule(0.0, _sigmoid, _count_visible, _sigmoid_backward),
    "scores": Rule(-torch.inf, lambda row: row.scores, _largest, lambda row, w, upstream: (None, None)),
    "hard": Rule(-torch.inf, lambda row: Hard()(row.scores, row.visible), _largest, _hard_backward),
    "sparsemax": _of_fixed_alpha(2.0, lambda w: (w > 0).to(w.dtype)),
    "entmax15": _of_fixed_alpha(1.5, torch.sqrt),
    "entmax": Rule(-torch.inf, _entmax, lambda row, w: _tau(row, w, row.parameter), _entmax_backward),
}
