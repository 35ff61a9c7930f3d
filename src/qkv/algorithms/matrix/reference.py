"""Backend `reference`: the equation on the full matrix, in any dtype; all other backends are tested against it."""

from collections.abc import Callable

import torch
from torch import Tensor

from qkv.algorithms.matrix import distance_scores, dot_scores
from qkv.engine.algorithm import Algorithm, Facts, Result, Work
from qkv.engine.autograd import with_zero_gradients
from qkv.engine.dropout import factor_matrix
from qkv.engine.position_bias import PositionBias
from qkv.engine.problem import Call, Problem, hiding
from qkv.engine.ties import first_equals, shared
from qkv.engine.work import (
    distances_by_products,
    full_tensor,
    matrix_numbers,
    memory_traffic,
    normalizing,
    pairs_of,
    product_operations,
    reading_once,
    spreading,
)
from qkv.normalizers.dense import Hard
from qkv.scores.base import HALVES, equation, wide, without_autocast

IN_CACHE = 1 << 20
"""How many numbers stay in the cache from one operator to the next."""


def refuses(problem: Problem) -> str | None:
    """Accept every problem."""
    return None


def work(problem: Problem) -> Work:
    """Count the full matrix; additive and distance scores hold one per hidden feature.

    Numbers that do not fit the cache are counted apart. Memory is that of distances by subtraction, for the case that
    points are too far apart for products.
    """
    pairs = pairs_of(problem)
    numbers, core = matrix_numbers(problem), problem.core
    where = "in memory" if numbers > IN_CACHE else "in cache"
    wide = problem.dtype.itemsize == 8
    if distances_by_products(problem):
        # Distances by products take as long as products in float64.
        core, wide = "dot", True
    # Sparsemax and entmax find τ in the same way.
    rule = "sparsemax" if problem.normalizer == "entmax" else problem.normalizer
    counts = {
        "operations": product_operations(problem),
        f"numbers of {core} {where}": numbers,
        "masked pairs": pairs if problem.mask != "all" else 0,
        "masks": 1 if problem.mask != "all" else 0,
        "positions": pairs if problem.positional else 0,
        "calls with positions": 1 if problem.positional else 0,
        "sinks": 1 if problem.sink else 0,
        "pairs in half precision": pairs if problem.dtype.itemsize == 2 else 0,
        "operations in float64": product_operations(problem) if wide else 0,
        **normalizing(problem, rule),
        **reading_once(problem),
        **spreading(problem),
        **memory_traffic(problem),
    }
    memory = (full_tensor(problem) + 3 * pairs) * problem.dtype.itemsize * (2 if problem.gradient else 1)
    return Work(product_operations(problem) * (3 if problem.gradient else 1), memory, counts)


def run(problem: Problem, call: Call, facts: Facts = None) -> Result:
    """Compute scores, bias, mask, normalizer, dropout, and weights times values; half precision in float32."""
    state = row_state(problem, call) if problem.state else None
    return Result(output(problem, call, weights(problem, call)), state)


def bind(problem: Problem, call: Call) -> Callable[[Call], Tensor]:
    """Return a function that computes the output of calls like this one."""
    weights_of, output_of = _bind_weights(problem, call), _bind_output(problem, call)
    if problem.mask == "all":
        return lambda call: output_of(call, weights_of(call))
    hide = hiding(problem)

    def attend(call: Call) -> Tensor:
        call = hide(call)
        return output_of(call, weights_of(call))

    return attend


def weights(problem: Problem, call: Call) -> Tensor:
    """Return the weights after dropout, (..., Q, K)."""
    return _bind_weights(problem, call)(call)


def _bind_weights(problem: Problem, call: Call) -> Callable[[Call], Tensor]:
    """Return a function that computes the weights of calls like this one; choices that they share are made once."""
    positional, dropout = problem.positional, problem.dropout
    products_of = dot_scores.bind(problem, call)
    scores_of = products_of or _bind_scores(problem)
    shifted = products_of is not None and dot_scores.shifts(problem)
    all_visible = problem.mask == "all"
    # The same for all calls like this one: a mask that hides nothing.
    seen_by_all = seen_by(call, None) if all_visible else None

    def weights_of(call: Call) -> Tensor:
        call = with_matrix(call) if positional else call
        s_QK = scores_of(call)
        if shifted:
            w_QK = torch.sigmoid(s_QK) if s_QK.requires_grad else s_QK.sigmoid_()
        else:
            w_QK = call.normalizer(s_QK, seen_by_all if all_visible else seen_by(call, call.visibility.matrix()))
        return dropped(problem, call, w_QK) if dropout else w_QK

    if problem.normalizer == "hard" and problem.gradient and problem.mode == "eager" and problem.core != "tile":
        return lambda call: _without_slope(weights_of, with_matrix(call))
    return weights_of


