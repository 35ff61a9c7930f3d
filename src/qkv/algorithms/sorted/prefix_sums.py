"""Sums over sorted keys as a composition of PyTorch's operations: prefix sums, read at each query's boundaries.

It is used under tracing and function transforms, on every device, for numbers that are not finite, and for second
derivatives; eager calls on the CPU use `two_pointer`, which computes the same.

| score | on keys sorted by b | sums kept |
|---|---|---|
| relu or leaky relu of a + b, under Mean or Identity | b > −a: a + b; else slope·(a + b) | v, b·v |
| leaky relu of a + b, under Softmax | b > −a: eᵃeᵇ; else e^(slope·a) e^(slope·b) | eᵇ·(v, 1), e^(slope·b)·(v, 1) |
| boxcar of |q − k|/h | within: 1 | (v, 1) |
| Epanechnikov of |q − k|/h, power 2 | within: 1 − (q − k)²/h² | (v, 1), k·(v, 1), k²·(v, 1) |
| Epanechnikov of |q − k|/h, power 1 | k ≤ q: 1 − (q − k)/h; k > q: 1 − (k − q)/h | (v, 1), k·(v, 1) |

Sums are kept in float64: in float32 differences of prefix sums lose everything. Boundaries are found by bisection with
the score's own predicate on the original numbers, because `searchsorted(q ± h)` rounds q ± h.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.engine.problem import Problem
from qkv.scores.pointwise import BoxcarShape, EpanechnikovShape, Leaky


class Operands(NamedTuple):
    """The operands of a problem on sorted numbers.

    Attributes:
        a, b: the numbers of queries (..., Q) and keys (..., K), the problem's leading shape.
        value: (..., K, V), the same leading shape.
        scale: multiplies the core's result; float64, broadcasts to (..., Q).
        visible: which keys count, (..., K); None for all.
        seen: how many they are, broadcasts to (..., Q).
    """

    a: Tensor
    b: Tensor
    value: Tensor
    scale: Tensor
    visible: Tensor | None
    seen: Tensor


def run(problem: Problem, operands: Operands) -> tuple[Tensor, Tensor]:
    """Sort the keys, sum along them, read the sums at each query's boundaries.

    Args:
        problem: what is asked.
        operands: its numbers.

    Returns:
        The output (..., Q, V), and what the row state is made of, (..., Q) in float64: the sum of the scores, or of a
        softmax the log of that of their exponentials.
    """
    keys, count = _sorted_keys(operands), operands.seen.expand(operands.a.shape)
    sums_QC, shift = _family(problem)(problem, keys)
    output, total = sums_QC[..., :-1], sums_QC[..., -1:]
    empty = total == 0
    safe = torch.where(empty, torch.ones_like(total), total)
    if problem.normalizer in ("sum", "softmax"):
        output = torch.where(empty, torch.zeros_like(output), output / safe)
    elif problem.normalizer == "mean":
        output = output / count.clamp(min=1)[..., None]
    # NaN has no place in an order: rows that have one, or see one, say so.
    lost = (keys.a_Q.isnan() | (keys.b_K.isnan() & keys.visible_K).any(-1, keepdim=True)) & (count > 0)
    # What is NaN comes from the operands, so that they have a gradient, of zero elsewhere, where a boxcar gives none.
    own = keys.wide_a_Q + keys.wide_b_K.sum(-1, keepdim=True) + keys.scale
    output = torch.where(lost[..., None], own[..., None], output)
    # The logarithm of what may be 0 would have a gradient that is not finite.
    state = total if shift is None else torch.where(empty, -torch.inf, safe.log() + shift[..., None])
    state = state[..., 0]
    return output, state.masked_fill(lost, torch.nan)


class _Keys(NamedTuple):
    """Queries and sorted keys of a problem.

    Attributes:
        a_Q, b_K: the numbers in their own type, keys ascending; boundaries are decided on them.
        wide_a_Q, wide_b_K: the same in float64, for sums and gradients.
        v_KC: values with a last column of ones, hidden keys all zero, in the keys' order; float64.
        scale: multiplies the core's result; float64.
        visible_K: which keys count.
    """

    a_Q: Tensor
    b_K: Tensor
    wide_a_Q: Tensor
    wide_b_K: Tensor
    v_KC: Tensor
    scale: Tensor
    visible_K: Tensor


def _sorted_keys(operands: Operands) -> _Keys:
    a, b, value, scale, visible, _ = operands
    visible = torch.ones_like(b, dtype=torch.bool) if visible is None else visible
    v_KC = torch.cat([value.double(), visible.double()[..., None]], -1)
    order = b.detach().argsort(-1)
    b, visible = b.gather(-1, order), visible.gather(-1, order)
    v_KC = v_KC.gather(-2, order[..., None].expand_as(v_KC))
    return _Keys(a.detach(), b.detach(), a.double(), b.double(), v_KC, scale, visible)


def _first(keys: _Keys, holds: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Find by bisection the first sorted key for which a monotone predicate is true: (..., Q), K if there is none."""
    count = keys.b_K.shape[-1]
    low = torch.zeros_like(keys.a_Q, dtype=torch.int64)
    high = torch.full_like(low, count)
    for _ in range(count.bit_length()):
        middle = (low + high) // 2
        inside = holds(keys.a_Q, keys.b_K.gather(-1, middle.clamp(max=count - 1)))
        open_ = low < high
        high = torch.where(open_ & inside, middle, high)
        low = torch.where(open_ & ~inside, middle + 1, low)
    return low


