"""Matrix products by PyTorch, and between them one compiled pass over each row, on the CPU.

It serves dot products and distances under every normalizer that has a compiled row, with bias, dropout and row states.
"""

from typing import Any

import torch
from torch import Tensor

from qkv.algorithms.rowwise import distances
from qkv.algorithms.rowwise.distances import Distances
from qkv.algorithms.rowwise.row_tiles import RowTiles
from qkv.algorithms.rowwise.squared_norms import wider
from qkv.algorithms.tiled.stripes import SAVED
from qkv.compiled import available
from qkv.engine import mechanism
from qkv.engine.algorithm import Algorithm, Result, Work
from qkv.engine.autograd import once_differentiable
from qkv.engine.mechanism import DIFFERENTIABLE, Inputs, Mechanism
from qkv.engine.problem import Call, Problem
from qkv.engine.work import is_hidden, memory_traffic, pairs_of, passes, product_operations
from qkv.linalg.buffers import borrow_workspace
from qkv.masks.lower import Visibility
from qkv.normalizers.sparse import Entmax
from qkv.normalizers.steep import steep
from qkv.scores.pointwise import Linear, rooted
from qkv.scores.widened import as_it_is

_ENDLESS = torch.finfo(torch.float32).max
"""Stands for a sink of +inf, beside which nothing counts, and for the row state that it gives."""

_NORMALIZERS = ("softmax", "sum", "mean", "identity", "sparsemax", "entmax")


def _refuses_products(problem: Problem) -> str | None:
    """Accept dot products under normalizers that have a compiled row, in eager calls on the CPU."""
    reasons = (
        (problem.core != "dot", f"the core is {problem.core}, not dot"),
        (not isinstance(problem.pointwise, Linear), f"the scores are {problem.pointwise}, not plain products"),
        (problem.device != "cpu", "the kernels run on the CPU"),
        (problem.mode != "eager", "compiled kernels serve eager calls"),
        (problem.empty, "an axis is empty"),
    )
    reason = next((reason for holds, reason in reasons if holds), None)
    return reason or _refuses_rows(problem) or available.why_unavailable()


def _refuses_distances(problem: Problem) -> str | None:
    return distances.refuses(problem) or _refuses_rows(problem)


def _refuses_rows(problem: Problem) -> str | None:
    if problem.bias_by_tile:
        return "the bias is made tile by tile"
    if problem.normalizer not in _NORMALIZERS:
        return f"the normalizer is {problem.normalizer}"
    if problem.dropout and problem.normalizer in ("sparsemax", "entmax"):
        return f"no kernel drops weights of {problem.normalizer}"
    return None


def work(problem: Problem) -> Work:
    """Count the matrix products, and one pass over the rows."""
    pairs = pairs_of(problem)
    counts = {
        "operations": product_operations(problem),
        f"pairs of {problem.core}": pairs,
        f"rows of {problem.core}": problem.rows * problem.queries,
        "items": problem.rows,
        f"pairs of {problem.normalizer}": pairs,
        f"calls of {problem.normalizer}": 1,
        "calls with dropout": 1 if problem.dropout else 0,
        "masked pairs": pairs if is_hidden(problem) else 0,
        "pairs dropped": pairs if problem.dropout else 0,
        "biased pairs": pairs if problem.bias != "none" else 0,
        "calls with positions": 1 if problem.positional else 0,
        "features of pairs near each other": pairs * problem.width if rooted(problem.pointwise) else 0,
        "operations in float64": product_operations(problem) if problem.dtype.itemsize == 8 else 0,
        f"pairs of {problem.normalizer} in float64": pairs if problem.dtype.itemsize == 8 else 0,
        f"calls of {problem.core} with hidden pairs": 1 if is_hidden(problem) else 0,
        **memory_traffic(problem),
    }
    return Work(int(product_operations(problem) * passes(problem)), 64 << 20, counts)


def _steep(problem: Problem, call: Call) -> bool:
    """Return whether entmax's alpha is so steep that one number per row does not tell the weights."""
    return isinstance(call.normalizer, Entmax) and steep(call.normalizer.alpha)


def _declines_steep(problem: Problem, is_steep: bool) -> str | None:
    return (
        "entmax's alpha is so close to 1, or so large, that a row needs more than one threshold" if is_steep else None
    )


