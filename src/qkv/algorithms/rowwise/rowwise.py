"""Backend `rowwise`: matrix products by PyTorch, and between them one compiled pass over each row, on the CPU.

**Distances.** ‖q−k‖² = ‖q‖² + ‖k‖² − 2q·k is a product of q' = (−2q, ‖q‖², 1) and k' = (k, 1, ‖k‖²): a distance is a
dot product of slightly wider operands, and PyTorch differentiates the way from q to q'. It cancels where both norms are
large and their difference is small. The error is a few roundoffs of (‖q‖ + ‖k‖)². A pair one of whose norms is twice
the other or more has ‖q−k‖ ≥ (‖q‖ + ‖k‖)/3: its error is at most nine times the roundoff of its squared distance, which
the equation makes too. Only pairs whose norms are alike are in danger; with m ≤ M the largest norms of the two sides,
they have ‖q‖·‖k‖ ≤ m·min(M, 2m). So one vector far from all others, which is like none of the other side, endangers
nobody, as long as far distances do not count themselves: a kernel is 0 there, and so is a softmax in rows of near keys
(`augmented_dot.shallow`).

- m·M/h² ≤ `NEAR`, or m·min(M, 2m)/h² ≤ `NEAR` where far distances do not count: products of the operands' own type.
  Their error, a few roundoffs of `NEAR`, is that of the equation itself at distances of that size. Without gradients,
  and for boxcars, tiles that stay in the caches take them (`qkv.algorithms.rowwise.distance_tiles`); softmax else, and
  Gaussians under their sum, go to PyTorch's fused kernel (`qkv.algorithms.rowwise.augmented_dot`).
- the smaller of max‖q−c‖²/h² and max‖k−c‖²/h² ≤ `cores.REACH` about the median of the keys: float64 products; the row's
  maximum is subtracted before anything is rounded.
  A root, 1 − (‖q−k‖/h)^p of p < 2, magnifies what is lost in small distances, be it one roundoff: its products are
  float64 ones at any distance from 0, and pairs so near each other that digits were lost are subtracted
  (`cores.resolve`). A power p > 2 is steeper by p/2, and its limits are smaller by that.
- else, and for float64, distances are subtracted, as `blocked` does.

The guard reads the operands, so it is asked inside `run`; `tells` gives `explain` what it says.

**A plain softmax over dot products** has PyTorch's own softmax between its products
(`qkv.algorithms.sdpa.matmul_tiles`) where products of such tiles are faster than those of PyTorch's fused kernel.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from qkv.algorithms.rowwise import augmented_dot, boxcar_bits, distance_tiles, near_points
from qkv.algorithms.rowwise.row_tiles import RowTiles
from qkv.algorithms.sdpa import matmul_tiles
from qkv.algorithms.tiled import blocked
from qkv.algorithms.tiled.cores import center
from qkv.algorithms.tiled.stripes import SAVED
from qkv.compiled import available
from qkv.engine import mechanism
from qkv.engine.autograd import second_derivative
from qkv.engine.backend import Backend, DirectCall, Result
from qkv.engine.mechanism import DIFFERENTIABLE, Inputs, Mechanism
from qkv.engine.problem import Call, Cost, Problem
from qkv.linalg.buffers import borrow_workspace
from qkv.linalg.matmul import mkl_favored
from qkv.masks.lower import Visibility
from qkv.normalizers import steep
from qkv.normalizers.sparse import Entmax
from qkv.scores.base import Score
from qkv.scores.pointwise import BoxcarShape, EpanechnikovShape, GaussianShape, Linear, NegativeHalf, rooted, steepness
from qkv.scores.widened import as_it_is

NEAR, NEAR_EDGES = 4.0, 3.0
"""The largest ‖q‖·‖k‖/h² of norms alike for which products in the operands' own type are as exact as the equation; of a
kernel that falls to 0 at an edge, where a row of one small weight is divided by it."""

SAMPLE = 16
"""So many keys tell whether most lie on one side of 0. There Σ G(q − k), taken as qΣG − ΣGk, cancels in gradients
however small the norms are against h; about the middle of the keys it does not."""

_LARGEST = 1e37
"""Squared norms above this are left to float64: float32 ends at 3.4e38."""

_ENDLESS = torch.finfo(torch.float32).max
"""Stands for a sink of +inf, beside which nothing counts, and for the row state that it gives."""

_RULES = ("softmax", "sum", "mean", "identity", "sparsemax", "entmax")


def refuses(problem: Problem) -> str | None:
    """Dot products and distances under normalizers that have a compiled row, on the CPU, where Numba runs."""
    shapes = (Linear,) if problem.core == "dot" else (NegativeHalf, GaussianShape, BoxcarShape, EpanechnikovShape)
    projected = problem.normalizer in ("sparsemax", "entmax")
    reasons = (
        (problem.core not in ("dot", "distance"), f"the core is {problem.core}, not dot or distance"),
        (not isinstance(problem.pointwise, shapes), f"scores pass through {problem.pointwise}"),
        (problem.normalizer not in _RULES, f"the normalizer is {problem.normalizer}"),
        (problem.dropout and projected, f"weights of {problem.normalizer} are dropped by no kernel"),
        (problem.core == "distance" and problem.dtype == torch.float64, "distances in float64 are subtracted"),
        (problem.device != "cpu", "the kernels run on the CPU"),
        (problem.transformed or torch.compiler.is_compiling(), "the kernels are for eager calls"),
        (0 in (problem.rows, problem.queries, problem.keys, problem.width, problem.value_width), "an axis is empty"),
    )
    return next((reason for holds, reason in reasons if holds), None) or available.why_unavailable()


def cost(problem: Problem) -> Cost:
    """Matrix products as `blocked`, and one pass over the rows. Fitted to processor time of one thread."""
    pairs = problem.rows * problem.queries * problem.keys
    operations = 2 * pairs * (problem.width + problem.value_width) * (3.5 if problem.gradient else 1)
    if matmul_tiles.serves(problem):
        return Cost(int(operations), 64 << 20, matmul_tiles.time(problem))
    numbers = problem.rows * (problem.queries + problem.keys) * problem.width
    if distance_tiles.fits(problem):
        start, pace, linear = (165, 450_000, 1.1e-3) if problem.gradient else (60, 190_000, 1.1e-3)
        return Cost(int(operations), 4 << 20, start + operations / pace + linear * numbers)
    start, each, linear = (560, 7.5, 4e-3) if problem.gradient else (200, 3.5, 0.0)
    if _beside_fused_kernel(problem):
        # Fitted against that kernel, which pads queries and keys to the width of values, at 1,024 to 4,096 keys.
        # Where products are MKL's, the kernel gains more by them than tiles of rows.
        small, large = (0.7, 2.5) if not mkl_favored() else (1.9, 5.9)
        each = large if problem.gradient else small
    if problem.core == "distance":
        start, each = (280, 3 + problem.width * 0.05) if problem.gradient else (120, 0.65 + problem.width * 0.025)
        linear = 5e-3 if problem.gradient else 2e-3
        if near_points.fits(problem):
            # Fitted to two threads and 8 heads of 16 to 128 rows, where the full tensor of differences is nearest.
            start = 150 if isinstance(problem.pointwise, GaussianShape) else 200
        elif problem.normalizer != "softmax":
            start += 470 if problem.gradient else 170
    if problem.normalizer in ("sparsemax", "entmax"):
        start += 300 if problem.gradient else 0
        each += 2 if problem.gradient else 1
    if problem.dropout:
        each += 0.6 if problem.gradient else 0.3
    return Cost(int(operations), 64 << 20, start + operations / 150_000 + pairs * each / 1000 + linear * numbers)


def _beside_fused_kernel(problem: Problem) -> bool:
    """Whether PyTorch's kernel computes it too: a plain softmax of dot products."""
    plain = problem.core == "dot" and problem.normalizer == "softmax" and isinstance(problem.pointwise, Linear)
    whole = problem.mask == "all" and problem.bias == "none" and not (problem.dropout or problem.sink)
    return plain and whole and problem.dtype == torch.float32


