"""Sums over sorted keys by compiled loops: one two-pointer pass along sorted queries and keys keeps running sums.

`prefix_sums` stores the sums of all keys up to each key; here only one row of sums exists at a time. Gradients of keys
and values are the transposed sums, of keys over queries, and so another pass. A pass covers one item and some of its
columns, which no other pass touches, so the order of additions does not depend on the threads. Rows of a kernel whose
weights are small on average are computed pair by pair (`light_rows`).

| score | value at a key | factor of the weight | derivative by the query |
|---|---|---|---|
| relu or leaky relu under Mean or Identity | b > −a: a + b; others: slope·(a + b) | 1/count or 1 | 1; slope |
| leaky relu under Softmax | b > −a: e^(a + b); others: e^(slope·(a + b)) | e^−lse | itself; slope times itself |
| boxcar, Epanechnikov | within the support: polynomials of a − b | 1/total, 1/count or 1 | of the polynomial |
"""

from collections.abc import Callable
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from qkv.algorithms.sorted import light_rows, prefix_sums
from qkv.algorithms.sorted.light_rows import LightRows, inverse
from qkv.algorithms.sorted.prefix_sums import LineOperands
from qkv.algorithms.sorted.two_pointer_parallel import (
    NONE_2D,
    Doubles,
    Numbers,
    PointRows,
    Points,
    SourceFactors,
    Support,
    TargetFactors,
    sides,
    windows,
)
from qkv.engine.problem import Problem
from qkv.scores.pointwise import BoxcarShape, EpanechnikovShape, Leaky
from qkv.values.mapped import by_sample


def run(problem: Problem, operands: LineOperands) -> tuple[Tensor, Tensor]:
    """Compute attention by a pass along sorted queries and keys.

    Args:
        problem: the problem.
        operands: its operands; coordinates and scale are finite.

    Returns:
        As `prefix_sums.run`.
    """
    if problem.gradient:
        output, state = _TwoPointer.apply(problem, *operands)  # type: ignore[no-untyped-call]
        return output, state
    output, saved = _forward(problem, operands)
    return output, torch.from_numpy(saved.state).view(operands.a.shape)


class _Saved(NamedTuple):
    """What a forward pass saves for its backward pass.

    Attributes:
        queries, keys: their coordinates and order.
        factor: what multiplied each query's sums, 1/total, 1/count or 1; 0 if that is not finite, (R·Q,).
        state: the total, or the log-sum-exp of a softmax, (R·Q,).
        light: the rows that are computed pair by pair; None if there are none.
    """

    queries: Points
    keys: Points
    factor: Doubles
    state: Doubles
    light: LightRows | None = None


class _Gradients(NamedTuple):
    """Gradients of queries, keys, values and scale, flat; None if not requested."""

    a: Numbers | None
    b: Numbers | None
    value: Numbers | None
    scale: Doubles | None


class _Upstream(NamedTuple):
    """The upstream gradients of a backward pass.

    Attributes:
        rows: gradients of the output, (R·Q·V,), flat.
        product: their products with the output, (R·Q,).
        state: gradients of the state, (R·Q,).
        needs_grad: whether gradients of a, b, value and scale are requested.
    """

    rows: Numbers
    product: Doubles
    state: Doubles
    needs_grad: tuple[bool, ...]


