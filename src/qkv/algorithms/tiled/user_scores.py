"""User-defined scores and biases tile by tile, with checkpoints that compute each tile again in the backward pass.

Non-reentrant checkpoints let gradients reach tensors that the function closes over.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from qkv.algorithms.matrix.reference import scores, seen_by
from qkv.engine.algorithm import Facts, Result
from qkv.engine.dropout import Kept
from qkv.engine.mechanism import full_rank
from qkv.engine.position_bias import PositionBias, bias_tile
from qkv.engine.problem import Call, Problem
from qkv.engine.ties import first_equals, shared
from qkv.engine.tiles import TileSize, TileSlices, Tiling, take
from qkv.engine.unchanged import Reads, tensors_of
from qkv.linalg.heap import Release
from qkv.normalizers.base import Normalizer
from qkv.normalizers.dense import Hard
from qkv.scores.base import equation
from qkv.values.execution import on_host

MAX_ELEMENTS = 1 << 24
"""The most elements of a tile if the function stores a query and a key for each pair: 64 MiB of float32."""
MAX_RESIDENT = 1 << 28
"""The same on a GPU, where small tiles would spend the time on launches: 1 GiB of float32."""
ROWS = 64
"""How many rows a stripe has under tracing and transformations."""


def run(problem: Problem, call: Call, facts: Facts = None) -> Result:
    """Evaluate the equation on each tile, and concatenate the results."""
    rank = len(problem.leading)
    width = call.query.shape[-1] + call.key.shape[-1] + problem.value_width
    elements = MAX_ELEMENTS if on_host(call.query.device) else MAX_RESIDENT
    size = TileSize(max(1, elements // max(1, width)), 1, all_items=True)
    tiling = Tiling(problem.leading, problem.queries, problem.keys, call.visibility, size)
    call = call._replace(
        query=call.query.expand(*problem.leading, *call.query.shape[-2:]),
        key=full_rank(call.key, rank + 2),
        value=full_rank(call.value, rank + 2),
        bias=full_rank(call.bias, rank + 2) if isinstance(call.bias, Tensor) else call.bias,
    )
    outputs, states, release, reads = [], [], Release(), Reads(tensors_of(call) if problem.gradient else ())
    kept = _kept(problem, call)
    for slices, visible in tiling:
        if problem.gradient:
            output, state = checkpoint(
                _recorded_tile, reads, problem, call, kept, slices, visible, release, use_reentrant=False
            )
        else:
            output, state = _tile(problem, call, kept, slices, visible, release)
        outputs.append(output)
        states.append(state)
    if not outputs:
        output, state = _empty_result(problem, call)
    else:
        output, state = _concatenate(outputs, tiling, -2), _concatenate(states, tiling, -1)
    reads.guard((output, state))
    return Result(output, state if problem.state else None)


def _kept(problem: Problem, call: Call) -> Kept | None:
    sizes = problem.leading, problem.queries, problem.keys
    return None if call.seed is None else Kept(call.seed, *sizes, call.dropout)


def _recorded_tile(reads: Reads, *tile: Any) -> tuple[Tensor, Tensor]:
    """Compute a tile, and record the tensors that it reads."""
    with reads:
        return _tile(*tile)


def _tile(
    problem: Problem, call: Call, kept: Kept | None, slices: TileSlices, visible: Tensor | None, release: Release
) -> tuple[Tensor, Tensor]:
    """Return the output (..., h, V) of a tile and its row state (..., h), which is empty if not requested."""
    items, rows, columns = slices
    query, key, value = take(call.query, items, rows), take(call.key, items, columns), take(call.value, items, columns)
    release.after(query.shape[:-1].numel() * key.shape[-2])
    s = equation(call.score, query, key)  # under the caller's autocast: its parameters may be wider than the query
    if isinstance(call.normalizer, Hard):
        s = shared(s, first_equals(key))
    if isinstance(call.bias, PositionBias):
        s = s + call.bias.tile(rows, columns)
    with torch.autocast(call.query.device.type, enabled=False):
        s = s if s.dtype == torch.float64 else s.float()
        if isinstance(call.bias, Tensor):
            s = s + take(call.bias, items, rows, columns)
        normalizer = _select_parameters(call.normalizer, len(problem.leading), items)
        w = normalizer(s, seen_by(call, visible))
        if kept is not None:
            w = w * kept.factors(w.dtype, *slices)
        output = (w @ value.to(w.dtype)).to(query.dtype)
        no_state = s.new_empty(*output.shape[:-2], 0)
        return output, normalizer.state(s, visible) if problem.state else no_state


def _select_parameters(normalizer: Normalizer, rank: int, items: tuple[slice, ...]) -> Normalizer:
    """Return the normalizer with its parameters for some of the leading indices."""
    parameters = [(name, getattr(normalizer, name)) for name, _, _ in normalizer.parameters]
    changes = {name: take(full_rank(x, rank), items) for name, x in parameters if isinstance(x, Tensor)}
    return replace(normalizer, **changes) if changes else normalizer  # type: ignore[type-var]


def _concatenate(parts: list[Tensor], tiling: Tiling, rows: int) -> Tensor:
    """Concatenate tiles, along leading dimensions first, of which the last varies fastest, then along rows."""
    for dim in reversed(range(tiling.rank)):
        count = len(tiling.parts[dim])
        parts = [torch.cat(parts[i : i + count], dim) for i in range(0, len(parts), count)]
    return torch.cat(parts, rows)


def _empty_result(problem: Problem, call: Call) -> tuple[Tensor, Tensor]:
    """Return empty results that are connected to the inputs in the autograd graph."""
    zero = 0 * (call.query.sum() + call.key.sum() + call.value.sum())
    rows = zero.new_zeros(*problem.leading, problem.queries)
    state = rows.double()
    return rows.unsqueeze(-1).expand(*rows.shape, problem.value_width) + zero, state


def run_traced(problem: Problem, call: Call, facts: Facts = None) -> Result:
    """Evaluate the equation on each stripe, with checkpoints for gradients, and concatenate the results.

    In eager calls the mask decides which columns a tile has; a tracer cannot read it. Here every stripe has the same
    number of rows and all the keys, so that one compilation serves any mask and any number of keys.
    """
    call = call._replace(query=call.query.expand(*problem.leading, *call.query.shape[-2:]))
    outputs, states, kept = [], [], _kept(problem, call)
    for start in range(0, max(1, problem.queries), ROWS):
        rows = slice(start, min(start + ROWS, problem.queries))
        # Gradients under a transformation are refused by `blocked`, so none is needed here.
        if problem.gradient and problem.mode != "transformed":
            output, state = checkpoint(_stripe, problem, call, kept, rows, use_reentrant=False)
        else:
            output, state = _stripe(problem, call, kept, rows)
        outputs.append(output)
        states.append(state)
    return Result(torch.cat(outputs, -2), torch.cat(states, -1) if problem.state else None)


def _stripe(problem: Problem, call: Call, kept: Kept | None, rows: slice) -> tuple[Tensor, Tensor]:
    """Return the output (..., h, V) of some rows and their row state (..., h)."""
    all_keys = slice(0, problem.keys)
    visible = call.visibility.tile(rows, all_keys)
    part = call._replace(query=call.query[..., rows, :], bias=bias_tile(call.bias, rows, all_keys))
    s = scores(part)
    w = call.normalizer(s, seen_by(part, visible))
    if kept is not None:
        w = w * kept.factors(w.dtype, rows=rows)
    output = (w @ call.value.to(w.dtype)).to(call.value.dtype)
    output = output.expand(*problem.leading, *output.shape[-2:])
    if not problem.state:
        return output, w.new_empty(0)
    state = call.normalizer.state(s, visible)
    return output, state.expand(*problem.leading, s.shape[-2])
