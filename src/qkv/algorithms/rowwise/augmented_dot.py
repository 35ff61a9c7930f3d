"""Squared distances as dot products of operands with one more column, for PyTorch's kernels of a plain softmax.

−‖q−k‖²/2h² = (q·k − ‖k‖²/2)/h² − ‖q‖²/2h², and the last term is the same for every key, so it cancels in the softmax.
Softmax over squared distances, and the Gaussian kernel divided by its sum, which is the same, are therefore softmax
over the dot products of (q, 1)/h² and (k, −‖k‖²/2). Only the rounding differs, if

- vectors of similar norms are short compared with h, so that no digits cancel: the guard of
  `qkv.algorithms.rowwise.distances`;
- each row has a key whose score is not far below 0: (‖q‖ + ‖k‖)²/2h² ≤ `DEPTH` for a visible key. Then no row loses all
  its weight because all its Gaussians underflow, and no log-sum-exp is so large that its rounding matters. A key so far
  away that its own Gaussian is 0 has the weight 0 under softmax as well.
"""

import torch
from torch import Tensor

from qkv.algorithms.rowwise import distances
from qkv.algorithms.rowwise.distances import WHY_NOT_SINGLE, Distances
from qkv.algorithms.sdpa import flash
from qkv.algorithms.sdpa.operands import Products
from qkv.algorithms.tiled import blocked
from qkv.compiled import available
from qkv.engine.algorithm import Algorithm, Result, Work
from qkv.engine.problem import Call, Problem, first_reason
from qkv.scores.pointwise import Linear, NegativeHalf


def refuses(problem: Problem) -> str | None:
    """Return why no softmax over dot products has the weights of a problem over distances; None if one has."""
    same = isinstance(problem.pointwise, NegativeHalf) and problem.normalizer == "softmax"
    reason = first_reason(
        (not same, f"{problem.pointwise} scores under {problem.normalizer} are not a softmax of dot products"),
        (problem.bias != "none" or problem.state, "a bias or the row state is requested"),
        (problem.sink, "the constant term cancels between scores, not beside a sink"),
    )
    return reason or distances.refuses(problem) or flash.refuses(products(problem))


def products(problem: Problem) -> Problem:
    """Return the softmax over dot products that has the same weights as a problem of squared distances."""
    return problem._replace(core="dot", pointwise=Linear(), width=problem.width + 1, dtype=torch.float32)


def work(problem: Problem) -> Work:
    """Count the work of PyTorch's kernel, and a pass over queries and keys."""
    return flash.work(products(problem))


def _declines(problem: Problem, facts: Distances) -> str | None:
    if facts.precision != "single":
        return WHY_NOT_SINGLE
    return None if facts.no_row_underflows else "some row may lose all its weight, as all its keys are far away"


def run(problem: Problem, call: Call, facts: Distances) -> Result:
    """Compute attention over squared distances as softmax attention over dot products."""
    query, key, value = facts.centered[:3]
    half_norms = key.square().sum(-1, keepdim=True) * -0.5
    augmented = torch.cat([query, query.new_ones(()).expand(*query.shape[:-1], 1)], -1)
    scale = facts.scale
    if isinstance(scale, Tensor):
        augmented, scale = augmented * scale, 1.0
    operands = Products(augmented, torch.cat([key, half_norms], -1), value, scale)
    result = flash.attend(products(problem), call, operands)
    if result is None:
        return blocked.run(problem, call)
    return Result(result.output.to(call.query.dtype), None)


AUGMENTED_DOT = Algorithm(
    "rowwise.augmented_dot",
    "rowwise",
    "distances as dot products in PyTorch's fused kernel",
    refuses,
    work,
    run,
    distances.inspect,
    _declines,
    distances.describe,
    kernels=available.why_unavailable,
)
