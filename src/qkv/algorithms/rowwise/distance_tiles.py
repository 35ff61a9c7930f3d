"""Kernel regression over squared distances between near points, in compiled tiles that stay in the L1 and L2 caches.

Backend `rowwise` uses this module if products in the operands' own dtype are exact enough and the kernel values of each
row are divided by their sum: no matrix is written to memory (`qkv.algorithms.rowwise.distance_tiles_kernel`). A softmax
over −‖q−k‖²/2h² is a Gaussian divided by its sum, if the nearest key of each row is not far away.

Boxcar weights have zero gradient, and the gradient of the values is the transposed sum: the forward kernel runs with
keys in place of queries, and with the gradients of the output, divided by their row sums, in place of values. Products
are bitwise equal in both directions, so the same pairs are within the support. Gradients of other kernels need the
derivative of exactly the weights of the forward pass, which other modules compute.
"""

from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv.algorithms.rowwise import distances
from qkv.algorithms.rowwise.distances import WHY_NOT_SINGLE, Distances, Norms
from qkv.compiled import available, thread_pool
from qkv.compiled.registers import ROUND
from qkv.engine.algorithm import Algorithm, Result, Work
from qkv.engine.autograd import differentiable_by
from qkv.engine.derivatives import Terms, differentiable_gradients, visibility_of
from qkv.engine.mechanism import Mechanism
from qkv.engine.problem import Call, Problem, first_reason
from qkv.engine.work import memory_traffic, pairs_of, product_operations
from qkv.scores.base import without_autocast
from qkv.scores.pointwise import BoxcarShape, EpanechnikovShape, NegativeHalf, Pointwise

DEPTH = 12.0
"""Largest magnitude of a Gaussian's exponent if rows are divided by their sums at the end.

Products with values then stay normal floats.
"""
_MIN_SCALE = 1e-30
"""The smallest 1/h²: below float32's 1e-38 it would round to 0, and 0 times infinity is NaN."""
_MIN_VALUE, _MAX_VALUE = 1e-20, 1e30
"""The largest magnitude of all values must be between these, or 0: sums over 10⁸ keys then stay below 3e38."""

_GROUP, _TILE = 128, 512
"""Rows and keys per tile: at width 64 the buffers fill half of an L2 cache of 1 MiB."""
_MICROSECONDS = 1.5e-5
"""Time of one thread per pair and element of its query or value."""


def refuses(problem: Problem) -> str | None:
    """Return why these tiles cannot compute a problem, None if they can: no mask, bias, dropout or row state."""
    return distances.refuses(problem) or first_reason(
        (_kind(problem.pointwise, problem.normalizer) is None, f"{problem.pointwise} under {problem.normalizer}"),
        (problem.mask != "all", "rows see different keys"),
        (problem.bias != "none" or problem.sink, "a bias or a sink is added"),
        (problem.state or problem.dropout, "the row state or dropout is requested"),
        (problem.dtype == torch.float64, f"the dtype is {problem.dtype}"),
        (problem.gradient and not isinstance(problem.pointwise, BoxcarShape), "only boxcars have a backward pass here"),
    )


def work(problem: Problem) -> Work:
    """Count the products, whose results never leave the caches."""
    counts = {"operations": product_operations(problem), "pairs": pairs_of(problem), **memory_traffic(problem)}
    return Work(product_operations(problem) * (2 if problem.gradient else 1), 4 << 20, counts)


def _declines(problem: Problem, facts: Distances) -> str | None:
    inputs = facts.centered
    if facts.precision != "single":
        return WHY_NOT_SINGLE
    shared = not inputs.key.shape[:-2] == inputs.value.shape[:-2] == problem.leading
    if shared or inputs.scale is not None or inputs.parameter is not None:
        return "the bandwidth differs between heads, or keys are shared between them"
    return None if summable(facts.mechanism, facts.max_norms, inputs.value) else "sums of the values may leave float32"


def run(problem: Problem, call: Call, facts: Distances) -> Result:
    """Compute attention tile by tile."""
    operands = facts.centered[:3]
    if problem.gradient:
        output = _Tiles.apply(facts.mechanism, facts.norms, *operands)  # type: ignore[no-untyped-call]
    else:
        output, _ = _sums(facts.mechanism, *operands, facts.norms, divided=True)
    return Result(output.to(call.query.dtype), None)


