"""Kernel regression over squared distances between near points, in compiled tiles that stay in the L1 and L2 caches.

Backend `rowwise` uses this module if products in the operands' own dtype are exact enough and the kernel values of each
row are divided by their sum: no matrix is written to memory (`qkv.algorithms.rowwise.distance_tiles_kernel`). A softmax
over −‖q−k‖²/2h² is a Gaussian divided by its sum, if the nearest key of each row is not far away.

Boxcar weights have zero gradient, and the gradient of the values is the transposed sum. The weights are stored as bits
if these take no more memory than queries, keys and values together: memory stays linear in both lengths. Otherwise the
forward kernel runs with keys in place of queries, and with the gradients of the output, divided by their row sums, in
place of values; products are bitwise equal in both directions, so the same pairs are within the support. Gradients of
other kernels need the derivative of exactly the weights of the forward pass, which other modules compute.
"""

from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkv.algorithms.rowwise import distances
from qkv.algorithms.rowwise.distances import Distances
from qkv.algorithms.rowwise.squared_norms import Norms
from qkv.compiled import available
from qkv.engine.algorithm import Algorithm, Result, Work
from qkv.engine.autograd import differentiable_by
from qkv.engine.derivatives import Terms, differentiable_gradients, visibility_of
from qkv.engine.mechanism import Inputs, Mechanism
from qkv.engine.problem import Call, Problem
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
    reasons = (
        (_kind(problem.pointwise, problem.normalizer) is None, f"{problem.pointwise} under {problem.normalizer}"),
        (problem.mask != "all", "rows see different keys"),
        (problem.bias != "none" or problem.sink, "a bias or a sink is added"),
        (problem.state or problem.dropout, "the row state or dropout is requested"),
        (problem.dtype != torch.float32, f"the dtype is {problem.dtype}"),
        (problem.gradient and not isinstance(problem.pointwise, BoxcarShape), "only boxcars have a backward pass here"),
    )
    return distances.refuses(problem) or next((reason for holds, reason in reasons if holds), None)


def work(problem: Problem) -> Work:
    """Count the products, whose results never leave the caches."""
    counts = {"operations": product_operations(problem), "pairs": pairs_of(problem), **memory_traffic(problem)}
    return Work(product_operations(problem) * (2 if problem.gradient else 1), 4 << 20, counts)


def _declines(problem: Problem, facts: Distances) -> str | None:
    inputs = facts.centered
    if facts.precision != "single":
        return facts.why_not_single
    shared = not inputs.key.shape[:-2] == inputs.value.shape[:-2] == problem.leading
    if shared or inputs.scale is not None or inputs.parameter is not None:
        return "the bandwidth differs between heads, or keys are shared between them"
    return None if summable(facts.mechanism, facts.max_norms, inputs.value) else "sums of the values may leave float32"


def run(problem: Problem, call: Call, facts: Distances) -> Result:
    """Compute attention tile by tile."""
    output = attend(facts.mechanism, facts.centered, facts.norms, problem.gradient)
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


def attend(mechanism: Mechanism, inputs: Inputs, norms: Norms, gradient: bool) -> Tensor:
    """Compute attention tile by tile.

    Args:
        mechanism, inputs: a problem that these tiles do not refuse.
        norms: squared norms of query and key, without gradients.
        gradient: whether a backward pass may follow.

    Returns:
        The output (..., Q, V), differentiable once.
    """
    query, key, value = inputs[:3]
    if not gradient:
        return _sums(mechanism, query, key, value, norms, divided=True).output
    output: Tensor = _Tiles.apply(mechanism, norms, query, key, value)  # type: ignore[no-untyped-call]
    return output


def _kind(pointwise: Pointwise, normalizer: str) -> int | None:
    """Return the number of the compiled kernel, None if there is none."""
    if isinstance(pointwise, NegativeHalf):
        return 0 if normalizer == "softmax" else None
    if normalizer != "sum":
        return None
    if isinstance(pointwise, EpanechnikovShape):
        return 2 if pointwise.power == 2 else None
    return 1 if isinstance(pointwise, BoxcarShape) else None


class _Sums(NamedTuple):
    """The result of the compiled tiles.

    Attributes:
        output: Σ f(‖q−k‖²/h²) v, divided by Σ f if `divided`, (..., Q, V).
        totals: Σ f (..., Q, 1).
        nonzero: which f are not 0, as words of 16 bits, flat; None if not stored.
    """

    output: Tensor
    totals: Tensor
    nonzero: Tensor | None


