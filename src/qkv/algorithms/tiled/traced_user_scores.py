"""User-defined scores and biases under tracing and transformations: stripes that no value of a tensor decides.

The eager walk reads where rows begin and end from the mask; a tracer cannot. Here every stripe has the same number of
rows and all the keys, so that one compilation serves any mask and any number of keys.
"""

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from qkv.algorithms.matrix.reference import scores, seen_by, state_of
from qkv.engine.algorithm import Facts, Result
from qkv.engine.position_bias import bias_tile
from qkv.engine.problem import Call, Problem
from qkv.engine.tiles import Place, dropout_factors

ROWS = 64
"""How many rows a stripe has."""


def run(problem: Problem, call: Call, facts: Facts = None) -> Result:
    """The equation on each stripe, put together again; kept stripes are made anew in the backward pass."""
    call = call._replace(query=call.query.expand(*problem.leading, *call.query.shape[-2:]))
    outputs, states = [], []
    for start in range(0, max(1, problem.queries), ROWS):
        rows = slice(start, min(start + ROWS, problem.queries))
        # Nothing asks for a gradient under a transformation: `refuses` sees to that.
        if problem.gradient and problem.mode != "transformed":
            output, state = checkpoint(_stripe, problem, call, rows, use_reentrant=False)
        else:
            output, state = _stripe(problem, call, rows)
        outputs.append(output)
        states.append(state)
    return Result(torch.cat(outputs, -2), torch.cat(states, -1) if problem.state else None)


def _stripe(problem: Problem, call: Call, rows: slice) -> tuple[Tensor, Tensor]:
    """The output (..., h, V) of some rows, and their row state (..., h)."""
    everything = slice(0, problem.keys)
    visible = call.visibility.tile(rows, everything)
    piece = call._replace(query=call.query[..., rows, :], bias=bias_tile(call.bias, rows, everything))
    s = scores(piece)
    w = call.normalizer(s, seen_by(piece, visible))
    if call.seed is not None:
        place = Place((slice(None),) * len(problem.leading), rows, everything)
        w = w * dropout_factors(call.seed, place, problem.leading, problem.queries, call.dropout, w.dtype)
    output = (w @ call.value.to(w.dtype)).to(call.value.dtype)
    output = output.expand(*problem.leading, *output.shape[-2:])
    if not problem.state:
        return output, w.new_empty(0)
    state = state_of(problem.normalizer, call.normalizer, s, visible)
    return output, state.expand(*problem.leading, s.shape[-2])
