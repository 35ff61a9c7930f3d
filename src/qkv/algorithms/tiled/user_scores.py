"""User-defined scores and biases, tile by tile: checkpoints make each tile again in the backward pass.

A checkpoint that is not re-entrant is recorded by PyTorch like any other operation, so that gradients reach what the
function closes over.
"""

from dataclasses import replace

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from qkv.algorithms.matrix.reference import seen_by, state_of
from qkv.engine.algorithm import Facts, Result
from qkv.engine.mechanism import full_rank
from qkv.engine.position_bias import PositionBias
from qkv.engine.problem import Call, Problem
from qkv.engine.tiles import Place, Size, TileWalk, dropout_factors, take
from qkv.engine.unchanged import Reads, tensors_of
from qkv.linalg.heap import Release
from qkv.normalizers.base import Normalizer
from qkv.scores.widened import equation

NUMBERS = 1 << 24
"""How many numbers a tile may hold if the function keeps a query and a key for each pair: 64 MiB of float32."""


def run(problem: Problem, call: Call, facts: Facts = None) -> Result:
    """The equation on each tile, put together again."""
    rank = len(problem.leading)
    width = call.query.shape[-1] + call.key.shape[-1] + problem.value_width
    size = Size(max(1, NUMBERS // max(1, width)), 1, whole=True)
    walk = TileWalk(problem.leading, problem.queries, problem.keys, call.visibility, size)
    call = call._replace(
        query=call.query.expand(*problem.leading, *call.query.shape[-2:]),
        key=full_rank(call.key, rank + 2),
        value=full_rank(call.value, rank + 2),
        bias=full_rank(call.bias, rank + 2) if isinstance(call.bias, Tensor) else call.bias,
    )
    outputs, states, release, reads = [], [], Release(), Reads(tensors_of(call) if problem.gradient else ())
    for place, visible in walk:
        if problem.gradient:
            output, state = checkpoint(_made, reads, problem, call, place, visible, release, use_reentrant=False)
        else:
            output, state = _tile(problem, call, place, visible, release)
        outputs.append(output)
        states.append(state)
    if not outputs:
        output, state = _nothing(problem, call)
    else:
        output, state = _together(outputs, walk, -2), _together(states, walk, -1)
    reads.guard((output, state))
    return Result(output, state if problem.state else None)


def _made(
    reads: Reads, problem: Problem, call: Call, place: Place, visible: Tensor | None, release: Release
) -> tuple[Tensor, Tensor]:
    """A tile, whose making tells what it reads."""
    with reads:
        return _tile(problem, call, place, visible, release)


def _tile(
    problem: Problem, call: Call, place: Place, visible: Tensor | None, release: Release
) -> tuple[Tensor, Tensor]:
    """The output (..., h, V) of a tile, and its row state (..., h), empty where it is not wanted."""
    lead, rows, columns = place
    query, key, value = take(call.query, lead, rows), take(call.key, lead, columns), take(call.value, lead, columns)
    release.after(query.shape[:-1].numel() * key.shape[-2])
    s = equation(call.score, query, key)  # under the caller's autocast: its parameters may be wider than the query
    if isinstance(call.bias, PositionBias):
        s = s + call.bias.tile(rows, columns)
    with torch.autocast(call.query.device.type, enabled=False):
        s = s if s.dtype == torch.float64 else s.float()
        if isinstance(call.bias, Tensor):
            s = s + take(call.bias, lead, rows, columns)
        normalizer = _narrowed(call.normalizer, len(problem.leading), lead)
        w = normalizer(s, seen_by(call, visible))
        if call.seed is not None:
            w = w * dropout_factors(call.seed, place, problem.leading, problem.queries, call.dropout, w.dtype)
        output = (w @ value.to(w.dtype)).to(query.dtype)
        lost = s.new_empty(*output.shape[:-2], 0)
        return output, state_of(problem.normalizer, normalizer, s, visible) if problem.state else lost


def _narrowed(normalizer: Normalizer, rank: int, lead: tuple[slice, ...]) -> Normalizer:
    """The normalizer with its parameters for a part of the leading indices."""
    parameters = [(name, getattr(normalizer, name)) for name, _, _ in normalizer.parameters]
    changes = {name: take(full_rank(x, rank), lead) for name, x in parameters if isinstance(x, Tensor)}
    return replace(normalizer, **changes) if changes else normalizer  # type: ignore[type-var]


def _together(parts: list[Tensor], walk: TileWalk, rows: int) -> Tensor:
    """Put tiles together: leading dimensions first, the last varying fastest, then rows."""
    for dim in reversed(range(walk.rank)):
        count = len(walk.parts[dim])
        parts = [torch.cat(parts[i : i + count], dim) for i in range(0, len(parts), count)]
    return torch.cat(parts, rows)


def _nothing(problem: Problem, call: Call) -> tuple[Tensor, Tensor]:
    """Empty results that hang on the inputs as any other."""
    zero = 0 * (call.query.sum() + call.key.sum() + call.value.sum())
    rows = zero.new_zeros(*problem.leading, problem.queries)
    state = rows.to(torch.promote_types(rows.dtype, torch.float32))
    return rows.unsqueeze(-1).expand(*rows.shape, problem.value_width) + zero, state