def _before(x_KC: Tensor, place_Q: Tensor) -> Tensor:
    """Return the sum over the keys before a position."""
    sums = x_KC.cumsum(-2)
    read = sums.gather(-2, (place_Q - 1).clamp(min=0)[..., None].expand(*place_Q.shape, x_KC.shape[-1]))
    return torch.where((place_Q > 0)[..., None], read, torch.zeros_like(read))


def _from(x_KC: Tensor, place_Q: Tensor) -> Tensor:
    """Return the sum over the keys from a position on, added from the end, so that earlier keys add no rounding."""
    return _before(x_KC.flip(-2), x_KC.shape[-2] - place_Q)


_Sums = tuple[Tensor, Tensor | None]


def _family(problem: Problem) -> Callable[[Problem, _Keys], _Sums]:
    if problem.core == "distance":
        return _box if isinstance(problem.pointwise, BoxcarShape) else _bump
    return _exponential if problem.normalizer == "softmax" else _rectified


def _bend(problem: Problem, keys: _Keys) -> tuple[float, Tensor]:
    assert isinstance(problem.pointwise, Leaky)
    return problem.pointwise.slope, _first(keys, lambda a, b: a + b > 0)


def _rectified(problem: Problem, keys: _Keys) -> _Sums:
    """Σ max(a + b, slope·(a + b)) (v, 1)."""
    slope, place = _bend(problem, keys)
    a_Q1, bv_KC = keys.wide_a_Q[..., None], keys.wide_b_K[..., None] * keys.v_KC
    sums = a_Q1 * _from(keys.v_KC, place) + _from(bv_KC, place)
    if slope:
        sums = sums + slope * (a_Q1 * _before(keys.v_KC, place) + _before(bv_KC, place))
    return sums, None


def _exponential(problem: Problem, keys: _Keys) -> _Sums:
    """Σ exp(leaky(a + b) − m) (v, 1) and m, the row's largest score."""
    slope, place = _bend(problem, keys)
    hidden = torch.full_like(keys.wide_b_K, -torch.inf)
    top = torch.where(keys.visible_K, keys.wide_b_K, hidden).amax(-1, keepdim=True).detach()
    top = torch.where(top == -torch.inf, torch.zeros_like(top), top)
    below = torch.where(keys.visible_K, keys.wide_b_K - top, torch.zeros_like(top))
    best = keys.wide_a_Q + top
    m = torch.where(best > 0, best, slope * best).detach()
    upper = torch.exp(best - m)[..., None] * _from(torch.exp(below)[..., None] * keys.v_KC, place)
    lower = torch.exp(slope * best - m)[..., None] * _before(torch.exp(slope * below)[..., None] * keys.v_KC, place)
    # Where every key lies on one side, the other's factor may overflow beside its empty sum.
    upper = torch.where((place < keys.b_K.shape[-1])[..., None], upper, torch.zeros_like(upper))
    lower = torch.where((place > 0)[..., None], lower, torch.zeros_like(lower))
    return upper + lower, m


def _window(problem: Problem, keys: _Keys) -> tuple[Tensor, Tensor]:
    """The sorted keys first ≤ j < last within the kernel's support around each query."""
    scale = keys.scale.to(keys.a_Q.dtype).detach()
    closed = isinstance(problem.pointwise, BoxcarShape)

    def inside(a: Tensor, b: Tensor) -> Tensor:
        x = scale * (a - b).square()
        return x <= 1 if closed else x < 1

    first = _first(keys, lambda a, b: (b >= a) | inside(a, b))
    return first, _first(keys, lambda a, b: (b > a) & ~inside(a, b))


