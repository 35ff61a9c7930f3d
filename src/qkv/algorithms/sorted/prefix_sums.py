"""Sums over sorted keys by PyTorch operators: prefix sums, read at each query's boundaries.

These serve tracing and function transforms, all devices, coordinates that are not finite, and second derivatives; eager
calls on the CPU use `two_pointer`, which computes the same sums.

| score | on keys sorted by b | prefix sums of |
|---|---|---|
| relu or leaky relu of a + b, under Mean or Identity | b > −a: a + b; else slope·(a + b) | v, b·v |
| leaky relu of a + b, under Softmax | b > −a: eᵃeᵇ; else e^(slope·a) e^(slope·b) | eᵇ·(v, 1), e^(slope·b)·(v, 1) |
| boxcar of |q − k|/h | within: 1 | (v, 1) |
| Epanechnikov of |q − k|/h, power 2 | within: 1 − (q − k)²/h² | (v, 1), k·(v, 1), k²·(v, 1) |
| Epanechnikov of |q − k|/h, power 1 | k ≤ q: 1 − (q − k)/h; k > q: 1 − (k − q)/h | (v, 1), k·(v, 1) |

Sums are float64: in float32 differences of prefix sums lose all digits. A window's sum is such a difference, off by
some roundoffs of the sum over all keys up to it. In float32 that is less than the roundoff of one score up to 2²⁰ keys;
kernels in float64 are refused, except for second derivatives. Boundaries are found by bisection with the score's own
predicate on the original coordinates, because `searchsorted(q ± h)` rounds q ± h.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.engine.problem import Problem
from qkv.scores.pointwise import BoxcarShape, EpanechnikovShape, Leaky


class LineOperands(NamedTuple):
    """The operands of a problem in one dimension.

    Attributes:
        a, b: the coordinates of queries (..., Q) and keys (..., K), with the problem's leading shape.
        value: (..., K, V), the same leading shape.
        scale: multiplies the core's result; float64, broadcasts to (..., Q).
        visible: which keys queries may see, (..., K); None for all.
        visible_count: how many those are, broadcasts to (..., Q).
    """

    a: Tensor
    b: Tensor
    value: Tensor
    scale: Tensor
    visible: Tensor | None
    visible_count: Tensor


def run(problem: Problem, operands: LineOperands) -> tuple[Tensor, Tensor]:
    """Sort the keys, compute prefix sums, and read them at each query's boundaries.

    Args:
        problem: the problem.
        operands: its operands.

    Returns:
        The output (..., Q, V), and the sum of each row's scores, or its log-sum-exp for a softmax, (..., Q) in float64.
    """
    keys, count = _sorted_keys(operands), operands.visible_count.expand(operands.a.shape)
    sums_QC, shift = _sums_for(problem)(problem, keys)
    output, total = sums_QC[..., :-1], sums_QC[..., -1:]
    empty = total == 0
    safe = torch.where(empty, torch.ones_like(total), total)
    if problem.normalizer in ("sum", "softmax"):
        output = torch.where(empty, torch.zeros_like(output), output / safe)
    elif problem.normalizer == "mean":
        output = output / count.clamp(min=1)[..., None]
    # NaN cannot be sorted: the output of rows that have or see one is NaN.
    has_nan = (keys.a_Q.isnan() | (keys.b_K.isnan() & keys.visible_K).any(-1, keepdim=True)) & (count > 0)
    # The NaN is computed from the operands, so that these have a gradient, which is zero for a boxcar.
    nan = keys.a64_Q + keys.b64_K.sum(-1, keepdim=True) + keys.scale
    output = torch.where(has_nan[..., None], nan[..., None], output)
    # The logarithm of a total that may be 0 would have an infinite gradient.
    state = total if shift is None else torch.where(empty, -torch.inf, safe.log() + shift[..., None])
    state = state[..., 0]
    return output, state.masked_fill(has_nan, torch.nan)


class _Keys(NamedTuple):
    """Queries and sorted keys of a problem.

    Attributes:
        a_Q, b_K: the coordinates in their own dtype, keys ascending; they decide the boundaries.
        a64_Q, b64_K: the same in float64, for sums and gradients.
        v_KC: values with a last column of ones, zero for masked keys, in the keys' order; float64.
        scale: multiplies the core's result; float64.
        visible_K: which keys queries may see.
    """

    a_Q: Tensor
    b_K: Tensor
    a64_Q: Tensor
    b64_K: Tensor
    v_KC: Tensor
    scale: Tensor
    visible_K: Tensor


def _sorted_keys(operands: LineOperands) -> _Keys:
    a, b, value, scale, visible, _ = operands
    visible = torch.ones_like(b, dtype=torch.bool) if visible is None else visible
    v_KC = torch.cat([value.double(), visible.double()[..., None]], -1)
    order = b.detach().argsort(-1)
    b, visible = b.gather(-1, order), visible.gather(-1, order)
    v_KC = v_KC.gather(-2, order[..., None].expand_as(v_KC))
    return _Keys(a.detach(), b.detach(), a.double(), b.double(), v_KC, scale, visible)


def _bisect(keys: _Keys, holds: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Find by bisection the first sorted key for which a monotone predicate is true: (..., Q), K if there is none."""
    count = keys.b_K.shape[-1]
    low = torch.zeros_like(keys.a_Q, dtype=torch.int64)
    high = torch.full_like(low, count)
    for _ in range(count.bit_length()):
        middle = (low + high) // 2
        inside = holds(keys.a_Q, keys.b_K.gather(-1, middle.clamp(max=count - 1)))
        unfinished = low < high
        high = torch.where(unfinished & inside, middle, high)
        low = torch.where(unfinished & ~inside, middle + 1, low)
    return low


