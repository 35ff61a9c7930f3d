"""Sums over sorted keys by compiled loops: queries and keys are sorted, and one two-pointer pass keeps running sums.

Where `prefix_sums` writes sums of all keys up to each key, here a walk holds one row of them at a time. The gradients
of keys and values are the transposed sums, of keys over queries, and so another walk. A walk is along one item and some
of its columns, which no other walk touches, so that the order of additions does not depend on the threads.

| score | its keys | times, for a weight | slope along the query |
|---|---|---|---|
| relu or leaky relu under Mean or Identity | b > −a: a + b; others: slope·(a + b) | 1/count or 1 | 1; slope |
| leaky relu under Softmax | b > −a: e^(a + b); others: e^(slope·(a + b)) | e^−lse | itself; slope times itself |
| boxcar, Epanechnikov | within the support: polynomials of a − b | 1/total, 1/count or 1 | of the polynomial |
"""

from typing import TYPE_CHECKING, Any, NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qkv.algorithms.sorted import prefix_sums
from qkv.algorithms.sorted.prefix_sums import Operands
from qkv.engine.problem import Problem
from qkv.scores.pointwise import BoxcarShape, EpanechnikovShape, Leaky

if TYPE_CHECKING:
    from qkv.algorithms.sorted.two_pointer_parallel import Line, Support

Numbers = NDArray[Any]
Doubles = NDArray[np.float64]


def run(problem: Problem, operands: Operands) -> tuple[Tensor, Tensor]:
    """Walk along sorted queries and keys.

    Args:
        problem: what is asked.
        operands: its numbers, all finite but for values.

    Returns:
        As `prefix_sums.run`.
    """
    a, b, value, scale, visible, count = operands
    if problem.gradient:
        output, state = _Sweeps.apply(problem, visible, count, a, b, value, scale)  # type: ignore[no-untyped-call]
        return output, state
    output, left = _forward(problem, operands)
    return output, torch.from_numpy(left.state).view(a.shape)


class _Left(NamedTuple):
    """What a forward pass saves for its backward pass.

    Attributes:
        queries, keys: their numbers and order.
        share: what multiplied each query's sums: 1/total, 1/count or 1; 0 where that is not finite, (R·Q,).
        state: the total, or lse of a softmax, (R·Q,).
    """

    queries: "Line"
    keys: "Line"
    share: Doubles
    state: Doubles


