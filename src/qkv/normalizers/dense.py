"""Normalizers that give every visible key a share: softmax, sum, mean, identity, sigmoid; and hard selection."""

import math
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from qkv.normalizers.base import (
    Normalizer,
    Partial,
    count,
    divide,
    empty_rows,
    hide,
    merge_totals,
    state_scores,
    visible_count,
    weighted_sum,
)
from qkv.shapes import broadcast
from qkv.values.execution import readable, traced
from qkv.values.parameters import Parameter, finite, logaddexp, spread
from qkv.values.pytree import value

Placed = tuple[Tensor, Tensor, Tensor]
"""Hard attention over some of the keys: output, largest score, and the position of its first key, −1 for none."""


@final
@value
@dataclass(frozen=True, eq=False)
class Softmax(Normalizer):
    """w = exp(s)/Σexp(s); a learned sink adds exp(sink) to the denominator.

    Args:
        sink: a number or tensor (H,) per head that takes a share of the weight and has no value; None, like −inf, for
            no sink. A sink of +inf takes all weight: outputs are 0, and log-sum-exps infinite.

    Source: Bahdanau et al. 2015, eq. 6; sink: Miller 2023, "Attention Is Off By One"; Xiao et al. 2024, "Efficient
        Streaming Language Models with Attention Sinks".

    Example:
        >>> Softmax()(torch.tensor([[0.0, 0.0]])), Softmax(sink=0.0)(torch.tensor([[0.0, 0.0, 0.0]]))
        (tensor([[0.5000, 0.5000]]), tensor([[0.2500, 0.2500, 0.2500]]))
    """

    convex: ClassVar[bool] = True
    mergeable: ClassVar[bool] = True
    parameters: ClassVar[tuple[Parameter, ...]] = (Parameter("sink", 0),)
    sink: float | Tensor | None = None

    def __call__(self, scores: Tensor, visible: Tensor | None = None) -> Tensor:
        """Compute exp(s)/Σexp(s), with the row's maximum subtracted first."""
        if scores.shape[-1] == 0:
            return scores
        if visible is None and self.sink is None:
            return torch.softmax(scores, -1)
        s = hide(scores, visible, -torch.inf)
        if self.sink is None:
            return _softmax(s)
        # A finite sink leaves no row empty.
        sink = finite(torch.as_tensor(spread(self.sink), dtype=s.dtype, device=s.device))
        rows = broadcast(s.shape[:-1], sink.shape[:-1]) or ()
        extended = torch.cat([s.expand(*rows, s.shape[-1]), sink.expand(*rows, 1)], -1)
        return torch.softmax(extended, -1)[..., :-1]

    def state(self, scores: Tensor, visible: Tensor | None = None) -> Tensor:
        """Compute the log-sum-exp, log(Σexp(s) + exp(sink)); −inf for a fully masked row without a sink."""
        s, _ = state_scores(scores, visible, -torch.inf)
        if s.shape[-1]:
            # In a row of −inf only, also by a bias, the gradient of a log-sum-exp is NaN.
            empty = empty_rows(s)
            lse = torch.where(empty, 0.0, s).logsumexp(-1).masked_fill(empty.squeeze(-1), -torch.inf)
        else:
            lse = s.new_full(s.shape[:-1], -torch.inf)
        if self.sink is None:
            return lse
        return logaddexp(lse, torch.as_tensor(spread(self.sink, by=1), dtype=s.dtype, device=s.device))

    @staticmethod
    def merge(left: Partial, right: Partial) -> Partial:
        """Merge by Σ exp(lse_i − lse) o_i; at most one part may have a sink.

        Source: Milakov and Gimelshein 2018, "Online normalizer calculation for softmax", section 3; Dao et al. 2022,
            "FlashAttention", section 3.1.
        """
        (left_output, a), (right_output, b) = left, right
        total = logaddexp(a, b)
        # With an infinite state (no keys, or an infinite sink) the output is 0, whatever its weight.
        base, a, b = finite(total), finite(a), finite(b)
        return weighted_sum(left_output, torch.exp(a - base), right_output, torch.exp(b - base)), total