def _before(x_KC: Tensor, index_Q: Tensor) -> Tensor:
    """Return the sum over the keys before an index."""
    sums = x_KC.cumsum(-2)
    read = sums.gather(-2, (index_Q - 1).clamp(min=0)[..., None].expand(*index_Q.shape, x_KC.shape[-1]))
    return torch.where((index_Q > 0)[..., None], read, torch.zeros_like(read))


def _from(x_KC: Tensor, index_Q: Tensor) -> Tensor:
    """Return the sum over the keys from an index on, added from the end, so that earlier keys cause no rounding."""
    return _before(x_KC.flip(-2), x_KC.shape[-2] - index_Q)


_Sums = tuple[Tensor, Tensor | None]


def _sums_for(problem: Problem) -> Callable[[Problem, _Keys], _Sums]:
    if problem.core == "distance":
        return _boxcar if isinstance(problem.pointwise, BoxcarShape) else _epanechnikov
    return _exponential if problem.normalizer == "softmax" else _rectified


def _kink(problem: Problem, keys: _Keys) -> tuple[float, Tensor]:
    """Return the slope below the kink of a leaky relu, and the index of each query's first key above it."""
    assert isinstance(problem.pointwise, Leaky)
    return problem.pointwise.slope, _bisect(keys, lambda a, b: a + b > 0)


def _rectified(problem: Problem, keys: _Keys) -> _Sums:
    """Return Σ max(a + b, slope·(a + b)) (v, 1)."""
    slope, kink = _kink(problem, keys)
    a_Q1, bv_KC = keys.a64_Q[..., None], keys.b64_K[..., None] * keys.v_KC
    sums = a_Q1 * _from(keys.v_KC, kink) + _from(bv_KC, kink)
    if slope:
        sums = sums + slope * (a_Q1 * _before(keys.v_KC, kink) + _before(bv_KC, kink))
    return sums, None


def _exponential(problem: Problem, keys: _Keys) -> _Sums:
    """Return Σ exp(leaky(a + b) − m) (v, 1) and m, the row's largest score."""
    slope, kink = _kink(problem, keys)
    hidden = torch.full_like(keys.b64_K, -torch.inf)
    top = torch.where(keys.visible_K, keys.b64_K, hidden).amax(-1, keepdim=True).detach()
    top = torch.where(top == -torch.inf, torch.zeros_like(top), top)
    below = torch.where(keys.visible_K, keys.b64_K - top, torch.zeros_like(top))
    best = keys.a64_Q + top
    m = torch.where(best > 0, best, slope * best).detach()
    upper = torch.exp(best - m)[..., None] * _from(torch.exp(below)[..., None] * keys.v_KC, kink)
    lower = torch.exp(slope * best - m)[..., None] * _before(torch.exp(slope * below)[..., None] * keys.v_KC, kink)
    # If all keys are on one side, the factor of the other side's empty sum may overflow.
    upper = torch.where((kink < keys.b_K.shape[-1])[..., None], upper, torch.zeros_like(upper))
    lower = torch.where((kink > 0)[..., None], lower, torch.zeros_like(lower))
    return upper + lower, m