def run(problem: Problem, call: Call) -> Result:
    """A function of our own over the tiles."""
    if matmul_tiles.serves(problem):
        return Result(_tiled(problem, call.query, call.key, call.value, call.score), None)
    if isinstance(call.normalizer, Entmax) and steep.steep(call.normalizer.alpha):
        # One number τ of each row, as the compiled rows have it, does not say what their weights are.
        return blocked.run(problem, call)
    recipe, inputs = mechanism.prepare_inputs(problem, call)
    if problem.core == "distance" and inputs.query.dtype == torch.float64:
        # The score widened its operands, which leave float32.
        return blocked.run(problem, call)
    return _by_rows(problem, call, recipe, inputs)


def _by_rows(problem: Problem, call: Call, recipe: Mechanism, inputs: Inputs) -> Result:
    wide = torch.float64 if problem.dtype == torch.float64 else torch.float32
    given = [None if x is None else x.to(wide) if x.ndim else x for x in inputs[:DIFFERENTIABLE]]
    inputs = Inputs(*given, inputs.seed)  # type: ignore[arg-type, call-arg]
    if problem.sink:
        assert inputs.parameter is not None
        sink = inputs.parameter
        inputs = inputs._replace(parameter=torch.where(sink > _ENDLESS, _ENDLESS, sink))
    with as_it_is(inputs.query):
        if problem.core == "distance":
            scale = recipe.factor if inputs.scale is None else inputs.scale
            query, key, norms = _sides(problem, inputs.query, inputs.key)
            with torch.no_grad():
                far = _far(norms)
                shallow = augmented_dot.shallow(far, norms[1], scale, problem.mask == "all")
                near_counts, steep = shallow or _vanishes(problem), steepness(problem.pointwise)
                way = _way(inputs.query, inputs.key, far, scale, near_counts, _nearness(problem), steep)
                products = augmented_dot.products(problem) if way == "single" and shallow else None
            if way == "single":
                # Products in float64 are of vectors as they came: a middle that far ones moved rounds near ones off.
                inputs = inputs._replace(query=query, key=key)
                if _by_tiles(problem, recipe, inputs, call.visibility, far):
                    output = distance_tiles.attend(recipe, inputs, norms, problem.gradient)
                    return Result(output.to(call.query.dtype), None)
            if products is not None:
                result = augmented_dot.run(products, call, inputs.query, inputs.key, inputs.value, scale)
                return result._replace(output=result.output.to(call.query.dtype))
            if way == "single" and problem.gradient and near_points.serves(recipe, inputs, call.visibility):
                return Result(near_points.attend(recipe, inputs, norms).to(call.query.dtype), None)
            operands = _operands(inputs, scale, way, steep)
            if operands is None:
                return blocked.run(problem, call)
            inputs = inputs._replace(query=operands[0], key=operands[1])
        keep = problem.gradient and inputs.value.requires_grad and boxcar_bits.serves(recipe, inputs)
        output, state = _Rowwise.apply(recipe, call.visibility, keep, *inputs)  # type: ignore[no-untyped-call]
        if problem.state and problem.sink:
            state = torch.where(state >= _ENDLESS, torch.inf, state)
    return Result(output.to(call.query.dtype), state if problem.state else None)


