"""Scores of one number per query and key, by sorting the keys and summing them once.

If a score is a polynomial of the key on each side of a boundary (a rectified sum, a kernel of bounded support), the
weighted sum over all keys is a difference of prefix sums over the sorted keys: O((N + M) log M) instead of O(N·M).
Eager calls on the CPU use a compiled two-pointer pass over sorted queries and keys (`two_pointer`); all others compute
the prefix sums with PyTorch operators (`prefix_sums`). Both keep sums in float64 and find boundaries by the score's own
predicate.
"""

from math import isfinite
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.algorithms.sorted import prefix_sums
from qkv.algorithms.sorted.prefix_sums import LineOperands
from qkv.compiled import available
from qkv.engine.algorithm import Algorithm, Result, Work
from qkv.engine.problem import Call, Problem, core_text, first_reason
from qkv.engine.work import pairs_of
from qkv.scores.pointwise import BoxcarShape, EpanechnikovShape, Leaky

FEW_PAIRS = 1 << 25
"""Up to so many pairs, four tiles, tiles take fewer launches on a GPU than the steps of a bisection."""


def refuses(problem: Problem) -> str | None:
    """Accept only scores that are polynomials of one sorted number on each side of a boundary."""
    is_polynomial = isinstance(problem.pointwise, BoxcarShape) or (
        isinstance(problem.pointwise, EpanechnikovShape) and problem.pointwise.power in (1, 2)
    )
    allowed = ("mean", "identity", "softmax") if problem.core == "relu_sum" else ("sum", "mean", "identity")
    return first_reason(
        (
            problem.core not in ("relu_sum", "distance"),
            f"the scores are {core_text(problem.core)}: their keys have no order",
        ),
        (problem.core == "distance" and problem.width != 1, "points of several dimensions have no order"),
        (problem.core == "distance" and not is_polynomial, f"{problem.pointwise} scores are not polynomials"),
        (problem.normalizer not in allowed, f"the normalizer is {problem.normalizer}"),
        (problem.sink, "the softmax has a sink"),
        (problem.bias != "none", "a bias is added to the scores"),
        (0 in (problem.rows, problem.queries, problem.keys), "an axis is empty"),
        (problem.dropout, "dropout draws for each weight"),
        (problem.mask not in ("all", "keys"), f"a mask of the kind {problem.mask} differs by row"),
        (problem.device == "cuda" and pairs_of(problem) <= FEW_PAIRS, "on a GPU tiles of so few pairs are faster"),
    )


def _refuses_two_pointer(problem: Problem) -> str | None:
    if problem.mode != "eager" or problem.device != "cpu":
        return "compiled passes serve eager calls on the CPU"
    return refuses(problem)


def _refuses_prefix_sums(problem: Problem) -> str | None:
    """Refuse what `refuses` does, and kernels in float64.

    A kernel's sums are differences of sums over all keys, whose roundings grow with the number of keys. Coordinates in
    float32 leave 29 bits to them, those in float64 none.
    """
    if problem.core == "distance" and problem.dtype == torch.float64:
        return "in float64, differences of prefix sums have fewer digits than the scores"
    return refuses(problem)


def _work_of_two_pointer(problem: Problem) -> Work:
    span, kind = problem.rows * (problem.queries + problem.keys), _kind(problem)
    counts = {"comparisons": span * _depth(problem), f"columns of {kind}": span * (problem.value_width + 8)}
    return Work(_operations(problem), span * 48, {f"calls of {kind}": 1, **counts})


def _work_of_prefix_sums(problem: Problem) -> Work:
    span = problem.rows * (problem.queries + problem.keys)
    counts = {"comparisons": span * _depth(problem), f"columns of {_kind(problem)}": span * (problem.value_width + 1)}
    return Work(_operations(problem), span * (problem.value_width + 1) * 8 * 6, counts)


def _operations(problem: Problem) -> int:
    """Estimate a sort, and sums of each column from both ends."""
    span = problem.rows * (problem.queries + problem.keys)
    return span * (_depth(problem) + 8 * (problem.value_width + 1)) * (3 if problem.gradient else 1)


def _depth(problem: Problem) -> int:
    keys = max(problem.keys, 2)
    # torch.jit.trace makes tensors of sizes.
    return (int(keys) if isinstance(keys, Tensor) else keys).bit_length()


def _kind(problem: Problem) -> str:
    """Name the sums that are computed: one side of a boundary or both, or a window."""
    if problem.core == "distance":
        return "boxcar" if isinstance(problem.pointwise, BoxcarShape) else "epanechnikov"
    both = problem.normalizer == "softmax" or (isinstance(problem.pointwise, Leaky) and problem.pointwise.slope > 0)
    return "both sides" if both else "one side"


