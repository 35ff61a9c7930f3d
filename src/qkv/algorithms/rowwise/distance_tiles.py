"""Kernel regression over squared distances between near points, in compiled tiles that stay in the L1 and L2 caches.

Backend `rowwise` uses this module if its guard accepts products in the operands' own type and the kernel values of each
row are divided by their sum: no matrix is written to memory (`qkv.algorithms.rowwise.distance_tiles_kernel`). A softmax
over −‖q−k‖²/2h² is a Gaussian divided by its sum, if the nearest key of each row is not far away.

Boxcar weights have zero gradient, and the gradient of the values is the transposed sum. The weights are stored as bits
if these take no more memory than queries, keys and values together: memory stays linear in both lengths. Otherwise the
forward kernel runs with keys in place of queries, and with the gradients of the output, divided by their row sums, in
place of values; products are bitwise equal in both directions, so the same pairs are within the support. Gradients of
other kernels need the derivative of exactly those weights that the forward pass used: other modules compute them.
"""

from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkv.algorithms.rowwise import distances
from qkv.algorithms.rowwise.distances import Distances
from qkv.algorithms.rowwise.squared_norms import Norms
from qkv.compiled.available import has_register_kernels
from qkv.engine.algorithm import Algorithm, Result, Work
from qkv.engine.autograd import once_differentiable
from qkv.engine.mechanism import Inputs, Mechanism
from qkv.engine.problem import Call, Problem
from qkv.engine.work import memory_traffic, pairs_of, product_operations
from qkv.scores.pointwise import BoxcarShape, EpanechnikovShape, GaussianShape, NegativeHalf, Pointwise
from qkv.scores.widened import as_it_is

DEPTH = 12.0
"""Largest exponent of a Gaussian if sums are divided at the end: products with values stay normal floats."""
_FLATTEST = 1e-30
"""The least 1/h²: float32 ends at 1e-38, and there 0 times infinity is NaN."""
_LEAST, _MOST = 1e-20, 1e30
"""The largest magnitude of all values must be between these, or 0: sums over a hundred million keys are below 3e38."""

_GROUP, _TILE = 128, 512
"""Rows and keys per tile: with 64 numbers each, the buffers fill half of an L2 cache of one MiB."""
_EACH = 1.5e-5
"""Microseconds of one thread per pair and element of its query or value."""


