"""Attention by two matrix products of PyTorch with one compiled pass over each row between them, on the CPU.

It computes dot products and distances under every normalizer with a compiled pass, with bias, dropout and row states.
"""

import torch

from qkv.algorithms.rowwise import distances
from qkv.algorithms.rowwise.distances import Distances, distance_operands
from qkv.algorithms.tiled.position_tiles import PositionTiles
from qkv.algorithms.tiled.tile_function import TiledProblem, Tiles, attend
from qkv.compiled import available
from qkv.engine.algorithm import Algorithm, Result, Work
from qkv.engine.mechanism import Inputs, Mechanism, prepare_inputs
from qkv.engine.problem import Call, Problem, first_reason, is_not
from qkv.engine.work import is_hidden, memory_traffic, normalizing, pairs_of, passes, product_operations
from qkv.masks.lower import Visibility
from qkv.normalizers.sparse import Entmax
from qkv.normalizers.steep import is_steep
from qkv.scores.pointwise import Linear, rooted

_LARGEST = torch.finfo(torch.float32).max
"""Replaces an infinite sink, beside which all weights are 0, and marks the infinite row state that results."""

_NORMALIZERS = ("softmax", "sum", "mean", "identity", "sparsemax", "entmax")


def _refuses_products(problem: Problem) -> str | None:
    """Accept dot products under normalizers that have a compiled pass, in eager calls on the CPU."""
    return first_reason(
        is_not(problem, "dot"),
        (not isinstance(problem.pointwise, Linear), f"the scores are {problem.pointwise}, not plain products"),
        (problem.device != "cpu", "the kernels run on the CPU"),
        (problem.mode != "eager", "compiled kernels serve eager calls"),
        (problem.empty, "an axis is empty"),
    ) or _refuses_rows(problem)


def _refuses_distances(problem: Problem) -> str | None:
    return distances.refuses(problem) or _refuses_rows(problem)


def _refuses_rows(problem: Problem) -> str | None:
    sparse = problem.normalizer in ("sparsemax", "entmax")
    return first_reason(
        (problem.bias_by_tile, "the bias is made tile by tile"),
        (problem.normalizer not in _NORMALIZERS, f"the normalizer is {problem.normalizer}"),
        (problem.dropout and sparse, f"no kernel drops weights of {problem.normalizer}"),
    )


def work(problem: Problem) -> Work:
    """Count the matrix products, and one pass over the rows."""
    pairs = pairs_of(problem)
    counts = {
        "operations": product_operations(problem),
        f"pairs of {problem.core}": pairs,
        f"rows of {problem.core}": problem.rows * problem.queries,
        "items": problem.rows,
        "masked pairs": pairs if is_hidden(problem) else 0,
        "calls with positions": 1 if problem.positional else 0,
        "features of pairs near each other": pairs * problem.width if rooted(problem.pointwise) else 0,
        "operations in float64": product_operations(problem) if problem.dtype.itemsize == 8 else 0,
        f"calls of {problem.core} with hidden pairs": 1 if is_hidden(problem) else 0,
        **normalizing(problem, problem.normalizer),
        **memory_traffic(problem),
    }
    return Work(int(product_operations(problem) * passes(problem)), 64 << 20, counts)


def _inspect_steep(problem: Problem, call: Call) -> bool:
    """Return whether entmax's alpha is so extreme that one threshold per row does not determine the weights."""
    return isinstance(call.normalizer, Entmax) and is_steep(call.normalizer.alpha)


def _declines_steep(problem: Problem, is_steep: bool) -> str | None:
    needs_more = "entmax's alpha is so close to 1, or so large, that a row needs more than one threshold"
    return needs_more if is_steep else None


def _run_products(problem: Problem, call: Call, facts: bool) -> Result:
    """Compute attention over dot products."""
    mechanism, inputs = prepare_inputs(problem, call)
    dtype = torch.float64 if problem.dtype == torch.float64 else torch.float32
    return _attend(problem, call, mechanism, inputs.cast(dtype))


def _declines_far(problem: Problem, facts: Distances) -> str | None:
    if facts.precision == "none":
        return "some points are not finite, or too far apart for products: distances must be subtracted"
    return None


def _run_distances(problem: Problem, call: Call, facts: Distances) -> Result:
    """Compute attention over squared distances, which are dot products of operands with two more columns."""
    if facts.precision == "single":
        query, key = facts.centered.query, facts.centered.key
    else:
        # From the original vectors, not the centered ones: a center far from some of them rounds them in float32.
        assert facts.center is not None
        query, key = facts.inputs.query.double() - facts.center, facts.inputs.key.double() - facts.center
    query, key = distance_operands(query, key)
    return _attend(problem, call, facts.mechanism, facts.inputs._replace(query=query, key=key))


def _attend(problem: Problem, call: Call, mechanism: Mechanism, inputs: Inputs) -> Result:
    if problem.sink:
        assert inputs.parameter is not None
        inputs = inputs._replace(parameter=torch.where(inputs.parameter > _LARGEST, _LARGEST, inputs.parameter))
    augmented = problem.core == "distance"
    output, state = attend(TiledProblem(_row_tiles, mechanism, call.visibility, augmented=augmented), inputs)
    if problem.state and problem.sink:
        state = torch.where(state >= _LARGEST, torch.inf, state)
    return Result(output.to(call.query.dtype), state if problem.state else None)


def _row_tiles(mechanism: Mechanism, inputs: Inputs, visibility: Visibility, _: PositionTiles | None) -> Tiles:
    from qkv.algorithms.rowwise.row_tiles import RowTiles

    return RowTiles(mechanism, inputs, visibility)


ROWS = Algorithm(
    "rowwise.rows",
    "rowwise",
    "matrix products with one compiled pass over each row between them",
    _refuses_products,
    work,
    _run_products,
    _inspect_steep,
    _declines_steep,
    kernels=available.why_unavailable,
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
    kernels=available.why_unavailable,
)