def _sums(
    mechanism: Mechanism,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    norms: Norms,
    divided: bool,
    store: bool = False,
) -> _Sums:
    import numpy as np

    from qkv.algorithms.rowwise.distance_tiles_kernel import sums
    from qkv.compiled import thread_pool

    kind = _kind(mechanism.pointwise, mechanism.normalizer)
    queries, keys, (width, value_width) = query.shape[-2], key.shape[-2], (query.shape[-1], value.shape[-1])
    output = query.new_empty(*mechanism.leading, queries, value_width)
    totals = query.new_empty(*mechanism.leading, queries, 1)
    nonzero = torch.empty(store * prod(mechanism.leading) * queries * _words(keys), dtype=torch.uint16, device="cpu")
    arrays = [_flat_array(x) for x in (query, norms.query, key, norms.key, value, output, totals, nonzero)]
    sizes = np.array((queries, keys, width, value_width, _GROUP, _TILE), np.uint64)
    padded_rows, padded_keys = _padded(min(queries, _GROUP)), _padded(min(keys, _TILE))
    padded_width, padded_value_width = _padded(width), _padded(value_width)
    scratch_sizes = (
        padded_rows * padded_width,
        padded_keys * padded_width,
        padded_width * padded_keys,
        padded_keys * padded_value_width,
        8 * padded_keys,
        8 * padded_value_width,
        padded_rows * padded_value_width,
        padded_keys,
        padded_rows,
    )
    scratch = (
        *(((max(size, thread_pool.APART),), np.float32) for size in scratch_sizes),
        ((padded_rows // 8, 2), np.uint64),
    )
    groups = prod(mechanism.leading) * -(-queries // _GROUP)
    time = _MICROSECONDS * prod(mechanism.leading) * queries * keys * (width + value_width)
    thread_pool.run_in_chunks(
        sums, np.float32, groups, time, (sizes, kind, divided, mechanism.factor, *arrays), scratch
    )
    return _Sums(output, totals, nonzero if store else None)


def _transposed_sums(mechanism: Mechanism, nonzero: Tensor, value: Tensor, keys: int) -> Tensor:
    """Sum `value` over the rows in which a key has weight 1, for each key, (..., K, V)."""
    import numpy as np

    from qkv.algorithms.rowwise.distance_tiles_kernel import transposed_sums
    from qkv.compiled import thread_pool

    queries, value_width = value.shape[-2:]
    output = value.new_empty(*mechanism.leading, keys, value_width)
    padded_keys, rows, padded_value_width = _padded(min(keys, _GROUP)), min(queries, _TILE), _padded(value_width)
    scratch_sizes = (
        rows * padded_keys,
        rows * padded_value_width,
        8 * padded_value_width,
        padded_keys * padded_value_width,
    )
    scratch = tuple(((size,), np.float32) for size in scratch_sizes)
    sizes = np.array((queries, keys, value_width, _GROUP, _TILE), np.uint64)
    arguments = sizes, *(_flat_array(x) for x in (nonzero, value, output))
    time = _MICROSECONDS * prod(mechanism.leading) * queries * keys * value_width
    thread_pool.run_in_chunks(
        transposed_sums, np.float32, prod(mechanism.leading) * -(-keys // _GROUP), time, arguments, scratch
    )
    return output


def _words(keys: int) -> int:
    return _padded(keys) // 16


def _flat_array(x: Tensor) -> Any:
    return x.detach().contiguous().view(-1).numpy()


def _padded(size: int) -> int:
    from qkv.compiled.registers import ROUND

    return -size // ROUND * -ROUND


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
        bits_fit = 2 * prod(query.shape[:-1]) * _words(key.shape[-2]) <= sum(x.nbytes for x in (query, key, value))
        store = bits_fit and ctx.needs_input_grad[4]
        output, totals, nonzero = _sums(mechanism, query, key, value, norms, divided=True, store=store)
        ctx.mechanism = mechanism
        ctx.save_for_backward(query, key, norms.query, norms.key, totals, nonzero)
        return output

    @staticmethod
    @differentiable_by(_gradients_with_graph)
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        with without_autocast(g):
            return (None, None, *_boxcar_gradients(ctx.mechanism, ctx.needs_input_grad[2:], g, *ctx.saved_tensors))


def _boxcar_gradients(
    mechanism: Mechanism,
    needs_grad: tuple[bool, ...],
    g: Tensor,
    query: Tensor,
    key: Tensor,
    query_norms: Tensor,
    key_norms: Tensor,
    totals: Tensor,
    nonzero: Tensor | None,
) -> tuple[Tensor | None, ...]:
    zeros = (torch.zeros_like(x) if needed else None for x, needed in zip((query, key), needs_grad[:2], strict=True))
    if not needs_grad[2]:
        return (*zeros, None)
    scaled_g = g * torch.where(totals == 0, 0, 1 / totals)
    if nonzero is not None:
        return (*zeros, _transposed_sums(mechanism, nonzero, scaled_g, key.shape[-2]))
    return (*zeros, _sums(mechanism, key, query, scaled_g, Norms(key_norms, query_norms), divided=False).output)


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