class Sorted(NamedTuple):
    """The operands of a call, and whether they can be sorted.

    Attributes:
        operands: the coordinates of queries and keys, and the values.
        finite: whether all coordinates are known to be finite, so that they can be sorted.
        resolvable: whether every key is so near 0 that float64 resolves cells as wide as the support there.
    """

    operands: LineOperands
    finite: bool
    resolvable: bool


def inspect(problem: Problem, call: Call) -> Sorted:
    """Prepare the operands, and check their magnitude in eager calls."""
    operands = _operands(problem, call)
    if problem.mode != "eager" or problem.device != "cpu":
        return Sorted(operands, False, True)
    finite = all(isfinite(x.detach().sum(dtype=torch.float64).item()) for x in operands[:2])
    finite = finite and isfinite(operands.scale.detach().sum(dtype=torch.float64).item())
    return Sorted(operands, finite, not _has_far_keys(problem, operands))


def _declines_two_pointer(problem: Problem, facts: Sorted) -> str | None:
    if not facts.finite:
        return "NaN and infinities cannot be sorted"
    return _declines_far(problem, facts)


def _declines_far(problem: Problem, facts: Sorted) -> str | None:
    return None if facts.resolvable else "some keys are so far from 0 that the support around them has no digits"


def _run_two_pointer(problem: Problem, call: Call, facts: Sorted) -> Result:
    from qkv.algorithms.sorted import two_pointer

    return _finish(problem, call, facts.operands, two_pointer.run(problem, facts.operands))


def _run_prefix_sums(problem: Problem, call: Call, facts: Sorted) -> Result:
    return _finish(problem, call, facts.operands, prefix_sums.run(problem, facts.operands))


def _finish(problem: Problem, call: Call, operands: LineOperands, sums: tuple[Tensor, Tensor]) -> Result:
    output, state = sums
    return Result(output.to(call.query.dtype), _state(problem, operands, state) if problem.state else None)


_MAX_COORDINATE = 2.0**44
"""The largest distance of a key from 0, in bandwidths.

Keys are measured from the centers of cells as wide as the support. At this distance a center is rounded to 2⁻⁹
bandwidths, and a key stays within a bandwidth of it; farther away it may not, and the powers of its coordinate cancel.
"""


def _has_far_keys(problem: Problem, operands: LineOperands) -> bool:
    """Return whether some key is so far from 0 that float64 does not resolve cells there."""
    if not isinstance(problem.pointwise, EpanechnikovShape):
        return False
    low, high = operands.b.detach().aminmax()
    farthest = max(-low.item(), high.item()) * operands.scale.detach().max().item() ** 0.5
    return bool(farthest > _MAX_COORDINATE)


def _operands(problem: Problem, call: Call) -> LineOperands:
    query, key, scale, _ = call.score.prepare(call.query, call.key)
    leading = problem.leading
    # In half precision boundaries and sums are computed in float32, as they are for the full matrix.
    query, key, value = (x.float() if x.dtype.itemsize == 2 else x for x in (query, key, call.value))
    # A score may compute its operands in a wider dtype.
    value = value.to(query.dtype)
    a, b = (x[..., 0].expand(*leading, x.shape[-2]) for x in (query, key))
    visible = call.visibility.keys_with_queries()
    scale = torch.as_tensor(scale, dtype=torch.float64, device=a.device)
    return LineOperands(
        a,
        b,
        value if value.shape[:-2] == leading else value.expand(*leading, *value.shape[-2:]),
        scale[..., 0] if scale.ndim else scale,
        None if visible is None else visible.expand_as(b),
        call.visibility.count(),
    )


def _state(problem: Problem, operands: LineOperands, state: Tensor) -> Tensor:
    if problem.normalizer in ("sum", "softmax"):
        return state.double()
    count = operands.visible_count.double().expand(state.shape)
    ordinary = count if problem.normalizer == "mean" else torch.zeros_like(count)
    return torch.where(state.isnan(), torch.nan, ordinary)


TWO_POINTER = Algorithm(
    "sorted.two_pointer",
    "sorted",
    "one compiled pass along sorted queries and keys",
    _refuses_two_pointer,
    _work_of_two_pointer,
    _run_two_pointer,
    inspect,
    _declines_two_pointer,
    kernels=available.why_unavailable,
)
PREFIX_SUMS = Algorithm(
    "sorted.prefix_sums",
    "sorted",
    "prefix sums of the sorted keys by PyTorch operators",
    _refuses_prefix_sums,
    _work_of_prefix_sums,
    _run_prefix_sums,
    inspect,
    _declines_far,
)