def _window(problem: Problem, keys: _Keys) -> tuple[Tensor, Tensor]:
    """Return the range first ≤ j < last of the sorted keys within the kernel's support around each query."""
    scale = keys.scale.to(keys.a_Q.dtype).detach()
    closed = isinstance(problem.pointwise, BoxcarShape)

    def inside(a: Tensor, b: Tensor) -> Tensor:
        x = scale * (a - b).square()
        return x <= 1 if closed else x < 1

    first = _bisect(keys, lambda a, b: (b >= a) | inside(a, b))
    return first, _bisect(keys, lambda a, b: (b > a) & ~inside(a, b))


def _boxcar(problem: Problem, keys: _Keys) -> _Sums:
    """Return Σ (v, 1) within the support."""
    first, last = _window(problem, keys)
    return _before(keys.v_KC, last) - _before(keys.v_KC, first), None


def _epanechnikov(problem: Problem, keys: _Keys) -> _Sums:
    """Return Σ (1 − |q − k|^power / h^power) (v, 1) within the support.

    Coordinates are measured from the center of a cell as wide as the support, so that no far key enters a sum with a
    large factor. A window lies in at most two cells, or three because of rounding.
    """
    assert isinstance(problem.pointwise, EpanechnikovShape)
    inverse_h = keys.scale.sqrt()
    cell_K = torch.floor(keys.b64_K.detach() * inverse_h.detach() / 2)
    center_K = (2 * cell_K + 1) / inverse_h.detach()
    resolved_K, resolved_Q = (_is_resolved(x, inverse_h) for x in (keys.b64_K, keys.a64_Q))
    # Select before subtracting, so that no infinity reaches a gradient.
    u_K = torch.where(resolved_K, keys.b64_K, 0.0) - torch.where(resolved_K, center_K, 0.0)
    u_K1 = (u_K * inverse_h)[..., None]
    moments = [keys.v_KC, u_K1 * keys.v_KC, u_K1.square() * keys.v_KC]
    first, last = _window(problem, keys)
    sum_cell = _parabola if problem.pointwise.power == 2 else _triangle(keys)
    sums = torch.zeros(*keys.a_Q.shape, keys.v_KC.shape[-1], dtype=torch.float64, device=keys.a_Q.device)
    start = first
    for _ in range(3):
        cell_Q = cell_K.gather(-1, start.clamp(max=cell_K.shape[-1] - 1))
        after = torch.searchsorted(cell_K.contiguous(), cell_Q.contiguous(), right=True)
        end = torch.maximum(torch.minimum(after, last), start)
        center = (2 * cell_Q + 1) / inverse_h.detach()
        inside = resolved_Q & (end > start)
        u_Q = torch.where(inside, keys.a64_Q, 0.0) - torch.where(inside, center, 0.0)
        u_Q1 = (u_Q * inverse_h)[..., None]
        sums = sums + sum_cell(moments, u_Q1, start, end)
        start = end
    return sums, None


def _is_resolved(x: Tensor, inverse_h: Tensor) -> Tensor:
    """Return whether float64 resolves positions within the cell of a coordinate.

    From 2⁵⁴ h on, neighboring float64 numbers are at least 2 h apart: only equal ones are within the support of each
    other. Their coordinate must be 0, and subtracting a rounded center would give any number instead.
    """
    return (x.detach() * inverse_h.detach()).abs() < 2.0**54


def _sum_between(moment: Tensor, start: Tensor, end: Tensor) -> Tensor:
    return _before(moment, end) - _before(moment, start)


def _parabola(moments: list[Tensor], u: Tensor, start: Tensor, end: Tensor) -> Tensor:
    """Sum 1 − (u_q − u_k)² over the keys of a cell."""
    s0, s1, s2 = (_sum_between(moment, start, end) for moment in moments)
    return (1 - u.square()) * s0 + 2 * u * s1 - s2


def _triangle(keys: _Keys) -> Callable[[list[Tensor], Tensor, Tensor, Tensor], Tensor]:
    """Return a function that sums 1 − |u_q − u_k| over the keys of a cell, before, at and after the query."""
    at, after = _bisect(keys, lambda a, b: b >= a), _bisect(keys, lambda a, b: b > a)

    def sum_cell(moments: list[Tensor], u: Tensor, start: Tensor, end: Tensor) -> Tensor:
        at_start, at_end = (torch.minimum(torch.maximum(index, start), end) for index in (at, after))
        left0, left1 = (_sum_between(moment, start, at_start) for moment in moments[:2])
        right0, right1 = (_sum_between(moment, at_end, end) for moment in moments[:2])
        return (1 - u) * left0 + left1 + _sum_between(moments[0], at_start, at_end) + (1 + u) * right0 - right1

    return sum_cell