class _Slopes(NamedTuple):
    """Gradients of queries, keys, values and scale, flat; None where not wanted."""

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
        wanted: whether those of a, b, value and scale are asked for.
    """

    rows: Numbers
    product: Doubles
    state: Doubles
    wanted: tuple[bool, ...]


@final
class _Sweeps(torch.autograd.Function):
    """Output and state; their gradients by the transposed walks, or by the composition where they need some too."""

    @staticmethod
    def forward(
        ctx: Any,
        problem: Problem,
        visible: Tensor | None,
        count: Tensor,
        a: Tensor,
        b: Tensor,
        value: Tensor,
        scale: Tensor,
    ) -> tuple[Tensor, Tensor]:
        operands = Operands(a, b, value, scale, visible, count)
        output, left = _forward(problem, operands)
        ctx.problem, ctx.left = problem, left
        ctx.save_for_backward(visible, count, a, b, value, scale, output)
        ctx.set_materialize_grads(False)
        # A copy: the backward pass reads its own, whatever becomes of this one.
        return output, torch.from_numpy(left.state.copy()).view(a.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_state: Tensor | None) -> Any:
        visible, count, a, b, value, scale, output = ctx.saved_tensors
        operands, wanted = Operands(a, b, value, scale, visible, count), ctx.needs_input_grad[3:]
        grad = torch.zeros_like(output) if grad is None else grad
        if torch.is_grad_enabled():
            return (None, None, None, *_composed(ctx.problem, operands, grad, grad_state, wanted))
        product = (grad * output).sum(-1, dtype=torch.float64)
        state = torch.zeros_like(product) if grad_state is None else grad_state
        upstream = _Upstream(_flat(grad), _flat(product), _flat(state), wanted)
        found = _BACKWARD[_family(ctx.problem)](ctx.problem, operands, ctx.left, upstream)
        return None, None, None, *_shaped(found, operands)


def _forward(problem: Problem, operands: Operands) -> tuple[Tensor, _Left]:
    values, left = _FORWARD[_family(problem)](problem, operands)
    return torch.from_numpy(values).view(*operands.a.shape, operands.value.shape[-1]), left


def _composed(
    problem: Problem, operands: Operands, grad: Tensor, grad_state: Tensor | None, wanted: tuple[bool, ...]
) -> list[Tensor | None]:
    """Gradients that PyTorch differentiates again."""
    a, b, value, scale, _, _ = operands
    inputs = [x for x, want in zip((a, b, value, scale), wanted, strict=True) if want]
    output, state = prefix_sums.run(problem, operands)
    pairs = [(output, grad.to(output.dtype)), (state, grad_state)]
    known = [(x, g) for x, g in pairs if g is not None and x.requires_grad]
    outputs, grads = [x for x, _ in known], [g for _, g in known]
    each = iter(torch.autograd.grad(outputs, inputs, grads, create_graph=True, allow_unused=True))
    return [next(each) if want else None for want in wanted]


def _shaped(found: _Slopes, operands: Operands) -> tuple[Tensor | None, ...]:
    shapes = (operands.a.shape, operands.b.shape, operands.value.shape, operands.a.shape)
    types = (operands.a.dtype, operands.b.dtype, operands.value.dtype, torch.float64)
    a, b, value, scale = (
        None if x is None else torch.from_numpy(x).view(shape).to(dtype)
        for x, shape, dtype in zip(found, shapes, types, strict=True)
    )
    return a, b, value, None if scale is None else scale.sum_to_size(operands.scale.shape)


def _flat(x: Tensor) -> Numbers:
    found: Numbers = x.detach().contiguous().view(-1).numpy()
    return found


def _line(x: Tensor, visible: Tensor | None) -> "Line":
    from qkv.algorithms.sorted.two_pointer_parallel import Line

    rows = _flat(x).reshape(-1, x.shape[-1])
    items, each = rows.shape
    if visible is None:
        count, order = np.full(items, each, np.uint64), rows.argsort(-1)
    else:
        seen = _flat(visible).reshape(rows.shape)
        count, order = seen.sum(-1).astype(np.uint64), np.where(seen, rows, np.inf).argsort(-1)
    order += np.arange(items)[:, None] * each
    return Line(rows.reshape(-1), order.reshape(-1).view(np.uint64), count)


def _share(problem: Problem, operands: Operands) -> Doubles:
    """What multiplies each query's sums, where they are not divided by a sum of their own."""
    if problem.normalizer != "mean":
        return np.ones(operands.a.numel())
    if operands.seen.numel() == 1:
        return np.full(operands.a.numel(), 1 / max(1, operands.seen.item()))
    count = operands.seen.double().expand(operands.a.shape)
    return _flat(torch.where(count > 0, 1 / count, 0.0))


def _inverse(total: Doubles) -> Doubles:
    """1/total, and 0 for 0."""
    found: Doubles = np.divide(1.0, total, out=np.zeros_like(total), where=total != 0)
    return found


def _rectified(problem: Problem, operands: Operands) -> tuple[Numbers, _Left]:
    """Σ leaky(a + b) v."""
    from qkv.algorithms.sorted.two_pointer_parallel import NO_MORE, Factors, Rows, Weights, sides

    queries, keys = _line(operands.a, None), _line(operands.b, operands.visible)
    share, slopes = _share(problem, operands), _bends(problem)
    ones, b = np.ones(keys.numbers.size), keys.numbers.astype(np.float64)
    factors = Factors(slopes * (share * queries.numbers), slopes * share, NO_MORE)
    weights = Weights(*(x[None].repeat(len(slopes), 0) for x in (ones, b)))
    found = sides(queries, keys, Rows(_flat(operands.value), ones), weights, factors, None, True)
    return found.values, _Left(queries, keys, share, found.totals)


