"""Kernels of squared distances between near points, as one matrix of a few MiB that is kept for the backward pass.

Where all pairs are one tile of `qkv.algorithms.rowwise.row_tiles` nothing is won by making the tile again: the products
and the pass over the rows are the same, to the bit. A boxcar has no slope and needs none kept
(`qkv.algorithms.rowwise.distance_tiles`). With G the gradient of the distances, those of the operands are 2(q_i Σ_j
G_ij − Σ_j G_ij k_j) and 2(k_j Σ_i G_ij − Σ_i G_ij q_i); the products with the wider operands hold the sums.
"""

from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from qkv.algorithms.rowwise import distances, row_tiles
from qkv.algorithms.rowwise.distances import Distances
from qkv.algorithms.rowwise.squared_norms import Norms, wider
from qkv.engine.algorithm import Algorithm, Result, Work
from qkv.engine.autograd import once_differentiable
from qkv.engine.mechanism import Inputs, Mechanism
from qkv.engine.problem import Call, Problem
from qkv.engine.work import memory_traffic, pairs_of, product_operations
from qkv.linalg.buffers import Workspace, borrow_workspace
from qkv.linalg.matmul import batched
from qkv.scores.pointwise import BoxcarShape, rooted
from qkv.scores.widened import as_it_is

if TYPE_CHECKING:
    from qkv.algorithms.rowwise.row_passes import RowMechanism, Tile


def refuses(problem: Problem) -> str | None:
    """Return why a problem is not one small matrix of kernel values with gradients; None if it is."""
    reasons = (
        (not problem.gradient, "nothing is needed for a backward pass"),
        (
            isinstance(problem.pointwise, BoxcarShape) or rooted(problem.pointwise),
            f"{problem.pointwise} scores have no slope to store, or need small distances exactly",
        ),
        (problem.mask != "all", "rows see different keys"),
        (problem.normalizer != "sum", f"the normalizer is {problem.normalizer}, not sum"),
        (problem.bias != "none" or problem.state or problem.dropout, "a bias, a row state or dropout is asked for"),
        (problem.dtype != torch.float32, f"the dtype is {problem.dtype}"),
        (pairs_of(problem) > row_tiles.SIZE.pairs, "more pairs than one tile holds"),
    )
    return distances.refuses(problem) or next((reason for holds, reason in reasons if holds), None)


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
    """Attend, and store the matrix of weights for the backward pass."""
    with as_it_is(facts.inputs.query):
        output = attend(facts.mechanism, facts.centered, facts.norms)
    return Result(output.to(call.query.dtype), None)


def attend(recipe: Mechanism, inputs: Inputs, norms: Norms) -> Tensor:
    """Attend.

    Args:
        recipe: of a problem that this module serves.
        inputs: query (..., Q, F), key (..., K, F) and value (..., K, V).
        norms: of query and key, without gradients.

    Returns:
        The output (..., Q, V), differentiable once.
    """
    query, key, value = inputs[:3]
    output: Tensor = _Near.apply(recipe, norms, query, key, value)  # type: ignore[no-untyped-call]
    return output


@lru_cache(maxsize=64)
def _known(recipe: Mechanism, queries: int, keys: int) -> "tuple[RowMechanism, Tile]":
    """What the pass over the rows is told, which holds no number of any tensor."""
    import numpy as np

    from qkv.algorithms.rowwise.row_passes import Tile

    items = prod(recipe.leading)
    scale, sink, number = row_tiles.numbers_of(recipe, queries)
    first, last = (np.full((items, queries), edge, np.int32) for edge in (0, keys))
    none = np.zeros((0, 0, 0))
    tile = Tile(scale, sink, first, last, none.astype(np.bool_), none.astype(np.float32), number, 0)
    return row_tiles.mechanism_of(recipe, None), tile


class _Near(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, recipe: Mechanism, norms: Norms, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        wide = wider(query, key, norms.query, norms.key) if norms.wide is None else norms.wide
        output, products, weights, state = _forward(recipe, wide, value)
        ctx.recipe, ctx.state = recipe, state
        ctx.save_for_backward(query, key, value, weights, products, *wide)
        return output

    @staticmethod
    @once_differentiable("rowwise")
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, weights, products, wide_query, wide_key = ctx.saved_tensors
        wanted = ctx.needs_input_grad[2:]
        d_query = d_key = None
        with as_it_is(query):
            d_value = batched(weights.mT, g) if wanted[2] else None
            if wanted[0] or wanted[1]:
                with borrow_workspace() as workspace:
                    slopes = _slopes(ctx.recipe, ctx.state, batched(g, value.mT), weights, products, workspace)
                    d_query = _of_query(query, batched(slopes, wide_key)) if wanted[0] else None
                    d_key = _of_key(key, batched(slopes.mT, wide_query)) if wanted[1] else None
        return None, None, d_query, d_key, d_value


def _forward(recipe: Mechanism, wide: tuple[Tensor, Tensor], value: Tensor) -> tuple[Tensor, Tensor, Tensor, Any]:
    """Output, products, weights, and what each row sums to."""
    from qkv.algorithms.rowwise import row_passes

    query, key = wide
    mechanism, tile = _known(recipe, query.shape[-2], key.shape[-2])
    products = batched(query, key.mT)
    weights = torch.empty_like(products)
    state = row_passes.weigh(mechanism, tile, _flat(products), _flat(weights))
    return batched(weights, value), products, weights, state


def _slopes(
    recipe: Mechanism, state: Any, grads: Tensor, weights: Tensor, products: Tensor, workspace: Workspace
) -> Tensor:
    """The gradients of the distances; what is kept stays as it is, for the graph may be walked again."""
    import numpy as np

    from qkv.algorithms.rowwise import row_passes

    shape, dtype = tuple(products.shape), products.dtype
    slopes, applied = (
        workspace.take(name, shape, dtype).copy_(x) for name, x in (("slopes", products), ("weights", weights))
    )
    mechanism, tile = _known(recipe, shape[-2], shape[-1])
    arrays = _flat(slopes), _flat(applied), state, _flat(grads), np.zeros((0, 0)), False
    row_passes.unweigh(mechanism, tile, *arrays)
    return slopes


def _of_query(query: Tensor, pulled: Tensor) -> Tensor:
    """2(q Σ G − G k), from G·(k, 1, ‖k‖²)."""
    width = query.shape[-1]
    return pulled[..., :width].mul(-2).addcmul_(query, pulled[..., width : width + 1], value=2)


def _of_key(key: Tensor, pulled: Tensor) -> Tensor:
    """2(k Σ G − Gᵀq), from Gᵀ·(−2q, ‖q‖², 1)."""
    width = key.shape[-1]
    return torch.addcmul(pulled[..., :width], key, pulled[..., width + 1 :], value=2)


def _flat(x: Tensor) -> Any:
    """(..., h, c) to an array (L, h, c)."""
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
)