def _bind_scores(problem: Problem) -> Callable[[Call], Tensor]:
    """Return `scores` for the calls of a problem; where nothing is widened, autocast is off or narrows nothing."""
    if problem.core in ("distance", "tile") or problem.normalizer == "hard" or problem.dtype in HALVES:
        return scores

    def scores_of(call: Call) -> Tensor:
        s_QK = call.score(call.query, call.key)
        return s_QK if call.bias is None else s_QK + call.bias  # type: ignore[operator]

    return scores_of


def _without_slope(weights_of: Callable[[Call], Tensor], call: Call) -> Tensor:
    """Return piecewise constant weights, with zero gradients for everything that they are computed from."""
    with torch.no_grad():
        w_QK = weights_of(call)
    return with_zero_gradients(w_QK, call.scored())


def with_matrix(call: Call) -> Call:
    """Return the call with a position bias evaluated as a matrix."""
    return call._replace(bias=call.bias.tile()) if isinstance(call.bias, PositionBias) else call


def seen_by(call: Call, visible: Tensor | None) -> Tensor | None:
    """Return the mask for the normalizer, all True instead of None if it must check for rows without a finite score.

    Without a mask a row may have only scores of −inf, and some normalizers would divide 0 by 0.
    """
    divides = call.normalizer.convex and not call.normalizer.piecewise_constant
    if visible is None and divides and (call.bias is not None or call.score.core == "tile"):
        return torch.ones((1, 1), dtype=torch.bool, device=call.query.device)
    return visible


def output(problem: Problem, call: Call, w_QK: Tensor) -> Tensor:
    """Return weights times values, (..., Q, V)."""
    with without_autocast(call.value):
        return _bind_output(problem, call)(call, w_QK)


def _bind_output(problem: Problem, call: Call) -> Callable[[Call, Tensor], Tensor]:
    dtype, leading = call.value.dtype, problem.leading
    if dtype not in HALVES and problem.dtype == dtype and call.value.shape[:-2] == leading:
        return lambda call, w_QK: (w_QK if w_QK.dtype == dtype else w_QK.to(dtype)) @ call.value

    def output_of(call: Call, w_QK: Tensor) -> Tensor:
        value = wide(call.value)
        out_QV = (w_QK if w_QK.dtype == value.dtype else w_QK.to(value.dtype)) @ value
        out_QV = out_QV if out_QV.dtype == dtype else out_QV.to(dtype)
        return out_QV if out_QV.shape[:-2] == leading else out_QV.expand(*leading, *out_QV.shape[-2:])

    return output_of


def scores(call: Call) -> Tensor:
    """Return the scores with the bias, which is a tensor or None, (..., Q, K)."""
    is_distance = call.score.core == "distance"
    s_QK = distance_scores.scores(call.score, call.query, call.key) if is_distance else None
    s_QK = equation(call.score, call.query, call.key) if s_QK is None else s_QK
    if type(call.normalizer) is Hard:
        s_QK = shared(s_QK, first_equals(call.key, call.visibility))
    bias = None if call.bias is None else call.bias_tensor
    return s_QK if bias is None else s_QK + bias


def dropped(problem: Problem, call: Call, w_QK: Tensor) -> Tensor:
    """Apply dropout: weights become 0 or are scaled by 1/(1 − dropout)."""
    assert call.seed is not None
    return w_QK * factor_matrix(call.seed, problem.leading, problem.queries, problem.keys, call.dropout, w_QK.dtype)


def row_state(problem: Problem, call: Call) -> Tensor:
    """Return the value of the row state, (..., Q)."""
    call = with_matrix(call)
    state = call.normalizer.state(scores(call), call.visibility.matrix())
    return state.expand(*problem.leading, problem.queries)


REFERENCE = Algorithm(
    "matrix.reference", "reference", "the equation on the full matrix", refuses, work, run, quadratic=True, bind=bind
)
