"""User-defined scores and biases under tracing and transformations, in stripes that do not depend on tensor values.

In eager calls the mask decides which columns a stripe has; a tracer cannot read it. Here every stripe has the same
number of rows and all the keys, so that one compilation serves any mask and any number of keys.
"""

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from qkv.algorithms.matrix.reference import scores, seen_by
from qkv.engine.algorithm import Facts, Result
from qkv.engine.position_bias import bias_tile
from qkv.engine.problem import Call, Problem
from qkv.engine.tiles import TileSlices, dropout_factors

ROWS = 64
"""How many rows a stripe has."""


def run(problem: Problem, call: Call, facts: Facts = None) -> Result:
    """Evaluate the equation on each stripe, with checkpoints for gradients, and concatenate the results."""
    call = call._replace(query=call.query.expand(*problem.leading, *call.query.shape[-2:]))
    outputs, states = [], []
    for start in range(0, max(1, problem.queries), ROWS):
        rows = slice(start, min(start + ROWS, problem.queries))
        # Gradients under a transformation are refused by `blocked`, so none is needed here.
        if problem.gradient and problem.mode != "transformed":
            output, state = checkpoint(_stripe, problem, call, rows, use_reentrant=False)
        else:
            output, state = _stripe(problem, call, rows)
        outputs.append(output)
        states.append(state)
    return Result(torch.cat(outputs, -2), torch.cat(states, -1) if problem.state else None)


def _stripe(problem: Problem, call: Call, rows: slice) -> tuple[Tensor, Tensor]:
    """Return the output (..., h, V) of some rows and their row state (..., h)."""
    all_keys = slice(0, problem.keys)
    visible = call.visibility.tile(rows, all_keys)
    part = call._replace(query=call.query[..., rows, :], bias=bias_tile(call.bias, rows, all_keys))
    s = scores(part)
    w = call.normalizer(s, seen_by(part, visible))
    if call.seed is not None:
        slices = TileSlices((slice(None),) * len(problem.leading), rows, all_keys)
        w = w * dropout_factors(call.seed, slices, problem.leading, problem.queries, call.dropout, w.dtype)
    output = (w @ call.value.to(w.dtype)).to(call.value.dtype)
    output = output.expand(*problem.leading, *output.shape[-2:])
    if not problem.state:
        return output, w.new_empty(0)
    state = call.normalizer.state(s, visible)
    return output, state.expand(*problem.leading, s.shape[-2])
