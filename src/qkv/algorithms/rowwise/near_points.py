"""Kernels of squared distances between near points, as one matrix of a few MiB that is stored for the backward pass.

If all pairs fit one tile of `qkv.algorithms.rowwise.row_tiles`, storing it saves computing it again; products and
weights are bitwise the same. A boxcar has zero gradient and needs no stored matrix
(`qkv.algorithms.rowwise.distance_tiles`). With G the gradient of the distances, those of the operands are 2(q_i Σ_j
G_ij − Σ_j G_ij k_j) and 2(k_j Σ_i G_ij − Σ_i G_ij q_i); products with the operands (−2q, ‖q‖², 1) and (k, 1, ‖k‖²)
contain both sums.
"""

from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from qkv.algorithms.rowwise import distances, row_tiles
from qkv.algorithms.rowwise.distances import Distances
from qkv.algorithms.rowwise.squared_norms import Norms, distance_operands
from qkv.compiled import available
from qkv.engine.algorithm import Algorithm, Result, Work
from qkv.engine.autograd import differentiable_by
from qkv.engine.derivatives import Terms, differentiable_gradients, visibility_of
from qkv.engine.mechanism import Inputs, Mechanism
from qkv.engine.problem import Call, Problem
from qkv.engine.work import memory_traffic, pairs_of, product_operations
from qkv.linalg.matmul import batched
from qkv.linalg.memory_pool import Workspace, borrow_workspace
from qkv.scores.base import without_autocast
from qkv.scores.pointwise import BoxcarShape, NegativeHalf, rooted

if TYPE_CHECKING:
    from qkv.algorithms.rowwise.row_passes import RowInputs, RowOperation


def refuses(problem: Problem) -> str | None:
    """Return why a problem is not one small matrix of kernel values with gradients; None if it is."""
    reasons = (
        (not problem.gradient, "nothing is needed for a backward pass"),
        (
            isinstance(problem.pointwise, BoxcarShape) or rooted(problem.pointwise),
            f"{problem.pointwise} scores have no slope to store, or need small distances exactly",
        ),
        (problem.mask != "all", "rows see different keys"),
        (not _divided_by_sum(problem), f"{problem.pointwise} scores under {problem.normalizer}"),
        (problem.bias != "none" or problem.state or problem.dropout, "a bias, a row state or dropout is requested"),
        (problem.dtype != torch.float32, f"the dtype is {problem.dtype}"),
        (pairs_of(problem) > row_tiles.SIZE.scores, "more pairs than one tile holds"),
    )
    return distances.refuses(problem) or next((reason for holds, reason in reasons if holds), None)


def _divided_by_sum(problem: Problem) -> bool:
    """Return whether kernel values are divided by their sum; those of a Gaussian are a softmax of distances."""
    gaussian = problem.normalizer == "softmax" and isinstance(problem.pointwise, NegativeHalf) and not problem.sink
    return gaussian or problem.normalizer == "sum"


def work(problem: Problem) -> Work:
    """Count two products forward and three backward, and two passes over the matrix."""
    counts = {"operations": product_operations(problem), "pairs": pairs_of(problem), **memory_traffic(problem)}
    return Work(int(product_operations(problem) * 2.5), 12 * pairs_of(problem), counts)


def _declines(problem: Problem, facts: Distances) -> str | None:
    if facts.precision != "single":
        return facts.why_not_single
    shared = not facts.inputs.key.shape[:-2] == facts.inputs.value.shape[:-2] == problem.leading
    if shared or isinstance(facts.scale, Tensor):
        return "the bandwidth differs between heads, or keys are shared between them"
    return None


def run(problem: Problem, call: Call, facts: Distances) -> Result:
    """Compute attention, and store the matrix of weights for the backward pass."""
    output = attend(facts.mechanism, facts.centered, facts.norms)
    return Result(output.to(call.query.dtype), None)


def attend(mechanism: Mechanism, inputs: Inputs, norms: Norms) -> Tensor:
    """Compute attention.

    Args:
        mechanism: of a problem that this module does not refuse.
        inputs: query (..., Q, F), key (..., K, F) and value (..., K, V).
        norms: squared norms of query and key, without gradients.

    Returns:
        The output (..., Q, V), differentiable once.
    """
    query, key, value = inputs[:3]
    output: Tensor = _NearPoints.apply(mechanism, norms, query, key, value)  # type: ignore[no-untyped-call]
    return output


