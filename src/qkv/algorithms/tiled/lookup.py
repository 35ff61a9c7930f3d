"""Backend `lookup`: a hard row is one value, read at the place of its largest score; no weights, no second product.

The places, one number for each query, are found tile by tile as in `tiled.stripes` and kept for the backward pass,
which then has nothing to compute again: only the values that were read get a gradient.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.algorithms.tiled import blocked
from qkv.algorithms.tiled.row_rules import Row
from qkv.algorithms.tiled.stripes import Tiles
from qkv.engine import mechanism
from qkv.engine.algorithm import Algorithm, Facts, Result, Work
from qkv.engine.mechanism import DIFFERENTIABLE, Inputs, Mechanism
from qkv.engine.problem import Call, Problem
from qkv.engine.tiles import take
from qkv.engine.work import pairs_of
from qkv.masks.lower import Visibility
from qkv.scores.products import Dot, ScaledDot

WHOLE = 1 << 20
"""The most pairs, over all leading indices, that are looked at as one matrix."""


def refuses(problem: Problem) -> str | None:
    """Only the hard normalizer, in eager calls."""
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
    """Find the places, then read the values there, which PyTorch differentiates."""
    place = _whole(problem, call)
    if place is not None:
        output = _read(problem, call.value, place)
        leaves = [x for x in (call.query, call.key) if x.requires_grad] if problem.gradient else []
        return Result(_Still.apply(output, *leaves) if leaves else output, None)  # type: ignore[no-untyped-call]
    recipe, inputs = mechanism.prepare_inputs(problem, call)
    detached = [None if x is None else x.detach() for x in inputs[:DIFFERENTIABLE]]
    with torch.no_grad(), torch.autocast(problem.device, enabled=False):
        place, top, found = _places(recipe, Inputs(*detached, inputs.seed), call.visibility)  # type: ignore[arg-type, call-arg]
    read = _read(problem, call.value, place)
    # What a row may see and is NaN stays visible; a row that sees nothing gives 0.
    unread = torch.where(top.isnan(), torch.nan, 0.0).to(read.dtype)
    output = torch.where((found & ~top.isnan())[..., None], read, unread[..., None])
    if problem.gradient:
        output = _Still.apply(output, *(x for x in inputs[:DIFFERENTIABLE] if x is not None and x.requires_grad))  # type: ignore[no-untyped-call]
    return Result(output, top if problem.state else None)


def _whole(problem: Problem, call: Call) -> Tensor | None:
    """The places (..., Q) by one small matrix; None where it is none, or a row has no largest score to speak of."""
    if call.visibility.kind != "all" or call.bias is not None or problem.state or not 0 < pairs_of(problem) <= WHOLE:
        return None
    if type(call.score) not in (Dot, ScaledDot):
        # Of other scores the operands learn too.
        return None
    plain = problem.dtype in (torch.float32, torch.float64)
    if not plain or not call.query.shape[:-2] == call.key.shape[:-2] == problem.leading:
        return None
    with torch.no_grad(), torch.autocast(problem.device, enabled=False):
        query, key, scale, _ = call.score.prepare(call.query, call.key)
        if isinstance(scale, Tensor):
            return None
        # Scaled after the product, as the equation says: a product that takes the scale with it breaks ties.
        s_QK = call.score.pointwise((query @ key.mT).mul_(scale))
        place = s_QK.argmax(-1, keepdim=True)
        plain = bool((s_QK.gather(-1, place) > -torch.inf).all())
    return place[..., 0] if plain else None


def _read(problem: Problem, value: Tensor, place: Tensor) -> Tensor:
    """The values at the places."""
    # Gradients of rows that read the same value add up: in half precision each addition would round.
    summed = problem.gradient and value.dtype.itemsize == 2
    wide = (value.float() if summed else value).expand(*problem.leading, *value.shape[-2:])
    first = torch.arange(0, problem.rows * problem.keys, problem.keys, device=place.device)
    read = F.embedding(place + first.view(*problem.leading, 1), wide.reshape(-1, wide.shape[-1]))
    return read.to(value.dtype)


def _places(recipe: Mechanism, inputs: Inputs, visibility: Visibility) -> tuple[Tensor, Tensor, Tensor]:
    """For each row (..., Q): the key of the first largest score, that score, and whether there is such a key."""
    tiles = Tiles(replace(recipe, normalizer="scores"), inputs, visibility)
    top = torch.full((*recipe.leading, tiles.queries), -torch.inf, dtype=tiles.dtype, device=inputs.query.device)
    place, found = torch.zeros_like(top, dtype=torch.int64), torch.zeros_like(top, dtype=torch.bool)
    for at, visible in tiles.walk:
        if at.columns.start < at.columns.stop:
            own, largest, seen = _first_largest(tiles.stripe(at, visible).row)
            take(place, at.lead, at.rows).copy_(own + at.columns.start)
            take(top, at.lead, at.rows).copy_(largest)
            take(found, at.lead, at.rows).copy_(seen)
    return place, top, found


def _first_largest(row: Row) -> tuple[Tensor, Tensor, Tensor]:
    """Where a tile's rows have their first largest score, that score, and whether they see any key."""
    s, visible, _ = row
    place = s.argmax(-1)
    top = s.gather(-1, place[..., None])[..., 0]
    none = top == -torch.inf
    if visible is None or not none.any():
        return place, top, torch.ones_like(none)
    # A row whose visible scores are all -inf looks like its hidden ones: ask visibility again.
    seen = visible.expand(s.shape).to(torch.int8)
    return torch.where(none, seen.argmax(-1), place), top, ~none | (seen.amax(-1) > 0)


class _Still(torch.autograd.Function):
    """The output as it is, with gradients of zero for what decides no more than where values are read."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, *inputs: Tensor) -> Tensor:
        ctx.save_for_backward(*inputs)
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        return (gradient, *(torch.zeros_like(x) for x in ctx.saved_tensors))


LOOKUP = Algorithm(
    "tiled.lookup", "lookup", "one value for each query, at the position of its largest score", refuses, work, run
)