def direct(problem: Problem) -> DirectCall | None:
    """Tiles of a plain softmax and nothing else."""
    return partial(_tiled, problem) if matmul_tiles.serves(problem) else None


def _tiled(problem: Problem, query: Tensor, key: Tensor, value: Tensor, score: Score) -> Tensor:
    with as_it_is(query):
        query, key, scale = score.prepare(query, key).with_number()
        return matmul_tiles.attend(problem, query, key, value, scale)


def _by_tiles(
    problem: Problem, recipe: Mechanism, inputs: Inputs, visibility: Visibility, far: tuple[float, float]
) -> bool:
    """Whether tiles that stay in the caches serve near points."""
    served = distance_tiles.serves(recipe, inputs, visibility, problem.gradient)
    return served and distance_tiles.summable(recipe, far, inputs.value)


def _sides(problem: Problem, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, near_points.Norms]:
    """Queries and keys, about the middle of some where that counts, and their squared norms."""
    pulled = (query.requires_grad or key.requires_grad) and not isinstance(problem.pointwise, BoxcarShape)
    widened = near_points.fits(problem)
    if problem.gradient and pulled:
        return _nearer(query, key, widened)
    with torch.no_grad():
        return query, key, near_points.norms(query, key, widened)


def _nearer(query: Tensor, key: Tensor, widened: bool) -> tuple[Tensor, Tensor, near_points.Norms]:
    """Both sides about the middle of some keys where most lie on one side of 0 (`SAMPLE`), and their squared norms."""
    with torch.no_grad():
        norms = near_points.norms(query, key, widened)
        less, more = sorted(_far(norms))
        some = key[..., :: max(1, key.shape[-2] // SAMPLE), :]
        # A median takes longer; no far key moves it.
        middle = some.mean(-2, keepdim=True) if more <= 4 * less else some.median(-2, keepdim=True).values
        lengths = torch.linalg.vector_norm(some, dim=-1).median(-1).values
        # False where there is a NaN.
        aside = 2**0.5 * torch.linalg.vector_norm(middle, dim=(-2, -1)) > lengths
        if not bool(aside.any()):
            return query, key, norms
        middle = torch.where(aside[..., None, None], middle, 0)
    query, key = query - middle, key - middle
    return query, key, near_points.norms(query.detach(), key.detach(), widened)


def _vanishes(problem: Problem) -> bool:
    """Whether the score is 0 at far distances."""
    return not isinstance(problem.pointwise, NegativeHalf)


def _operands(inputs: Inputs, scale: float | Tensor, way: str, steep: float) -> tuple[Tensor, Tensor] | None:
    """The wider operands whose products are squared distances, or None where the guard lets none serve."""
    with torch.no_grad():
        middle = center(inputs.query, inputs.key, scale, steep) if way == "double" else None
    query, key = inputs.query, inputs.key
    if way == "double":
        assert middle is not None
        query, key = query.double() - middle, key.double() - middle
    if way == "direct":
        return None
    return near_points.wider(query, key, query.square().sum(-1, keepdim=True), key.square().sum(-1, keepdim=True))


def guard(query: Tensor, key: Tensor, scale: float | Tensor) -> str:
    """Say how squared distances may be computed.

    Args:
        query: (..., Q, F).
        key: (..., K, F).
        scale: 1/h², of a softmax over all keys.

    Returns:
        `single`, `double` or `direct`; see the module.

    Example:
        >>> x = torch.ones(40, 8)
        >>> guard(x, x, 0.1), guard(x, x, 100.0), guard(x, 1e9 * x * torch.arange(40.0)[:, None], 1.0)
        ('single', 'double', 'direct')
    """
    norms = near_points.norms(query, key, widened=False)
    far = _far(norms)
    return _way(query, key, far, scale, augmented_dot.shallow(far, norms[1], scale, True), NEAR)


def _far(norms: near_points.Norms) -> tuple[float, float]:
    """The largest of both sides."""
    return float(norms[0].max()), float(norms[1].max())


def _nearness(problem: Problem) -> float:
    """How near a score wants points to be for products in their own type; no point is near enough for a root."""
    if rooted(problem.pointwise):
        return -1.0
    return (NEAR_EDGES if isinstance(problem.pointwise, EpanechnikovShape) else NEAR) / steepness(problem.pointwise)


def _way(
    query: Tensor,
    key: Tensor,
    far: tuple[float, float],
    scale: float | Tensor,
    near_counts: bool,
    nearness: float,
    steep: float = 1.0,
) -> str:
    """What `guard` says; `near_counts`: whether distances between vectors far apart do not count."""
    steepest = float(scale.max()) if isinstance(scale, Tensor) else scale
    less, more = sorted(far)
    most = min(more, 4 * less) if near_counts else more
    if more * max(1.0, steepest) <= _LARGEST and (less * most) ** 0.5 * steepest <= nearness:
        return "single"
    return "direct" if center(query, key, scale, steep) is None else "double"


def tells(problem: Problem, call: Call) -> str:
    """What the guard says of a call."""
    if matmul_tiles.serves(problem):
        return _TILED
    if problem.core != "distance":
        return "products in the type of the operands"
    operands = call.score.prepare(call.query, call.key)
    if operands.query.dtype == torch.float64:
        return _TOLD["direct"]
    recipe, inputs = mechanism.prepare_inputs(problem, call)
    query, key, norms = _sides(problem, operands.query.float(), operands.key.float())
    with torch.no_grad():
        far = _far(norms)
        shallow = augmented_dot.shallow(far, norms[1], operands.scale, problem.mask == "all")
        near_counts, steep = shallow or _vanishes(problem), steepness(problem.pointwise)
        way = _way(operands.query, operands.key, far, operands.scale, near_counts, _nearness(problem), steep)
        products = augmented_dot.products(problem) if way == "single" and shallow else None
        inputs = inputs._replace(query=query, key=key, value=inputs.value.float())
        if way == "single" and _by_tiles(problem, recipe, inputs, call.visibility, far):
            return f"{_HOLDS}: distances as products in single precision, in tiles that stay in the caches"
    if products is not None and augmented_dot.tiled(products):
        return f"{_HOLDS}: distances as dot products, with {_TILED}"
    return _TOLD[way if products is None else "products"]


_TILED = "PyTorch's own softmax between products of tiles"
_HOLDS = "the guard on ‖q‖·‖k‖/h² for norms alike holds"
_TOLD = {
    "products": f"{_HOLDS}: distances as dot products in PyTorch's fused kernel",
    "single": f"{_HOLDS}: distances as products in single precision",
    "double": "distances as products in double precision: operands are too far from 0 for single",
    "direct": "distances by subtraction, as blocked does: operands are too far apart for products",
}


class _Rowwise(torch.autograd.Function):
    """A function of PyTorch's autograd over the tiles."""

    @staticmethod
    def forward(
        ctx: Any, recipe: Mechanism, visibility: Visibility, keep: bool, *inputs: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        given = Inputs(*inputs)  # type: ignore[arg-type]
        ctx.recipe, ctx.visibility = recipe, visibility
        ctx.bits = boxcar_bits.Bits(given) if keep else None
        # What the backward pass asks of the mask again is saved too, so that PyTorch sees when it was changed.
        ctx.save_for_backward(*inputs, *visibility.tensors())
        ctx.set_materialize_grads(False)
        with borrow_workspace() as rooms:
            return RowTiles(recipe, given, visibility, rooms).forward(ctx.bits)

    @staticmethod
    def backward(ctx: Any, g_output: Tensor | None, g_state: Tensor | None) -> tuple[Any, ...]:
        wanted = list(ctx.needs_input_grad[3 : 3 + DIFFERENTIABLE])
        known = ctx.recipe, ctx.visibility, ctx.bits, wanted, g_output, g_state
        gradients = _Backward.apply(*known, *ctx.saved_tensors[:SAVED])  # type: ignore[no-untyped-call]
        return (None, None, None, *gradients, None)


class _Backward(torch.autograd.Function):
    """The gradients, as a function whose own derivative says where second derivatives are to be had."""

    @staticmethod
    def forward(
        ctx: Any,
        recipe: Mechanism,
        visibility: Visibility,
        kept: boxcar_bits.Bits | None,
        wanted: list[bool],
        g_output: Tensor | None,
        g_state: Tensor | None,
        *inputs: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        given = Inputs(*inputs)  # type: ignore[arg-type]
        if g_output is None:
            g_output = given.value.new_zeros(1).expand(*recipe.leading, given.query.shape[-2], given.value.shape[-1])
        of_state = g_state if recipe.state else None
        with as_it_is(given.query), borrow_workspace() as rooms:
            buffers = RowTiles(recipe, given, visibility, rooms).backward(g_output, of_state, wanted, kept)
        return tuple(buffers)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise second_derivative("rowwise")


BACKEND = Backend(
    "rowwise", "matrix products with compiled rows between them", refuses, cost, run, tells=tells, direct=direct
)