def _rectified_back(problem: Problem, operands: Operands, left: _Left, upstream: _Upstream) -> _Slopes:
    from qkv.algorithms.sorted.two_pointer_parallel import NO_MORE, Factors, Rows, Weights, sides

    queries, keys, share, _ = left
    of_a, of_b, of_value, of_scale = upstream.wanted
    slopes, ones, nothing = _bends(problem), np.ones(keys.numbers.size), np.zeros(queries.numbers.size)
    each = len(slopes)
    value, d_a, d_b, d_value = Rows(_flat(operands.value), ones), None, None, None
    grad = Rows(upstream.rows, nothing)
    if of_a:
        factors = Factors(nothing[None].repeat(each, 0), NO_MORE, slopes * share)
        weights = Weights(ones[None].repeat(each, 0), NO_MORE)
        d_a = sides(queries, keys, value, weights, factors, grad, False).dots
    if of_b or of_value:
        along = slopes * ones
        factors = Factors(slopes * keys.numbers, along, along if of_b else NO_MORE)
        weights = Weights(*(x[None].repeat(each, 0) for x in (share, share * queries.numbers)))
        found = sides(keys, queries, grad, weights, factors, value if of_b else None, of_value)
        d_b, d_value = found.dots if of_b else None, found.values if of_value else None
    return _Slopes(d_a, d_b, d_value, nothing if of_scale else None)


class _Exponents(NamedTuple):
    """Of a softmax, each for the sources above the bend and for the others.

    Attributes:
        queries: exponentials of queries, relative to the row's largest score, (2, R·Q).
        keys: exponentials of keys, relative to the item's largest, (2, R·K).
        largest: the row's largest score, (R·Q,).
    """

    queries: Doubles
    keys: Doubles
    largest: Doubles


def _exponents(problem: Problem, queries: "Line", keys: "Line", visible: Tensor | None) -> _Exponents:
    slope = _slope(problem)
    items = keys.members.size
    b = keys.numbers.astype(np.float64).reshape(items, -1)
    if visible is None:
        top = b.max(-1, keepdims=True)
        below = (b - top).reshape(-1)
    else:
        seen = _flat(visible).reshape(b.shape)
        top = np.where(seen, b, -np.inf).max(-1, keepdims=True)
        top[top == -np.inf] = 0.0
        below = np.where(seen, b - top, 0.0).reshape(-1)
    best = (queries.numbers.astype(np.float64).reshape(items, -1) + top).reshape(-1)
    largest = np.where(best > 0, best, slope * best)
    # Above the bend there is a key only where best is positive, and then it is the largest score: no exponent is.
    slopes = np.array([[1.0], [slope]])
    return _Exponents(np.exp(slopes * best - largest), np.exp(slopes * below), largest)


def _exponential(problem: Problem, operands: Operands) -> tuple[Numbers, _Left]:
    """Σ exp(leaky(a + b)) v / Σ exp(leaky(a + b))."""
    from qkv.algorithms.sorted.two_pointer_parallel import NO_MORE, Factors, Rows, Weights, sides

    queries, keys = _line(operands.a, None), _line(operands.b, operands.visible)
    exponents = _exponents(problem, queries, keys, operands.visible)
    given = Rows(_flat(operands.value), np.ones(keys.numbers.size))
    weights, factors = Weights(exponents.keys, NO_MORE), Factors(exponents.queries, NO_MORE, NO_MORE)
    found = sides(queries, keys, given, weights, factors, None, True, True)
    with np.errstate(divide="ignore"):
        lse = np.log(found.totals) + exponents.largest
    return found.values, _Left(queries, keys, _inverse(found.totals), lse)


def _exponential_back(problem: Problem, operands: Operands, left: _Left, upstream: _Upstream) -> _Slopes:
    from qkv.algorithms.sorted.two_pointer_parallel import NO_MORE, Factors, Rows, Weights, sides

    queries, keys, share, _ = left
    of_a, of_b, of_value, of_scale = upstream.wanted
    exponents = _exponents(problem, queries, keys, operands.visible)
    slope, ones = _slope(problem), np.ones(keys.numbers.size)
    value, d_a, d_b, d_value = Rows(_flat(operands.value), ones), None, None, None
    grad = Rows(upstream.rows, upstream.state - upstream.product)
    if of_a:
        # Gradients of a row's scores add up to that of its lse: those below the bend are the rest.
        above = Factors(np.zeros_like(share)[None], NO_MORE, exponents.queries[:1] * share)
        dots = sides(queries, keys, value, Weights(exponents.keys[:1], NO_MORE), above, grad, False).dots
        d_a = (1 - slope) * dots + slope * np.where(share > 0, upstream.state, 0.0)
    if of_b or of_value:
        slopes = np.array([[1.0], [slope]])
        factors = Factors(exponents.keys, NO_MORE, slopes * exponents.keys if of_b else NO_MORE)
        weights = Weights(exponents.queries * share, NO_MORE)
        found = sides(keys, queries, grad, weights, factors, value if of_b else None, of_value)
        d_b, d_value = found.dots if of_b else None, found.values if of_value else None
    return _Slopes(d_a, d_b, d_value, np.zeros_like(share) if of_scale else None)