def _run_products(problem: Problem, call: Call, facts: bool) -> Result:
    """Attend over dot products."""
    recipe, inputs = mechanism.prepare_inputs(problem, call)
    wide = torch.float64 if problem.dtype == torch.float64 else torch.float32
    given = [None if x is None else x.to(wide) if x.ndim else x for x in inputs[:DIFFERENTIABLE]]
    return _attend(problem, call, recipe, Inputs(*given, inputs.seed))  # type: ignore[arg-type, call-arg]


def _inspect_distances(problem: Problem, call: Call) -> Distances:
    return distances.inspect(problem, call)


def _declines_far(problem: Problem, facts: Distances) -> str | None:
    if facts.precision == "none":
        return "some points are not finite, or too far apart for products: distances must be subtracted"
    return None


def _run_distances(problem: Problem, call: Call, facts: Distances) -> Result:
    """Attend over squared distances as products of wider operands."""
    with as_it_is(facts.inputs.query):
        if facts.precision == "single":
            query, key = facts.centered.query, facts.centered.key
        else:
            # Products in float64 are of vectors as they came: a middle that far ones moved rounds near ones off.
            assert facts.middle is not None
            query, key = facts.inputs.query.double() - facts.middle, facts.inputs.key.double() - facts.middle
        query, key = wider(query, key, query.square().sum(-1, keepdim=True), key.square().sum(-1, keepdim=True))
    return _attend(problem, call, facts.mechanism, facts.inputs._replace(query=query, key=key))


def _attend(problem: Problem, call: Call, recipe: Mechanism, inputs: Inputs) -> Result:
    with as_it_is(inputs.query):
        if problem.sink:
            assert inputs.parameter is not None
            inputs = inputs._replace(parameter=torch.where(inputs.parameter > _ENDLESS, _ENDLESS, inputs.parameter))
        output, state = _Rowwise.apply(recipe, call.visibility, *inputs)  # type: ignore[no-untyped-call]
        if problem.state and problem.sink:
            state = torch.where(state >= _ENDLESS, torch.inf, state)
    return Result(output.to(call.query.dtype), state if problem.state else None)


class _Rowwise(torch.autograd.Function):
    """A function of PyTorch's autograd over the tiles."""

    @staticmethod
    def forward(ctx: Any, recipe: Mechanism, visibility: Visibility, *inputs: Tensor | None) -> tuple[Tensor, Tensor]:
        given = Inputs(*inputs)  # type: ignore[arg-type]
        ctx.recipe, ctx.visibility = recipe, visibility
        # What the backward pass asks of the mask again is saved too, so that PyTorch sees when it was changed.
        ctx.save_for_backward(*inputs, *visibility.tensors())
        ctx.set_materialize_grads(False)
        with borrow_workspace() as workspace:
            return RowTiles(recipe, given, visibility, workspace).forward()

    @staticmethod
    @once_differentiable("rowwise")
    def backward(ctx: Any, g_output: Tensor | None, g_state: Tensor | None) -> tuple[Any, ...]:
        wanted, recipe = list(ctx.needs_input_grad[2 : 2 + DIFFERENTIABLE]), ctx.recipe
        given = Inputs(*ctx.saved_tensors[:SAVED])
        if g_output is None:
            g_output = given.value.new_zeros(1).expand(*recipe.leading, given.query.shape[-2], given.value.shape[-1])
        of_state = g_state if recipe.state else None
        with as_it_is(given.query), borrow_workspace() as workspace:
            tiles = RowTiles(recipe, given, ctx.visibility, workspace)
            return (None, None, *tiles.backward(g_output, of_state, wanted), None)


ROWS = Algorithm(
    "rowwise.rows",
    "rowwise",
    "matrix products with one compiled pass over each row between them",
    _refuses_products,
    work,
    _run_products,
    _steep,
    _declines_steep,
)
DISTANCE_ROWS = Algorithm(
    "rowwise.distance_rows",
    "rowwise",
    "distances as matrix products with one compiled pass over each row between them",
    _refuses_distances,
    work,
    _run_distances,
    distances.inspect,
    _declines_far,
    distances.describe,
)