def refuses(problem: Problem) -> str | None:
    """Return why these tiles cannot compute a problem, None if they can: no mask, bias, dropout or row state."""
    reasons = (
        (_kind(problem.pointwise, problem.normalizer) is None, f"{problem.pointwise} under {problem.normalizer}"),
        (problem.mask != "all", "rows see different keys"),
        (problem.bias != "none" or problem.sink, "a bias or a sink is added"),
        (problem.state or problem.dropout, "the row state or dropout is asked for"),
        (problem.dtype != torch.float32, f"the dtype is {problem.dtype}"),
        (problem.gradient and not isinstance(problem.pointwise, BoxcarShape), "only boxcars have a backward pass here"),
        (not has_register_kernels(), "Numba does not compile here"),
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
    return None if summable(facts.mechanism, facts.far, inputs.value) else "sums of the values may leave float32"


def run(problem: Problem, call: Call, facts: Distances) -> Result:
    """Attend tile by tile."""
    with as_it_is(facts.inputs.query):
        output = attend(facts.mechanism, facts.centered, facts.norms, problem.gradient)
    return Result(output.to(call.query.dtype), None)


def summable(recipe: Mechanism, far: tuple[float, float], value: Tensor) -> bool:
    """Return whether sums that are divided at the end stay within float32, for these weights and values.

    Args:
        recipe: mechanism of a problem that these tiles serve.
        far: max‖q‖² and max‖k‖².
        value: (..., K, V); False if one is NaN.

    Example:
        >>> recipe, ones = Mechanism("distance", GaussianShape(), "sum", 0.1, 0.0, False, ()), torch.ones(3, 1)
        >>> summable(recipe, (8.0, 8.0), ones), summable(recipe, (8.0, 8e4), ones)
        (True, False)
        >>> summable(recipe, (8.0, 8.0), 1e37 * ones)
        False
    """
    least, largest = (float(x) for x in value.detach().aminmax())
    magnitude = max(-least, largest)
    gaussian = isinstance(recipe.pointwise, (NegativeHalf, GaussianShape))
    near_enough = not gaussian or (far[0] ** 0.5 + far[1] ** 0.5) ** 2 * recipe.factor / 2 <= DEPTH
    return near_enough and recipe.factor >= _FLATTEST and (magnitude == 0 or _LEAST <= magnitude <= _MOST)


def attend(recipe: Mechanism, inputs: Inputs, norms: Norms, gradient: bool) -> Tensor:
    """Compute attention tile by tile.

    Args:
        recipe, inputs: a problem that these tiles serve.
        norms: squared norms of query and key, without gradients.
        gradient: whether a backward pass may follow.

    Returns:
        The output (..., Q, V), differentiable once.
    """
    query, key, value = inputs[:3]
    if not gradient:
        return _sums(recipe, query, key, value, norms, divided=True).output
    output: Tensor = _Tiles.apply(recipe, norms, query, key, value)  # type: ignore[no-untyped-call]
    return output


def _kind(pointwise: Pointwise, normalizer: str) -> int | None:
    """Return the number of the compiled kernel, None if there is none."""
    if isinstance(pointwise, NegativeHalf):
        return 0 if normalizer in ("softmax", "gaussian") else None
    if normalizer != "sum":
        return None
    if isinstance(pointwise, EpanechnikovShape):
        return 2 if pointwise.power == 2 else None
    return {GaussianShape: 0, BoxcarShape: 1}.get(type(pointwise))


class _Sums(NamedTuple):
    """The result of the compiled tiles.

    Attributes:
        output: Σ f(‖q−k‖²/h²) v, divided by Σ f if `divided`, (..., Q, V).
        totals: Σ f (..., Q, 1).
        seen: which f are not 0, as words of 16 bits, flat; None if not kept.
    """

    output: Tensor
    totals: Tensor
    seen: Tensor | None


def _sums(
    recipe: Mechanism,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    norms: Norms,
    divided: bool,
    keep: bool = False,
) -> _Sums:
    import numpy as np

    from qkv.algorithms.rowwise.distance_tiles_kernel import sums
    from qkv.compiled import thread_pool

    kind = _kind(recipe.pointwise, recipe.normalizer)
    queries, keys, (width, wide) = query.shape[-2], key.shape[-2], (query.shape[-1], value.shape[-1])
    output = query.new_empty(*recipe.leading, queries, wide)
    totals = query.new_empty(*recipe.leading, queries, 1)
    seen = torch.empty(keep * prod(recipe.leading) * queries * _words(keys), dtype=torch.uint16, device="cpu")
    flat = [_flat(x) for x in (query, norms.query, key, norms.key, value, output, totals, seen)]
    sizes = np.array((queries, keys, width, wide, _GROUP, _TILE), np.uint64)
    rows, lanes, deep, broad = (_whole(x) for x in (min(queries, _GROUP), min(keys, _TILE), width, wide))
    tables = rows * deep, lanes * deep, deep * lanes, lanes * broad, 8 * lanes, 8 * broad, rows * broad, lanes, rows
    scratch = *(((max(size, thread_pool.APART),), np.float32) for size in tables), ((rows // 8, 2), np.uint64)
    groups = prod(recipe.leading) * -(-queries // _GROUP)
    time = _EACH * prod(recipe.leading) * queries * keys * (width + wide)
    thread_pool.run_in_chunks(sums, np.float32, groups, time, (sizes, kind, divided, recipe.factor, *flat), scratch)
    return _Sums(output, totals, seen if keep else None)


def _turned(recipe: Mechanism, seen: Tensor, value: Tensor, keys: int) -> Tensor:
    """Return, for each key, the sum of `value` over the rows in which it has weight 1, (..., K, V)."""
    import numpy as np

    from qkv.algorithms.rowwise.distance_tiles_kernel import turned
    from qkv.compiled import thread_pool

    queries, wide = value.shape[-2:]
    output = value.new_empty(*recipe.leading, keys, wide)
    lanes, rows, broad = _whole(min(keys, _GROUP)), min(queries, _TILE), _whole(wide)
    scratch = tuple(((size,), np.float32) for size in (rows * lanes, rows * broad, 8 * broad, lanes * broad))
    given = np.array((queries, keys, wide, _GROUP, _TILE), np.uint64), *(_flat(x) for x in (seen, value, output))
    time = _EACH * prod(recipe.leading) * queries * keys * wide
    thread_pool.run_in_chunks(turned, np.float32, prod(recipe.leading) * -(-keys // _GROUP), time, given, scratch)
    return output


def _words(keys: int) -> int:
    return _whole(keys) // 16


def _flat(x: Tensor) -> Any:
    return x.detach().contiguous().view(-1).numpy()


def _whole(size: int) -> int:
    from qkv.compiled.registers import ROUND

    return -size // ROUND * -ROUND


class _Tiles(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, recipe: Mechanism, norms: Norms, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        room = 2 * prod(query.shape[:-1]) * _words(key.shape[-2]) <= sum(x.nbytes for x in (query, key, value))
        keep = room and ctx.needs_input_grad[4]
        output, totals, seen = _sums(recipe, query, key, value, norms, divided=True, keep=keep)
        ctx.recipe = recipe
        ctx.save_for_backward(query, key, norms.query, norms.key, totals, seen)
        return output

    @staticmethod
    @once_differentiable("rowwise")
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        with as_it_is(g):
            return (None, None, *_of_boxes(ctx.recipe, ctx.needs_input_grad[2:], g, *ctx.saved_tensors))


def _of_boxes(
    recipe: Mechanism,
    wanted: tuple[bool, ...],
    g: Tensor,
    query: Tensor,
    key: Tensor,
    of_query: Tensor,
    of_key: Tensor,
    totals: Tensor,
    seen: Tensor | None,
) -> tuple[Tensor | None, ...]:
    still = (torch.zeros_like(x) if want else None for x, want in zip((query, key), wanted[:2], strict=True))
    if not wanted[2]:
        return (*still, None)
    shares = g * torch.where(totals == 0, 0, 1 / totals)
    if seen is not None:
        return (*still, _turned(recipe, seen, shares, key.shape[-2]))
    return (*still, _sums(recipe, key, query, shares, Norms(of_key, of_query), divided=False).output)


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
)
