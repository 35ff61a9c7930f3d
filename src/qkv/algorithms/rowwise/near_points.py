"""Kernels of squared distances between near points, as one matrix of a few MiB that is kept for the backward pass.

Where all pairs are one tile of `qkv.algorithms.rowwise.row_tiles` nothing is won by making the tile again: the products
and the pass over the rows are the same, to the bit. A boxcar has no slope and needs none kept
(`qkv.algorithms.rowwise.distance_tiles`). With G the gradient of the distances, those of the operands are 2(q_i Σ_j
G_ij − Σ_j G_ij k_j) and 2(k_j Σ_i G_ij − Σ_i G_ij q_i); the products with the wider operands hold the sums.
"""

from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from qkv.algorithms.rowwise import row_tiles
from qkv.engine.autograd import second_derivative
from qkv.engine.mechanism import Inputs, Mechanism
from qkv.engine.problem import Problem
from qkv.linalg.buffers import Workspace, borrow_workspace
from qkv.linalg.matmul import batched
from qkv.masks.lower import Visibility
from qkv.scores.pointwise import BoxcarShape, rooted
from qkv.scores.widened import as_it_is

if TYPE_CHECKING:
    from qkv.algorithms.rowwise.row_passes import RowMechanism, Tile


def fits(problem: Problem) -> bool:
    """Whether this module may serve a problem, which its numbers decide; only for its cost."""
    return (
        problem.core == "distance"
        and problem.gradient
        and not isinstance(problem.pointwise, BoxcarShape)
        and not rooted(problem.pointwise)
        and problem.mask == "all"
        and problem.normalizer == "sum"
        and problem.bias == "none"
        and not (problem.state or problem.dropout)
        and problem.dtype == torch.float32
        and problem.rows * problem.queries * problem.keys <= row_tiles.SIZE.pairs
    )


def serves(recipe: Mechanism, inputs: Inputs, visibility: Visibility) -> bool:
    """Whether a problem of distances is one tile of numbers alone: no mask, no bias, nothing per head, no dropout."""
    leading, queries, keys = recipe.leading, inputs.query.shape[-2], inputs.key.shape[-2]
    return (
        visibility.kind == "all"
        and not isinstance(recipe.pointwise, BoxcarShape)
        and recipe.normalizer in ("sum", "gaussian")
        and not recipe.state
        and inputs.scale is None
        and inputs.bias is None
        and inputs.seed is None
        and inputs.query.dtype == torch.float32
        and inputs.key.shape[:-2] == inputs.value.shape[:-2] == leading
        and prod(leading) * queries * keys <= row_tiles.SIZE.pairs
    )


class Norms(NamedTuple):
    """What a pass over queries and keys finds.

    Attributes:
        query, key: the squared norms, (..., Q, 1) and (..., K, 1).
        wide: the operands of `wider`, where they were written in the same pass.
    """

    query: Tensor
    key: Tensor
    wide: tuple[Tensor, Tensor] | None = None


def norms(query: Tensor, key: Tensor, widened: bool) -> Norms:
    """The squared norms of both sides; in one pass with the operands of `wider` where these are wanted too."""
    if not (query.is_contiguous() and key.is_contiguous()):
        return Norms(query.square().sum(-1, keepdim=True), key.square().sum(-1, keepdim=True))
    if not widened:
        return Norms(_squared(query), _squared(key))
    (wide_query, of_query), (wide_key, of_key) = _widened(query, -2.0, 0), _widened(key, 1.0, 1)
    return Norms(of_query, of_key, (wide_query, wide_key))


def _squared(x: Tensor) -> Tensor:
    from qkv.algorithms.rowwise.squared_norms_kernel import square
    from qkv.compiled import thread_pool

    rows, found = _rows(x).numpy(), x.new_empty(*x.shape[:-1], 1)
    thread_pool.run_in_chunks(square, rows.dtype, len(rows), rows.size * 2e-4, (rows, found.view(-1).numpy()))
    return found


def _widened(x: Tensor, factor: float, first: int) -> tuple[Tensor, Tensor]:
    from qkv.algorithms.rowwise.squared_norms_kernel import widen
    from qkv.compiled import thread_pool

    *leading, width = x.shape
    rows = _rows(x).numpy()
    wide, found = x.new_empty(*leading, width + 2), x.new_empty(*leading, 1)
    given = rows, factor, first, wide.view(-1, width + 2).numpy(), found.view(-1).numpy()
    thread_pool.run_in_chunks(widen, rows.dtype, len(rows), rows.size * 5e-4, given)
    return wide, found


def _rows(x: Tensor) -> Tensor:
    return x.detach().view(-1, x.shape[-1])


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


def wider(query: Tensor, key: Tensor, of_query: Tensor, of_key: Tensor) -> tuple[Tensor, Tensor]:
    """Operands whose products are squared distances: (−2q, ‖q‖², 1) and (k, 1, ‖k‖²).

    Example:
        >>> query, key = wider(torch.ones(1, 1), 3 * torch.ones(1, 1), torch.ones(1, 1), 9 * torch.ones(1, 1))
        >>> query @ key.mT
        tensor([[4.]])
    """
    return (
        torch.cat([query * -2, of_query, torch.ones_like(of_query)], -1),
        torch.cat([key, torch.ones_like(of_key), of_key], -1),
    )


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
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        found = _NearBackward.apply(ctx.recipe, ctx.state, ctx.needs_input_grad[2:], g, *ctx.saved_tensors)  # type: ignore[no-untyped-call]
        return (None, None, *found)


def _forward(recipe: Mechanism, wide: tuple[Tensor, Tensor], value: Tensor) -> tuple[Tensor, Tensor, Tensor, Any]:
    """Output, products, weights, and what each row sums to."""
    from qkv.algorithms.rowwise import row_passes

    query, key = wide
    mechanism, tile = _known(recipe, query.shape[-2], key.shape[-2])
    products = batched(query, key.mT)
    weights = torch.empty_like(products)
    state = row_passes.weigh(mechanism, tile, _flat(products), _flat(weights))
    return batched(weights, value), products, weights, state


class _NearBackward(torch.autograd.Function):
    """The gradients, as a function whose own derivative says where second derivatives are to be had."""

    @staticmethod
    def forward(
        ctx: Any, recipe: Mechanism, state: Any, wanted: tuple[bool, ...], g: Tensor, *known: Tensor
    ) -> tuple[Tensor | None, ...]:
        query, key, value, weights = known[:4]
        with as_it_is(query):
            d_value = batched(weights.mT, g) if wanted[2] else None
            if not (wanted[0] or wanted[1]):
                return None, None, d_value
            with borrow_workspace() as rooms:
                slopes = _slopes(recipe, state, batched(g, value.mT), weights, known[4], rooms)
                d_query = _of_query(query, batched(slopes, known[6])) if wanted[0] else None
                d_key = _of_key(key, batched(slopes.mT, known[5])) if wanted[1] else None
        return d_query, d_key, d_value

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise second_derivative("rowwise")


def _slopes(
    recipe: Mechanism, state: Any, grads: Tensor, weights: Tensor, products: Tensor, rooms: Workspace
) -> Tensor:
    """The gradients of the distances; what is kept stays as it is, for the graph may be walked again."""
    import numpy as np

    from qkv.algorithms.rowwise import row_passes

    shape, dtype = tuple(products.shape), products.dtype
    slopes, applied = (
        rooms.take(name, shape, dtype).copy_(x) for name, x in (("slopes", products), ("weights", weights))
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