@lru_cache(maxsize=64)
def _row_arguments(mechanism: Mechanism, queries: int, keys: int) -> "tuple[RowOperation, RowInputs]":
    """Return the arguments of the pass over the rows that depend on sizes alone."""
    import numpy as np

    from qkv.algorithms.rowwise.row_passes import RowInputs

    items = prod(mechanism.leading)
    scale, sink, row_offset = row_tiles.constant_item_parameters(mechanism, queries)
    first, last = (np.full((items, queries), bound, np.int32) for bound in (0, keys))
    none = np.zeros((0, 0, 0))
    rows = RowInputs(scale, sink, first, last, none.astype(np.bool_), none.astype(np.float32), row_offset, 0)
    return row_tiles.row_operation(mechanism, None), rows


def _gradients_with_graph(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    """Return the gradients with a graph."""
    terms, needs_grad = Terms(*ctx.saved_tensors[:3]), ctx.needs_input_grad[2:]
    visible = visibility_of(terms.query, terms.key)
    return None, None, *differentiable_gradients(ctx.mechanism, visible, terms, needs_grad, (g, None))


class _NearPoints(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mechanism: Mechanism, norms: Norms, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        operands = norms.operands or distance_operands(query, key, norms.query, norms.key)
        output, products, weights, state = _forward(mechanism, operands, value)
        ctx.mechanism, ctx.state = mechanism, state
        ctx.save_for_backward(query, key, value, weights, products, *operands)
        return output

    @staticmethod
    @differentiable_by(_gradients_with_graph)
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, weights, products, left, right = ctx.saved_tensors
        needs_grad = ctx.needs_input_grad[2:]
        d_query = d_key = None
        with without_autocast(query):
            d_value = batched(weights.mT, g) if needs_grad[2] else None
            if needs_grad[0] or needs_grad[1]:
                with borrow_workspace() as workspace:
                    g_weights = batched(g, value.mT)
                    G = _product_gradients(ctx.mechanism, ctx.state, g_weights, weights, products, workspace)
                    d_query = _query_gradient(query, batched(G, right)) if needs_grad[0] else None
                    d_key = _key_gradient(key, batched(G.mT, left)) if needs_grad[1] else None
        return None, None, d_query, d_key, d_value


def _forward(
    mechanism: Mechanism, operands: tuple[Tensor, Tensor], value: Tensor
) -> tuple[Tensor, Tensor, Tensor, Any]:
    """Return output, products, weights, and the row states."""
    from qkv.algorithms.rowwise import row_passes

    query, key = operands
    operation, rows = _row_arguments(mechanism, query.shape[-2], key.shape[-2])
    products = batched(query, key.mT)
    weights = torch.empty_like(products)
    state = row_passes.rows_forward(operation, rows, _as_3d(products), _as_3d(weights))
    return batched(weights, value), products, weights, state


def _product_gradients(
    mechanism: Mechanism, state: Any, grads: Tensor, weights: Tensor, products: Tensor, workspace: Workspace
) -> Tensor:
    """Return the gradients of the distances, in copies, because a retained graph may be differentiated again."""
    import numpy as np

    from qkv.algorithms.rowwise import row_passes

    shape, dtype = tuple(products.shape), products.dtype
    products, weights = (
        workspace.take(name, shape, dtype).copy_(x)
        for name, x in (("product gradients", products), ("weights", weights))
    )
    operation, rows = _row_arguments(mechanism, shape[-2], shape[-1])
    arrays = _as_3d(products), _as_3d(weights), state, _as_3d(grads), np.zeros((0, 0)), False
    row_passes.rows_backward(operation, rows, *arrays)
    return products


def _query_gradient(query: Tensor, sums: Tensor) -> Tensor:
    """Return 2(q Σ G − G k), from G·(k, 1, ‖k‖²)."""
    width = query.shape[-1]
    return sums[..., :width].mul(-2).addcmul_(query, sums[..., width : width + 1], value=2)


def _key_gradient(key: Tensor, sums: Tensor) -> Tensor:
    """Return 2(k Σ G − Gᵀq), from Gᵀ·(−2q, ‖q‖², 1)."""
    width = key.shape[-1]
    return torch.addcmul(sums[..., :width], key, sums[..., width + 1 :], value=2)


def _as_3d(x: Tensor) -> Any:
    """Reshape (..., h, c) to an array (L, h, c)."""
    return x.detach().view(-1, *x.shape[-2:]).numpy()


NEAR_POINTS = Algorithm(
    "rowwise.near_points",
    "rowwise",
    "one small matrix of kernel values, stored for the backward pass",
    refuses,
    work,
    run,
    distances.inspect,
    _declines,
    distances.describe,
    kernels=available.why_unavailable,
)