def _softmax(s: Tensor) -> Tensor:
    """Use PyTorch's softmax; rows of −inf only, where PyTorch gives NaN, become 0 without gradient."""
    if readable(s):
        weights = torch.softmax(s, -1)
        # One sum tells whether a number is NaN.
        total = float(weights.detach().select(-1, 0).sum())
        if not math.isnan(total):
            return weights
    return _softmax_with_empty_rows(s, empty_rows(s))


def _softmax_with_empty_rows(s: Tensor, empty: Tensor) -> Tensor:
    """Compute a softmax in which rows marked empty, (..., Q, 1), are 0 without gradient."""
    zero = torch.zeros_like(s[..., :1, :1])
    return torch.where(empty, zero, torch.softmax(torch.where(empty, zero, s), -1))


@final
@value
@dataclass(frozen=True)
class Sum(Normalizer):
    """w = s/Σs, for non-negative scores (kernels): Nadaraya-Watson regression. A row whose Σs is 0 has weights 0.

    Source: Nadaraya 1964, "On Estimating Regression"; Watson 1964, "Smooth Regression Analysis".

    Example:
        >>> Sum()(torch.tensor([[1.0, 3.0], [0.0, 0.0]]))
        tensor([[0.2500, 0.7500],
                [0.0000, 0.0000]])
    """

    convex: ClassVar[bool] = True
    mergeable: ClassVar[bool] = True
    needs_non_negative: ClassVar[bool] = True
    merge = staticmethod(merge_totals)

    def __call__(self, scores: Tensor, visible: Tensor | None = None) -> Tensor:
        """Compute s/Σs."""
        s = hide(scores, visible, 0)
        return divide(s, s.sum(-1, keepdim=True))

    def state(self, scores: Tensor, visible: Tensor | None = None) -> Tensor:
        """Compute the total Σs."""
        return state_scores(scores, visible, 0.0)[0].sum(-1)


@final
@value
@dataclass(frozen=True)
class Mean(Normalizer):
    """w = s/n, where n is the number of keys the row may see.

    Source: Wang et al. 2018, "Non-local Neural Networks", section 3.2 (dot product, C(x) = N).

    Example:
        >>> Mean()(torch.tensor([[2.0, 4.0]]))
        tensor([[1., 2.]])
    """

    mergeable: ClassVar[bool] = True
    merge = staticmethod(merge_totals)

    def __call__(self, scores: Tensor, visible: Tensor | None = None) -> Tensor:
        """Compute s/n."""
        if visible is None and not torch.compiler.is_compiling():
            return scores / max(scores.shape[-1], 1)
        return hide(scores, visible, 0) / count(visible, scores).clamp(min=1)

    def state(self, scores: Tensor, visible: Tensor | None = None) -> Tensor:
        """Compute n, the number of visible keys."""
        return visible_count(scores, visible)


@final
@value
@dataclass(frozen=True)
class Identity(Normalizer):
    """w = s: the scores are the weights.

    Example:
        >>> Identity()(torch.tensor([[2.0, -4.0]]))
        tensor([[ 2., -4.]])
    """

    mergeable: ClassVar[bool] = True

    def __call__(self, scores: Tensor, visible: Tensor | None = None) -> Tensor:
        """Return s, with 0 for masked keys."""
        return hide(scores, visible, 0)

    def state(self, scores: Tensor, visible: Tensor | None = None) -> Tensor:
        """Return zeros: outputs can be added without a state."""
        s, _ = state_scores(scores, visible, 0.0)
        return s.new_zeros(s.shape[:-1])

    @staticmethod
    def merge(left: Partial, right: Partial) -> Partial:
        """Add the outputs."""
        return left[0] + right[0], left[1]


