"""Backend `lookup`: hard attention reads, for each query, the value of the key with the largest score.

These keys are found tile by tile as in `tiled.stripes`. No weights and no second product are computed; in the backward
pass only the values that were read get a gradient.
"""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.algorithms.tiled import blocked
from qkv.algorithms.tiled.row_rules import ScoreRows
from qkv.algorithms.tiled.stripes import Stripes
from qkv.engine.algorithm import Algorithm, Facts, Result, Work
from qkv.engine.autograd import with_zero_gradients
from qkv.engine.mechanism import DIFFERENTIABLE, Inputs, Mechanism, prepare_inputs
from qkv.engine.position_bias import PositionBias
from qkv.engine.problem import Call, Problem
from qkv.engine.ties import first_equals, shared
from qkv.engine.tiles import take
from qkv.engine.work import full_tensor, pairs_of
from qkv.masks.lower import Visibility
from qkv.normalizers.base import hide
from qkv.scores.base import equation

MAX_MATRIX = 1 << 20
"""The most numbers, over all leading indices, that the equation of all scores may hold: it is then computed at once."""


def refuses(problem: Problem) -> str | None:
    """Accept only the hard normalizer, in eager calls."""
    reasons = (
        (problem.normalizer != "hard", f"the normalizer is {problem.normalizer}, not hard"),
        (problem.core == "tile", "scores are user-defined"),
        (problem.bias_by_tile, "the bias is made tile by tile"),
        (problem.dropout, "it computes no weights that could be dropped"),
        (problem.state and problem.gradient, "the largest score would need a gradient"),
        (problem.mode != "eager" or problem.device == "meta", "positions are found in eager calls only"),
        (problem.empty, "an axis is empty"),
    )
    return next((reason for holds, reason in reasons if holds), None)


def work(problem: Problem) -> Work:
    """Count the scores and one look at each."""
    scores = blocked.work(problem._replace(gradient=False, value_width=0, normalizer="identity", dropout=False))
    return Work(scores.operations, scores.bytes, {**scores.counts, "looks": pairs_of(problem)})


def run(problem: Problem, call: Call, facts: Facts = None) -> Result:
    """Find the keys of the largest scores, then read their values, which autograd differentiates."""
    winners = _winners_by_matrix(problem, call)
    if winners is not None:
        output = _read(problem, call.value, winners)
        biases = call.bias.tensors() if isinstance(call.bias, PositionBias) else [call.bias]
        parameters = (getattr(call.score, parameter.name) for parameter in call.score.parameters)
        return Result(with_zero_gradients(output, (call.query, call.key, *parameters, *biases)), None)
    mechanism, inputs = prepare_inputs(problem, call)
    detached = [None if x is None else x.detach() for x in inputs[:DIFFERENTIABLE]]
    with torch.no_grad(), torch.autocast(problem.device, enabled=False):
        winners, top, visible = _winners(mechanism, Inputs(*detached, inputs.seed, inputs.ties), call.visibility)  # type: ignore[arg-type, call-arg]
    read = _read(problem, call.value, winners)
    # A NaN that a row may see stays visible; a row without visible keys gives 0.
    otherwise = torch.where(top.isnan(), torch.nan, 0.0).to(read.dtype)
    output = torch.where((visible & ~top.isnan())[..., None], read, otherwise[..., None])
    if problem.gradient:
        output = with_zero_gradients(output, inputs[:DIFFERENTIABLE])
    return Result(output, top.double() if problem.state else None)


def _winners_by_matrix(problem: Problem, call: Call) -> Tensor | None:
    """Return the key of the largest score of each row, (..., Q), from the full matrix of scores.

    None if the matrix is large, or the largest score of a row is −inf, as in a row that sees nothing, or NaN.
    """
    if problem.mode != "eager" or problem.state or problem.empty:
        return None
    if full_tensor(problem) > MAX_MATRIX:
        return None
    with torch.no_grad():
        s_QK = shared(equation(call.score, call.query, call.key), first_equals(call.key))
        if call.bias is not None:
            s_QK = s_QK + (call.bias.tile() if isinstance(call.bias, PositionBias) else call.bias)
        s_QK = hide(s_QK, call.visibility.matrix(), -torch.inf)
        top, winners = s_QK.max(-1)
        # False for NaN too.
        ordinary = bool((top > -torch.inf).all())
    return winners.expand(*problem.leading, problem.queries) if ordinary else None


def _read(problem: Problem, value: Tensor, winners: Tensor) -> Tensor:
    """Return the value of each row's winner, (..., Q, V)."""
    # Gradients of rows that read the same value are summed, in float32: half precision would round each addition.
    summed = problem.gradient and value.dtype.itemsize == 2
    table = (value.float() if summed else value).expand(*problem.leading, *value.shape[-2:])
    first = torch.arange(0, problem.rows * problem.keys, problem.keys, device=winners.device)
    read = F.embedding(winners + first.view(*problem.leading, 1), table.reshape(-1, table.shape[-1]))
    return read.to(value.dtype)


def _winners(mechanism: Mechanism, inputs: Inputs, visibility: Visibility) -> tuple[Tensor, Tensor, Tensor]:
    """Return the key of each row's first largest score, that score, and whether the row sees any key, (..., Q) each."""
    stripes = Stripes(replace(mechanism, normalizer="scores"), inputs, visibility)
    top = torch.full((*mechanism.leading, stripes.queries), -torch.inf, dtype=stripes.dtype, device=inputs.query.device)
    winners, sees_any = torch.zeros_like(top, dtype=torch.int64), torch.zeros_like(top, dtype=torch.bool)
    for slices, mask in stripes.tiling:
        items, rows, columns = slices
        if columns.start < columns.stop:
            column, largest, any_visible = _first_largest(stripes.stripe(slices, mask).row)
            take(winners, items, rows).copy_(column + columns.start)
            take(top, items, rows).copy_(largest)
            take(sees_any, items, rows).copy_(any_visible)
    return winners, top, sees_any


def _first_largest(row: ScoreRows) -> tuple[Tensor, Tensor, Tensor]:
    """Return the column of each row's first largest score, that score, and whether the row sees any key."""
    s, visible, _ = row
    column = s.argmax(-1)
    top = s.gather(-1, column[..., None])[..., 0]
    infinite = top == -torch.inf
    if visible is None or not infinite.any():
        return column, top, torch.ones_like(infinite)
    # Visible scores of −inf look like masked ones, so such rows take their first visible key.
    seen = visible.expand(s.shape).to(torch.int8)
    return torch.where(infinite, seen.argmax(-1), column), top, ~infinite | (seen.amax(-1) > 0)


LOOKUP = Algorithm(
    "tiled.lookup", "lookup", "one value for each query, at the position of its largest score", refuses, work, run
)