def summable(mechanism: Mechanism, max_norms: tuple[float, float], value: Tensor) -> bool:
    """Return whether sums that are divided at the end stay within float32, for these weights and values.

    Args:
        mechanism: of a problem that these tiles do not refuse.
        max_norms: max‖q‖² and max‖k‖².
        value: (..., K, V); False if one is NaN.

    Example:
        >>> mechanism, ones = Mechanism("distance", NegativeHalf(), "softmax", 0.1, 0.0, False, ()), torch.ones(3, 1)
        >>> summable(mechanism, (8.0, 8.0), ones), summable(mechanism, (8.0, 8e4), ones)
        (True, False)
        >>> summable(mechanism, (8.0, 8.0), 1e37 * ones)
        False
    """
    least, largest = (float(x) for x in value.detach().aminmax())
    magnitude = max(-least, largest)
    is_gaussian = isinstance(mechanism.pointwise, NegativeHalf)
    near_enough = not is_gaussian or (max_norms[0] ** 0.5 + max_norms[1] ** 0.5) ** 2 * mechanism.factor / 2 <= DEPTH
    return near_enough and mechanism.factor >= _MIN_SCALE and (magnitude == 0 or _MIN_VALUE <= magnitude <= _MAX_VALUE)


def _kind(pointwise: Pointwise, normalizer: str) -> int | None:
    """Return the number of the compiled kernel, None if there is none."""
    if isinstance(pointwise, NegativeHalf):
        return 0 if normalizer == "softmax" else None
    if normalizer != "sum":
        return None
    if isinstance(pointwise, EpanechnikovShape):
        return 2 if pointwise.power == 2 else None
    return 1 if isinstance(pointwise, BoxcarShape) else None


def _sums(
    mechanism: Mechanism, query: Tensor, key: Tensor, value: Tensor, norms: Norms, divided: bool
) -> tuple[Tensor, Tensor]:
    """Return Σ f(‖q−k‖²/h²) v (..., Q, V), divided by Σ f if `divided`, and Σ f (..., Q, 1)."""
    kind, leading = _kind(mechanism.pointwise, mechanism.normalizer), mechanism.leading
    queries, keys, (width, value_width) = query.shape[-2], key.shape[-2], (query.shape[-1], value.shape[-1])
    output, totals = query.new_empty(*leading, queries, value_width), query.new_empty(*leading, queries, 1)
    tensors = query, norms.query, key, norms.key, value, output, totals
    arrays = [x.detach().contiguous().view(-1).numpy() for x in tensors]
    sizes = np.array((queries, keys, width, value_width, _GROUP, _TILE), np.uint64)
    q, k, f, v = (-size // ROUND * -ROUND for size in (min(queries, _GROUP), min(keys, _TILE), width, value_width))
    numbers = q * f, k * f, f * k, k * v, 8 * k, 8 * v, q * v, k, q
    scratch = (*(((max(size, thread_pool.APART),), np.float32) for size in numbers), ((q // 8, 2), np.uint64))
    groups = prod(leading) * -(-queries // _GROUP)
    time = _MICROSECONDS * prod(leading) * queries * keys * (width + value_width)
    arguments = sizes, kind, divided, mechanism.factor, *arrays
    from qkv.algorithms.rowwise.distance_tiles_kernel import sums

    thread_pool.run_in_chunks(sums, np.float32, groups, time, arguments, scratch)
    return output, totals


def _gradients_with_graph(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    """Return differentiable gradients. Queries and keys get zeros, so zeros can stand for the values."""
    query, key = ctx.saved_tensors[:2]
    value = g.new_zeros(*ctx.mechanism.leading, key.shape[-2], g.shape[-1])
    visible, needs_grad = visibility_of(query, key), ctx.needs_input_grad[2:]
    gradients = differentiable_gradients(ctx.mechanism, visible, Terms(query, key, value), needs_grad, (g, None))
    return None, None, *gradients


class _Tiles(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mechanism: Mechanism, norms: Norms, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output, totals = _sums(mechanism, query, key, value, norms, divided=True)
        ctx.mechanism = mechanism
        ctx.save_for_backward(query, key, *norms, totals)
        return output

    @staticmethod
    @differentiable_by(_gradients_with_graph)
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        query, key, query_norms, key_norms, totals = ctx.saved_tensors
        needs_grad, d_value = ctx.needs_input_grad[2:], None
        zeros = (torch.zeros_like(x) if needed else None for x, needed in zip((query, key), needs_grad, strict=False))
        if needs_grad[2]:
            with without_autocast(g):
                scaled_g = g * torch.where(totals == 0, 0, 1 / totals)
                norms = Norms(key_norms, query_norms)
                d_value = _sums(ctx.mechanism, key, query, scaled_g, norms, divided=False)[0]
        return (None, None, *zeros, d_value)


DISTANCE_TILES = Algorithm(
    "rowwise.distance_tiles",
    "rowwise",
    "compiled tiles of distances that stay in the caches",
    refuses,
    work,
    run,
    distances.inspect,
    _declines,
    distances.describe,
    kernels=available.why_no_register_kernels,
)