def _support(problem: Problem, operands: Operands) -> "Support":
    from qkv.algorithms.sorted.two_pointer_parallel import Support

    point = problem.pointwise
    kind = (
        0 if isinstance(point, BoxcarShape) else 1 if isinstance(point, EpanechnikovShape) and point.power == 2 else 2
    )
    scale = _flat(operands.scale.expand(*operands.a.shape[:-1], 1) if problem.leading else operands.scale)
    return Support(kind, scale.astype(_flat(operands.a[..., :0]).dtype), np.sqrt(scale))


def _window(problem: Problem, operands: Operands) -> tuple[Numbers, _Left]:
    """Σ f(a − b) v, over Σ f(a − b) where it is normalized."""
    from qkv.algorithms.sorted.two_pointer_parallel import Rows, windows

    queries, keys = _line(operands.a, None), _line(operands.b, operands.visible)
    share, ones, summed = _share(problem, operands), np.ones(keys.numbers.size), problem.normalizer == "sum"
    # All queries of an item see the same keys.
    factor = share.reshape(keys.members.size, -1)[:, :1].repeat(operands.b.shape[-1], 1).reshape(-1)
    given = Rows(_flat(operands.value), ones)
    found = windows(_support(problem, operands), queries, keys, given, factor, None, True, summed)
    return found.values, _Left(queries, keys, _inverse(found.totals) if summed else share, found.totals)


def _window_back(problem: Problem, operands: Operands, left: _Left, upstream: _Upstream) -> _Slopes:
    from qkv.algorithms.sorted.two_pointer_parallel import Rows, windows

    queries, keys, share, total = left
    of_a, of_b, of_value, of_scale = upstream.wanted
    support, flat = _support(problem, operands), isinstance(problem.pointwise, BoxcarShape)
    ones, summed = np.ones(keys.numbers.size), problem.normalizer == "sum"
    value, grad = Rows(_flat(operands.value), ones), Rows(upstream.rows, np.zeros_like(share))
    if summed:
        grad = Rows(upstream.rows, upstream.state * total - upstream.product)
    d_a, d_b, d_value, d_scale = np.zeros_like(share), np.zeros_like(ones), None, np.zeros_like(share)
    if of_value or (of_b and not flat):
        own = value if of_b and not flat else None
        found = windows(support, keys, queries, grad, share, own, of_value)
        d_b, d_value = found.dots if own is not None else d_b, found.values if of_value else None
    if (of_a or of_scale) and not flat:
        found = windows(support, queries, keys, value, ones, grad, False)
        # 1 − f grows with the power of the distance, and so with half that power of the scale.
        d_a, each = share * found.dots, share * found.bends * (-0.5 * problem.pointwise.power)  # type: ignore[union-attr]
        d_scale = each / support.per_width.repeat(operands.a.shape[-1]) ** 2
    return _Slopes(d_a if of_a else None, d_b if of_b else None, d_value, d_scale if of_scale else None)


def _family(problem: Problem) -> int:
    if problem.core == "distance":
        return 2
    return 1 if problem.normalizer == "softmax" else 0


def _slope(problem: Problem) -> float:
    assert isinstance(problem.pointwise, Leaky)
    return problem.pointwise.slope


def _bends(problem: Problem) -> Doubles:
    """Those of the sides of the bend that count, above and below, (1 or 2, 1)."""
    slope = _slope(problem)
    return np.array([[1.0], [slope]] if slope else [[1.0]])


_FORWARD = (_rectified, _exponential, _window)
_BACKWARD = (_rectified_back, _exponential_back, _window_back)
