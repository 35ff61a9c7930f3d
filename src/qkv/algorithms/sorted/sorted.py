"""Backend `sorted`: scores of one number per query and key, by sorting the keys and summing them once.

Where a score is a polynomial of the key on each side of a boundary (a rectified sum, a kernel of bounded support), the
weighted sum over all keys is a difference of prefix sums over the sorted keys: O((N + M) log M) instead of O(N·M).
Eager calls on the CPU use a compiled two-pointer pass over sorted queries and keys (`two_pointer`); all others compute
the prefix sums in PyTorch (`prefix_sums`). Both keep sums in float64 and find boundaries by the score's own predicate.
"""

import torch
from torch import Tensor

from qkv.algorithms.sorted import prefix_sums, two_pointer
from qkv.algorithms.sorted.prefix_sums import Operands
from qkv.algorithms.tiled import blocked
from qkv.engine.backend import Backend, Result
from qkv.engine.problem import Call, Cost, Problem
from qkv.scores.pointwise import BoxcarShape, EpanechnikovShape, Leaky
from qkv.values.parameters import readable


def refuses(problem: Problem) -> str | None:
    """Only scores that are polynomials of one sorted number on each side of a boundary."""
    kernel = isinstance(problem.pointwise, BoxcarShape) or (
        isinstance(problem.pointwise, EpanechnikovShape) and problem.pointwise.power in (1, 2)
    )
    allowed = ("mean", "identity", "softmax") if problem.core == "relu_sum" else ("sum", "mean", "identity")
    reasons = (
        (problem.core not in ("relu_sum", "distance"), f"the core is {problem.core}: its keys have no order"),
        (problem.core == "distance" and problem.width != 1, f"points of {problem.width} dimensions have no order"),
        (problem.core == "distance" and not kernel, f"{problem.pointwise} is no polynomial within a boundary"),
        (problem.normalizer not in allowed, f"the normalizer is {problem.normalizer}"),
        (problem.sink, "the softmax has a sink"),
        (problem.bias != "none", "a bias is added to the scores"),
        (0 in (problem.rows, problem.queries, problem.keys), "an axis is empty"),
        (problem.dropout, "dropout draws for each weight"),
        (problem.mask not in ("all", "keys"), f"a mask of the kind {problem.mask} differs by row"),
    )
    return next((reason for holds, reason in reasons if holds), None)


def cost(problem: Problem) -> Cost:
    """Estimate a sort and two-pointer passes; or a sort, prefix sums, and a bisection for each query.

    Fitted to processor time of one thread, 8 heads × 16 to 2,048:a side, a window, its moments.
    """
    keys = max(problem.keys, 2)
    # torch.jit.trace makes tensors of sizes.
    depth = (int(keys) if isinstance(keys, Tensor) else keys).bit_length()
    span = problem.rows * (problem.queries + problem.keys)
    operations = span * (depth + 8 * (problem.value_width + 1)) * (3 if problem.gradient else 1)
    if two_pointer.compiled(problem):
        start, each = _walks(problem)
        return Cost(operations, span * 48, start + span * (depth * 0.001 + each * (problem.value_width + 8)))
    memory = span * (problem.value_width + 1) * 8 * 6
    return Cost(operations, memory, 250 + span * (depth * 4 + 12 * (problem.value_width + 1)) / 1000)


def _walks(problem: Problem) -> tuple[float, float]:
    """Microseconds of a call, and of a column of a query or key."""
    if problem.core == "distance":
        box = isinstance(problem.pointwise, BoxcarShape)
        if problem.gradient:
            return (450.0, 4.3e-3) if box else (700.0, 1.15e-2)
        return 190.0, 2.5e-3 if box else 3.5e-3
    both = problem.normalizer == "softmax" or (isinstance(problem.pointwise, Leaky) and problem.pointwise.slope > 0)
    if problem.gradient:
        return (900.0, 5.7e-3) if both else (700.0, 3.9e-3)
    return 200.0, 2.4e-3 if both else 1.5e-3


def run(problem: Problem, call: Call) -> Result:
    """Compute by compiled two-pointer passes where they apply, otherwise by prefix sums."""
    operands = _operands(problem, call)
    if _beyond(problem, operands):
        return blocked.run(problem, call)
    output, state = (two_pointer if two_pointer.serve(problem, operands) else prefix_sums).run(problem, operands)
    return Result(output.to(call.query.dtype), _state(problem, operands, state) if problem.state else None)


def tells(problem: Problem, call: Call) -> str:
    """Return a description of the method that is used."""
    operands = _operands(problem, call)
    if _beyond(problem, operands):
        return "distances by subtraction, as blocked does: keys are too far from 0"
    swept = two_pointer.serve(problem, operands)
    return "a compiled walk along sorted queries and keys" if swept else "prefix sums written by PyTorch"


_FARTHEST = 2.0**44
"""Keys are counted from the centers of cells as wide as the support. A center at so many bandwidths from 0 rounds to
2⁻⁹ of one, and a key keeps within a bandwidth of it; farther away it may lie anywhere, and its powers cancel."""


def _beyond(problem: Problem, operands: Operands) -> bool:
    """Whether some key is so far from 0 that a float64 does not tell cells from each other."""
    if not isinstance(problem.pointwise, EpanechnikovShape) or not (readable(operands.b) and readable(operands.scale)):
        return False
    low, high = operands.b.detach().aminmax()
    farthest = max(-low.item(), high.item()) * operands.scale.detach().max().item() ** 0.5
    return bool(farthest > _FARTHEST)


def _operands(problem: Problem, call: Call) -> Operands:
    query, key, scale, _ = call.score.prepare(call.query, call.key)
    leading = problem.leading
    # Half precision is decided and summed as float32, as the full matrix is.
    query, key, value = (x.float() if x.dtype.itemsize == 2 else x for x in (query, key, call.value))
    # A score may widen its operands.
    value = value.to(query.dtype)
    a, b = (x[..., 0].expand(*leading, x.shape[-2]) for x in (query, key))
    seen = call.visibility.keys_with_queries()
    scale = torch.as_tensor(scale, dtype=torch.float64, device=a.device)
    return Operands(
        a,
        b,
        value if value.shape[:-2] == leading else value.expand(*leading, *value.shape[-2:]),
        scale[..., 0] if scale.ndim else scale,
        None if seen is None else seen.expand_as(b),
        call.visibility.count(),
    )


def _state(problem: Problem, operands: Operands, state: Tensor) -> Tensor:
    wide = torch.float64 if problem.dtype == torch.float64 else torch.float32
    if problem.normalizer in ("sum", "softmax"):
        return state.to(wide)
    count = operands.seen.to(wide).expand(state.shape)
    own = count if problem.normalizer == "mean" else torch.zeros_like(count)
    return torch.where(state.isnan(), torch.nan, own)


BACKEND = Backend("sorted", "sorted keys and their running sums", refuses, cost, run, tells=tells)
