"""Backend `lookup`: hard attention reads, for each query, the value of the key with the largest score.

These keys are found tile by tile as in `tiled.stripes`. No weights and no second product are computed; in the backward
pass only the values that were read get a gradient.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.algorithms.matrix import dot_scores
from qkv.algorithms.matrix.reference import scores, with_matrix
from qkv.algorithms.tiled import blocked
from qkv.algorithms.tiled.stripes import Stripes
from qkv.engine.algorithm import Algorithm, Facts, Result, Work
from qkv.engine.autograd import with_zero_gradients
from qkv.engine.mechanism import DIFFERENTIABLE, Inputs, Mechanism, prepare_inputs
from qkv.engine.problem import Call, Problem, first_reason
from qkv.engine.tiles import take
from qkv.engine.work import comparing, full_tensor, pairs_of
from qkv.masks.lower import Visibility
from qkv.normalizers.base import hide

MAX_MATRIX = 1 << 20
"""The most numbers, over all leading indices, that the equation of all scores may hold: it is then computed at once."""


def refuses(problem: Problem) -> str | None:
    """Accept only the hard normalizer, in eager calls."""
    return first_reason(
        (problem.normalizer != "hard", f"the normalizer is {problem.normalizer}, not hard"),
        (problem.core == "tile", "scores are user-defined"),
        (problem.bias_by_tile, "the bias is made tile by tile"),
        (problem.dropout, "it computes no weights that could be dropped"),
        (problem.state and problem.gradient, "the largest score would need a gradient"),
        (problem.mode != "eager" or problem.device == "meta", "positions are found in eager calls only"),
        (problem.empty, "an axis is empty"),
    )


def work(problem: Problem) -> Work:
    """Count the scores, and one comparison of each."""
    scores = blocked.work(problem._replace(gradient=False, value_width=0, normalizer="identity", dropout=False))
    return Work(scores.operations, scores.bytes, {**scores.counts, **comparing(problem), "looks": pairs_of(problem)})


def run(problem: Problem, call: Call, facts: Facts = None) -> Result:
    """Find the keys of the largest scores, then read their values, which autograd differentiates."""
    bound = bind(problem, call)
    if bound is not None:
        return Result(bound(call), None)
    return _run_by_tiles(problem, call)


def bind(problem: Problem, call: Call) -> Callable[[Call], Tensor] | None:
    """Return `run` for calls like this one, by the full matrix of scores; None if it is large, or needs a row state."""
    if problem.mode != "eager" or problem.state or problem.empty or full_tensor(problem) > MAX_MATRIX:
        return None
    scores_of, all_visible = dot_scores.bind(problem, call) or scores, problem.mask == "all"

    def attend(call: Call) -> Tensor:
        call = call if all_visible else call.without_hidden_keys()
        with torch.no_grad() if problem.gradient else nullcontext():
            s_QK = hide(scores_of(with_matrix(call)), call.visibility.matrix(), -torch.inf)
            top, winners = s_QK.max(-1)
            # False for NaN too.
            ordinary = float(top.sum()) > -torch.inf
        if not ordinary:
            # The largest score of a row is NaN, or −inf, as in a row that sees nothing.
            return _run_by_tiles(problem, call).output
        output = _read(problem, call.value, winners.expand(*problem.leading, problem.queries))
        return with_zero_gradients(output, call.scored()) if problem.gradient else output

    return attend


def _run_by_tiles(problem: Problem, call: Call) -> Result:
    mechanism, inputs = prepare_inputs(problem, call)
    detached = [None if x is None else x.detach() for x in inputs[:DIFFERENTIABLE]]
    with torch.no_grad(), torch.autocast(problem.device, enabled=False):
        winners, top = _winners(mechanism, Inputs(*detached, inputs.seed, inputs.ties), call.visibility)  # type: ignore[arg-type, call-arg]
    values = _read(problem, call.value, winners)
    # A NaN that a row may see stays visible; a row without visible keys, or with scores of −inf alone, gives 0.
    otherwise = torch.where(top.isnan(), torch.nan, 0.0).to(values.dtype)
    output = torch.where((top > -torch.inf)[..., None], values, otherwise[..., None])
    if problem.gradient:
        output = with_zero_gradients(output, inputs[:DIFFERENTIABLE])
    return Result(output, top.double() if problem.state else None)


def _read(problem: Problem, value: Tensor, winners: Tensor) -> Tensor:
    """Return the value of each row's winner, (..., Q, V)."""
    # Gradients of rows that read the same value are summed, in float32: half precision would round each addition.
    summed = problem.gradient and value.dtype.itemsize == 2
    table = (value.float() if summed else value).expand(*problem.leading, *value.shape[-2:])
    first = torch.arange(0, problem.rows * problem.keys, problem.keys, device=winners.device)
    read = F.embedding(winners + first.view(*problem.leading, 1), table.reshape(-1, table.shape[-1]))
    return read.to(value.dtype)


def _winners(mechanism: Mechanism, inputs: Inputs, visibility: Visibility) -> tuple[Tensor, Tensor]:
    """Return the key of each row's first largest score, and that score, −inf if the row sees no key, (..., Q) each."""
    stripes = Stripes(replace(mechanism, normalizer="scores"), inputs, visibility)
    top = torch.full((*mechanism.leading, stripes.queries), -torch.inf, dtype=stripes.dtype, device=inputs.query.device)
    winners = torch.zeros_like(top, dtype=torch.int64)
    for slices, mask in stripes.tiling:
        items, rows, columns = slices
        if columns.start < columns.stop:
            s = stripes.stripe(slices, mask).row.scores
            column = s.argmax(-1)
            take(winners, items, rows).copy_(column + columns.start)
            take(top, items, rows).copy_(s.gather(-1, column[..., None])[..., 0])
    return winners, top


LOOKUP = Algorithm(
    "tiled.lookup",
    "lookup",
    "one value for each query, at the position of its largest score",
    refuses,
    work,
    run,
    bind=bind,
)