@final
class _TwoPointer(torch.autograd.Function):
    """Output and state; their gradients by transposed passes, or by `prefix_sums` if they must be differentiable."""

    @staticmethod
    def forward(ctx: Any, problem: Problem, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        operands = LineOperands(*tensors)
        output, saved = _forward(problem, operands)
        ctx.problem, ctx.saved = problem, saved
        ctx.save_for_backward(*tensors, output)
        ctx.set_materialize_grads(False)
        # A copy, so that the caller cannot change what the backward pass reads.
        return output, torch.from_numpy(saved.state.copy()).view(operands.a.shape)

    @staticmethod
    @by_sample
    def backward(ctx: Any, grad: Tensor | None, grad_state: Tensor | None) -> Any:
        *tensors, output = ctx.saved_tensors
        operands, needs_grad = LineOperands(*tensors), ctx.needs_input_grad[1:5]
        grad = torch.zeros_like(output) if grad is None else grad
        product = (grad * output).sum(-1, dtype=torch.float64)
        state = torch.zeros_like(product) if grad_state is None else grad_state
        upstream = _Upstream(_flat(grad), _flat(product), _flat(state), needs_grad)
        gradients = _reshape(_passes(ctx.problem)[1](ctx.problem, operands, ctx.saved, upstream), operands)
        if torch.is_grad_enabled():
            differentiable = _differentiable_gradients(ctx.problem, operands, grad, grad_state, needs_grad)
            gradients = tuple(_value_of(x, y) for x, y in zip(gradients, differentiable, strict=True))
        return None, *gradients, None, None


def _forward(problem: Problem, operands: LineOperands) -> tuple[Tensor, _Saved]:
    values, saved = _passes(problem)[0](problem, operands)
    return torch.from_numpy(values).view(*operands.a.shape, operands.value.shape[-1]), saved


def _value_of(exact: Tensor | None, differentiable: Tensor | None) -> Tensor | None:
    """Return exact numbers with the derivatives of differentiable ones, which equal them up to rounding."""
    if exact is None or differentiable is None:
        return exact if differentiable is None else differentiable
    return exact + (differentiable - differentiable.detach())


def _differentiable_gradients(
    problem: Problem, operands: LineOperands, grad: Tensor, grad_state: Tensor | None, needs_grad: tuple[bool, ...]
) -> list[Tensor | None]:
    """Return gradients that autograd can differentiate."""
    a, b, value, scale, _, _ = operands
    inputs = [x for x, needed in zip((a, b, value, scale), needs_grad, strict=True) if needed]
    output, state = prefix_sums.run(problem, operands)
    pairs = [(output, grad.to(output.dtype)), (state, grad_state)]
    pairs = [(x, g) for x, g in pairs if g is not None and x.requires_grad]
    outputs, grads = [x for x, _ in pairs], [g for _, g in pairs]
    gradients = iter(torch.autograd.grad(outputs, inputs, grads, create_graph=True, allow_unused=True))
    return [next(gradients) if needed else None for needed in needs_grad]


def _reshape(gradients: _Gradients, operands: LineOperands) -> tuple[Tensor | None, ...]:
    shapes = (operands.a.shape, operands.b.shape, operands.value.shape, operands.a.shape)
    types = (operands.a.dtype, operands.b.dtype, operands.value.dtype, torch.float64)
    a, b, value, scale = (
        None if x is None else torch.from_numpy(x).view(shape).to(dtype)
        for x, shape, dtype in zip(gradients, shapes, types, strict=True)
    )
    return a, b, value, None if scale is None else scale.sum_to_size(operands.scale.shape)


def _flat(x: Tensor) -> Numbers:
    array: Numbers = x.detach().contiguous().view(-1).numpy()
    return array


def _sort(x: Tensor, visible: Tensor | None) -> Points:
    """Sort the coordinates of each item, with masked ones last."""
    rows = _flat(x).reshape(-1, x.shape[-1])
    items, length = rows.shape
    if visible is None:
        counts, order = np.full(items, length, np.uint64), rows.argsort(-1)
    else:
        is_visible = _flat(visible).reshape(rows.shape)
        counts, order = is_visible.sum(-1).astype(np.uint64), np.where(is_visible, rows, np.inf).argsort(-1)
    order += np.arange(items)[:, None] * length
    return Points(rows.reshape(-1), order.reshape(-1).view(np.uint64), counts)


def _query_factor(problem: Problem, operands: LineOperands) -> Doubles:
    """Return what multiplies each query's sums, 1 or 1/count, if they are not divided by their total."""
    if problem.normalizer != "mean":
        return np.ones(operands.a.numel())
    if operands.visible_count.numel() == 1:
        return np.full(operands.a.numel(), 1 / max(1, operands.visible_count.item()))
    count = operands.visible_count.double().expand(operands.a.shape)
    return _flat(torch.where(count > 0, 1 / count, 0.0))


def _rectified(problem: Problem, operands: LineOperands) -> tuple[Numbers, _Saved]:
    """Return Σ leaky(a + b) v."""
    queries, keys = _sort(operands.a, None), _sort(operands.b, operands.visible)
    factor, slopes = _query_factor(problem, operands), _side_slopes(problem)
    ones, b = np.ones(keys.coordinates.size), keys.coordinates.astype(np.float64)
    factors = TargetFactors(slopes * (factor * queries.coordinates), slopes * factor, NONE_2D)
    weights = SourceFactors(*(x[None].repeat(len(slopes), 0) for x in (ones, b)))
    sums = sides(queries, keys, PointRows(_flat(operands.value), ones), weights, factors, None, True)
    return sums.values, _Saved(queries, keys, factor, sums.totals)


def _rectified_back(problem: Problem, operands: LineOperands, saved: _Saved, upstream: _Upstream) -> _Gradients:
    queries, keys, factor, _, _ = saved
    wants_a, wants_b, wants_value, wants_scale = upstream.needs_grad
    slopes, ones, zeros = _side_slopes(problem), np.ones(keys.coordinates.size), np.zeros(queries.coordinates.size)
    side_count = len(slopes)
    value, d_a, d_b, d_value = PointRows(_flat(operands.value), ones), None, None, None
    grad = PointRows(upstream.rows, zeros)
    if wants_a:
        factors = TargetFactors(zeros[None].repeat(side_count, 0), NONE_2D, slopes * factor)
        weights = SourceFactors(ones[None].repeat(side_count, 0), NONE_2D)
        d_a = sides(queries, keys, value, weights, factors, grad, False).dots
    if wants_b or wants_value:
        ones_per_side = slopes * ones
        factors = TargetFactors(slopes * keys.coordinates, ones_per_side, ones_per_side if wants_b else NONE_2D)
        weights = SourceFactors(*(x[None].repeat(side_count, 0) for x in (factor, factor * queries.coordinates)))
        sums = sides(keys, queries, grad, weights, factors, value if wants_b else None, wants_value)
        d_b, d_value = sums.dots if wants_b else None, sums.values if wants_value else None
    return _Gradients(d_a, d_b, d_value, zeros if wants_scale else None)


class _Exponents(NamedTuple):
    """Exponentials of a softmax's scores, for the keys above the kink and for those below it.

    Attributes:
        queries: of queries, relative to the row's largest score, (2, R·Q).
        keys: of keys, relative to the item's largest, (2, R·K).
        largest: the row's largest score, (R·Q,).
    """

    queries: Doubles
    keys: Doubles
    largest: Doubles


def _exponents(problem: Problem, queries: Points, keys: Points, visible: Tensor | None) -> _Exponents:
    slope = _slope(problem)
    items = keys.counts.size
    b = keys.coordinates.astype(np.float64).reshape(items, -1)
    if visible is None:
        top = b.max(-1, keepdims=True)
        below = (b - top).reshape(-1)
    else:
        is_visible = _flat(visible).reshape(b.shape)
        top = np.where(is_visible, b, -np.inf).max(-1, keepdims=True)
        top[top == -np.inf] = 0.0
        below = np.where(is_visible, b - top, 0.0).reshape(-1)
    best = (queries.coordinates.astype(np.float64).reshape(items, -1) + top).reshape(-1)
    largest = np.where(best > 0, best, slope * best)
    # A key lies above the kink only if `best` is positive; then `best` is the largest score, and no exponent is
    # positive.
    slopes = np.array([[1.0], [slope]])
    return _Exponents(np.exp(slopes * best - largest), np.exp(slopes * below), largest)


def _exponential(problem: Problem, operands: LineOperands) -> tuple[Numbers, _Saved]:
    """Return Σ exp(leaky(a + b)) v / Σ exp(leaky(a + b))."""
    queries, keys = _sort(operands.a, None), _sort(operands.b, operands.visible)
    exponents = _exponents(problem, queries, keys, operands.visible)
    source_rows = PointRows(_flat(operands.value), np.ones(keys.coordinates.size))
    weights, factors = SourceFactors(exponents.keys, NONE_2D), TargetFactors(exponents.queries, NONE_2D, NONE_2D)
    sums = sides(queries, keys, source_rows, weights, factors, None, True, True)
    with np.errstate(divide="ignore"):
        lse = np.log(sums.totals) + exponents.largest
    return sums.values, _Saved(queries, keys, inverse(sums.totals), lse)


def _exponential_back(problem: Problem, operands: LineOperands, saved: _Saved, upstream: _Upstream) -> _Gradients:
    queries, keys, factor, _, _ = saved
    wants_a, wants_b, wants_value, wants_scale = upstream.needs_grad
    exponents = _exponents(problem, queries, keys, operands.visible)
    slope, ones = _slope(problem), np.ones(keys.coordinates.size)
    value, d_a, d_b, d_value = PointRows(_flat(operands.value), ones), None, None, None
    grad = PointRows(upstream.rows, upstream.state - upstream.product)
    if wants_a:
        # The gradients of a row's scores sum to that of its log-sum-exp, which gives those below the kink.
        above = TargetFactors(np.zeros_like(factor)[None], NONE_2D, exponents.queries[:1] * factor)
        dots = sides(queries, keys, value, SourceFactors(exponents.keys[:1], NONE_2D), above, grad, False).dots
        d_a = (1 - slope) * dots + slope * np.where(factor > 0, upstream.state, 0.0)
    if wants_b or wants_value:
        slopes = np.array([[1.0], [slope]])
        factors = TargetFactors(exponents.keys, NONE_2D, slopes * exponents.keys if wants_b else NONE_2D)
        weights = SourceFactors(exponents.queries * factor, NONE_2D)
        sums = sides(keys, queries, grad, weights, factors, value if wants_b else None, wants_value)
        d_b, d_value = sums.dots if wants_b else None, sums.values if wants_value else None
    return _Gradients(d_a, d_b, d_value, np.zeros_like(factor) if wants_scale else None)


def _support(problem: Problem, operands: LineOperands) -> Support:
    scale = operands.scale.expand(*operands.a.shape[:-1], 1) if problem.leading else operands.scale
    return Support(_kind(problem), _flat(scale))


def _kind(problem: Problem) -> int:
    """Return the kind of kernel by its number in `windows_kernel`."""
    point = problem.pointwise
    if isinstance(point, BoxcarShape):
        return 0
    return 1 if isinstance(point, EpanechnikovShape) and point.power == 2 else 2


def _window(problem: Problem, operands: LineOperands) -> tuple[Numbers, _Saved]:
    """Return Σ f(a − b) v, divided by Σ f(a − b) if the normalizer is `sum`."""
    queries, keys = _sort(operands.a, None), _sort(operands.b, operands.visible)
    factor, ones, summed = _query_factor(problem, operands), np.ones(keys.coordinates.size), problem.normalizer == "sum"
    # All queries of an item see the same keys.
    key_factor = factor.reshape(keys.counts.size, -1)[:, :1].repeat(operands.b.shape[-1], 1).reshape(-1)
    support, source_rows = _support(problem, operands), PointRows(_flat(operands.value), ones)
    sums = windows(support, queries, keys, source_rows, key_factor, None, True, summed)
    if not summed:
        return sums.values, _Saved(queries, keys, factor, sums.totals)
    light = light_rows.find(sums)
    if light is not None:
        rows = _columns(source_rows.rows, keys)
        outputs, totals = light_rows.sums(support, queries, keys, rows, light)
        _columns(sums.values, queries)[light.rows], sums.totals[light.rows] = outputs, totals
    return sums.values, _Saved(queries, keys, inverse(sums.totals), sums.totals, light)


def _columns(rows: Numbers, points: Points) -> Numbers:
    """View flat rows as (R·N, V)."""
    return rows.reshape(points.coordinates.size, -1)


def _window_back(problem: Problem, operands: LineOperands, saved: _Saved, upstream: _Upstream) -> _Gradients:
    queries, keys, factor, total, light = saved
    wants_a, wants_b, wants_value, wants_scale = upstream.needs_grad
    support, is_boxcar = _support(problem, operands), isinstance(problem.pointwise, BoxcarShape)
    ones, summed = np.ones(keys.coordinates.size), problem.normalizer == "sum"
    value, grad = PointRows(_flat(operands.value), ones), PointRows(upstream.rows, np.zeros_like(factor))
    if summed:
        grad = PointRows(upstream.rows, upstream.state * total - upstream.product)
    if light is not None:
        factor = factor.copy()
        factor[light.rows] = 0.0
    d_a, d_b, d_value, d_scale = np.zeros_like(factor), np.zeros_like(ones), None, np.zeros_like(factor)
    if wants_value or (wants_b and not is_boxcar):
        target_rows = value if wants_b and not is_boxcar else None
        sums = windows(support, keys, queries, grad, factor, target_rows, wants_value)
        d_b, d_value = sums.dots if target_rows is not None else d_b, sums.values if wants_value else None
    if (wants_a or wants_scale) and not is_boxcar:
        sums = windows(support, queries, keys, value, ones, grad, False)
        # 1 − f is proportional to the power of the distance, and so to half that power of the scale.
        d_a, d_log_scale = factor * sums.dots, factor * sums.complements * (-0.5 * problem.pointwise.power)  # type: ignore[union-attr]
        d_scale = d_log_scale / support.per_width.repeat(operands.a.shape[-1]) ** 2
    if light is not None:
        rows, grad_rows = _columns(value.rows, keys), _columns(grad.rows, queries)
        light_gradients = light_rows.gradients(support, queries, keys, rows, light, saved.factor, grad_rows, grad.extra)
        d_a[light.rows], d_scale[light.rows] = light_gradients.a, light_gradients.scale
        d_b = d_b + light_gradients.b
        if d_value is not None:
            d_value = d_value + light_gradients.value.reshape(-1)
    return _Gradients(d_a if wants_a else None, d_b if wants_b else None, d_value, d_scale if wants_scale else None)


_Forward = Callable[[Problem, LineOperands], tuple[Numbers, _Saved]]
_Backward = Callable[[Problem, LineOperands, _Saved, _Upstream], _Gradients]


def _passes(problem: Problem) -> tuple[_Forward, _Backward]:
    """Return the forward and the backward pass of a problem."""
    if problem.core == "distance":
        return _window, _window_back
    return (_exponential, _exponential_back) if problem.normalizer == "softmax" else (_rectified, _rectified_back)


def _slope(problem: Problem) -> float:
    assert isinstance(problem.pointwise, Leaky)
    return problem.pointwise.slope


def _side_slopes(problem: Problem) -> Doubles:
    """Return the slopes above and, unless it is 0, below the kink, (1 or 2, 1)."""
    slope = _slope(problem)
    return np.array([[1.0], [slope]] if slope else [[1.0]])