@final
@value
@dataclass(frozen=True, eq=False)
class Sigmoid(Normalizer):
    """w = σ(s + b), each weight independently.

    Args:
        bias: b, a number or tensor (H,) per head; None for −log n, with n the number of keys the row may see.

    Source: Ramapuram et al. 2024, "Theory, Analysis, and Best Practices for Sigmoid Self-Attention", eq. 3.

    Example:
        >>> Sigmoid(bias=0.0)(torch.tensor([[0.0]]))
        tensor([[0.5000]])
    """

    non_negative: ClassVar[bool] = True
    parameters: ClassVar[tuple[Parameter, ...]] = (Parameter("bias", 0),)
    bias: float | Tensor | None = None

    def __call__(self, scores: Tensor, visible: Tensor | None = None) -> Tensor:
        """Compute σ(s + b)."""
        if self.bias is None and (visible is not None or torch.compiler.is_compiling() or traced()):
            shift: float | Tensor = -count(visible, scores).clamp(min=1).log()
        else:
            shift = self.shift(scores.shape[-1])
        # Mask before the sigmoid too: the gradient of a masked NaN would be 0 · NaN.
        return hide(torch.sigmoid(hide(scores, visible, 0) + shift), visible, 0)

    def state(self, scores: Tensor, visible: Tensor | None = None) -> Tensor:
        """Compute n, the number of visible keys, on which the default bias depends."""
        return visible_count(scores, visible)

    def shift(self, keys: int) -> float | Tensor:
        """Return b of a row that sees all keys; (H, 1, 1) if per head."""
        return -math.log(max(keys, 1)) if self.bias is None else spread(self.bias)


@final
@value
@dataclass(frozen=True)
class Hard(Normalizer):
    """w = 1 at the largest score, 0 elsewhere: a database lookup; ties go to the first key.

    The weights are piecewise constant: scores get zero gradient; only values are learned. Attention gives equal keys
    one score, however products round, so that a tie between them goes to the first one that a row sees. A score of −inf
    never wins: a row with no other scores has weights of 0, as under softmax.

    Source: the special case "one weight is 1" of attention pooling (Zhang et al., "Dive into Deep Learning",
        section 11.1).

    Example:
        >>> Hard()(torch.tensor([[1.0, 3.0, 3.0]]))
        tensor([[0., 1., 0.]])
    """

    convex: ClassVar[bool] = True
    piecewise_constant: ClassVar[bool] = True
    mergeable: ClassVar[bool] = True

    def __call__(self, scores: Tensor, visible: Tensor | None = None) -> Tensor:
        """Put 1 at the first of the largest scores."""
        if scores.shape[-1] == 0:
            return scores
        s = hide(scores, visible, -torch.inf)
        if readable(s) and not s.requires_grad:
            top, winner = s.max(-1, keepdim=True)
            # False for NaN too.
            if float(top.sum()) > -torch.inf:
                return torch.zeros_like(s).scatter_(-1, winner, 1.0)
        top = s.amax(-1, keepdim=True)
        winner = (s == top).to(torch.int8).argmax(-1, keepdim=True)
        weights = torch.zeros_like(s).scatter(-1, winner, (top > -torch.inf).to(s.dtype))
        # The maximum of ONNX Runtime ignores NaN at some positions of a row and returns it at others.
        bad = top.isnan() if readable(s) else s.isnan().any(-1, keepdim=True)
        return torch.where(bad, hide(torch.full_like(top, torch.nan).expand_as(s), visible, 0), weights)

    def state(self, scores: Tensor, visible: Tensor | None = None) -> Tensor:
        """Compute the largest score; −inf for a fully masked row."""
        s, _ = state_scores(scores, visible, -torch.inf)
        return s.amax(-1) if s.shape[-1] else s.new_full(s.shape[:-1], -torch.inf)

    @staticmethod
    def merge(left: Partial, right: Partial) -> Partial:
        """Take the output with the larger score; ties go to `left`, whose keys come first."""
        (left_output, a), (right_output, b) = left, right
        first = (a >= b) | a.isnan()
        return torch.where(first[..., None], left_output, right_output), torch.maximum(a, b)

    @staticmethod
    def merge_placed(left: Placed, right: Placed) -> Placed:
        """Take the output with the larger score; ties go to the key of the first position, whichever part it is in."""
        (left_output, a, one), (right_output, b, two) = left, right
        # Among scores that are NaN, a part that sees a key comes before one that sees none.
        earlier = (one >= 0) & ((one < two) | (two < 0))
        tie = (a == b) | (a.isnan() & b.isnan())
        first = torch.where(tie, earlier, (a > b) | a.isnan())
        output = torch.where(first[..., None], left_output, right_output)
        return output, torch.maximum(a, b), torch.where(first, one, two)