def _box(problem: Problem, keys: _Keys) -> _Sums:
    """Σ (v, 1) within the support."""
    first, last = _window(problem, keys)
    return _before(keys.v_KC, last) - _before(keys.v_KC, first), None


def _bump(problem: Problem, keys: _Keys) -> _Sums:
    """Σ (1 − |q − k|^power / h^power) (v, 1) within the support, in coordinates of cells as wide as the support.

    A key's coordinate is counted from the center of its cell, so that no far key enters a sum with a large factor; a
    window lies in at most two cells, three when their edges round.
    """
    assert isinstance(problem.pointwise, EpanechnikovShape)
    inverse_h = keys.scale.sqrt()
    cell_K = torch.floor(keys.wide_b_K.detach() * inverse_h.detach() / 2)
    center_K = (2 * cell_K + 1) / inverse_h.detach()
    near_K, near_Q = (_in_a_cell(x, inverse_h) for x in (keys.wide_b_K, keys.wide_a_Q))
    # Zeros before the difference too, so that no infinity reaches a gradient.
    u_K = torch.where(near_K, keys.wide_b_K, 0.0) - torch.where(near_K, center_K, 0.0)
    u_K1 = (u_K * inverse_h)[..., None]
    moments = [keys.v_KC, u_K1 * keys.v_KC, u_K1.square() * keys.v_KC]
    first, last = _window(problem, keys)
    piece = _parabola if problem.pointwise.power == 2 else _triangle(keys)
    sums = torch.zeros(*keys.a_Q.shape, keys.v_KC.shape[-1], dtype=torch.float64, device=keys.a_Q.device)
    start = first
    for _ in range(3):
        own = cell_K.gather(-1, start.clamp(max=cell_K.shape[-1] - 1))
        end = torch.minimum(_end_of_cell(cell_K, own), last)
        end = torch.maximum(end, start)
        center = (2 * own + 1) / inverse_h.detach()
        inside = near_Q & (end > start)
        u_Q = torch.where(inside, keys.wide_a_Q, 0.0) - torch.where(inside, center, 0.0)
        u_Q1 = (u_Q * inverse_h)[..., None]
        sums = sums + piece(moments, u_Q1, start, end)
        start = end
    return sums, None


def _in_a_cell(x: Tensor, inverse_h: Tensor) -> Tensor:
    """Whether a number is told from others in its cell.

    From 2⁵⁴ h on neighboring numbers of 53 bits lie 2 h apart or more: only equal ones are within the support of each
    other, at coordinate 0, and the rounded centers of cells would give them others, as large as the numbers.
    """
    return (x.detach() * inverse_h.detach()).abs() < 2.0**54


def _end_of_cell(cell_K: Tensor, own_Q: Tensor) -> Tensor:
    return torch.searchsorted(cell_K.contiguous(), own_Q.contiguous(), right=True)


def _between(moment: Tensor, start: Tensor, end: Tensor) -> Tensor:
    return _before(moment, end) - _before(moment, start)


def _parabola(moments: list[Tensor], u: Tensor, start: Tensor, end: Tensor) -> Tensor:
    """1 − (u_q − u_k)²."""
    s0, s1, s2 = (_between(moment, start, end) for moment in moments)
    return (1 - u.square()) * s0 + 2 * u * s1 - s2


def _triangle(keys: _Keys) -> Callable[[list[Tensor], Tensor, Tensor, Tensor], Tensor]:
    """1 − |u_q − u_k|: keys before the query, keys at it (where the kernel has no slope), and keys after it."""
    at, after = _first(keys, lambda a, b: b >= a), _first(keys, lambda a, b: b > a)

    def piece(moments: list[Tensor], u: Tensor, start: Tensor, end: Tensor) -> Tensor:
        peak, turn = (torch.minimum(torch.maximum(place, start), end) for place in (at, after))
        left0, left1 = (_between(moment, start, peak) for moment in moments[:2])
        right0, right1 = (_between(moment, turn, end) for moment in moments[:2])
        return (1 - u) * left0 + left1 + _between(moments[0], peak, turn) + (1 + u) * right0 - right1

    return piece
