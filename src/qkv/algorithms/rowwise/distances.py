"""Squared distances: how they may be computed for the numbers of a call, so that no digits are lost.

‖q−k‖² = ‖q‖² + ‖k‖² − 2q·k is a product of q' = (−2q, ‖q‖², 1) and k' = (k, 1, ‖k‖²): a distance is a
dot product of slightly wider operands, and PyTorch differentiates the way from q to q'. It cancels where both norms are
large and their difference is small. The error is a few roundoffs of (‖q‖ + ‖k‖)². A pair one of whose norms is twice
the other or more has ‖q−k‖ ≥ (‖q‖ + ‖k‖)/3: its error is at most nine times the roundoff of its squared distance, which
the equation makes too. Only pairs whose norms are alike are in danger; with m ≤ M the largest norms of the two sides,
they have ‖q‖·‖k‖ ≤ m·min(M, 2m). So one vector far from all others, which is like none of the other side, endangers
nobody, as long as far distances do not count themselves: a kernel is 0 there, and so is a softmax in rows of near keys
(`shallow`).

- m·M/h² ≤ `NEAR`, or m·min(M, 2m)/h² ≤ `NEAR` where far distances do not count: products of the operands' own type.
  Their error, a few roundoffs of `NEAR`, is that of the equation itself at distances of that size. Without gradients,
  and for boxcars, tiles that stay in the caches take them (`qkv.algorithms.rowwise.distance_tiles`); softmax else, and
  Gaussians under their sum, go to PyTorch's fused kernel (`qkv.algorithms.rowwise.augmented_dot`).
- the smaller of max‖q−c‖²/h² and max‖k−c‖²/h² ≤ `cores.REACH` about the median of the keys: float64 products; the row's
  maximum is subtracted before anything is rounded.
  A root, 1 − (‖q−k‖/h)^p of p < 2, magnifies what is lost in small distances, be it one roundoff: its products are
  float64 ones at any distance from 0, and pairs so near each other that digits were lost are subtracted
  (`cores.resolve`). A power p > 2 is steeper by p/2, and its limits are smaller by that.
- else, and for float64, distances are subtracted, as `blocked` does.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from qkv.algorithms.rowwise import row_tiles
from qkv.algorithms.rowwise.squared_norms import Norms
from qkv.algorithms.rowwise.squared_norms import norms as squared_norms
from qkv.algorithms.tiled.cores import center
from qkv.compiled import available
from qkv.engine import mechanism
from qkv.engine.mechanism import DIFFERENTIABLE, Inputs, Mechanism
from qkv.engine.problem import Call, Problem
from qkv.engine.work import pairs_of
from qkv.scores.pointwise import BoxcarShape, EpanechnikovShape, NegativeHalf, rooted, steepness
from qkv.scores.widened import as_it_is

DEPTH = 80.0
"""The largest depth of an exponent: e^−87 is the least normal number of float32."""

NEAR, NEAR_EDGES = 4.0, 3.0
"""The largest ‖q‖·‖k‖/h² of norms alike for which products in the operands' own type are as exact as the equation; of a
kernel that falls to 0 at an edge, where a row of one small weight is divided by it."""

SAMPLE = 16
"""So many keys tell whether most lie on one side of 0. There Σ G(q − k), taken as qΣG − ΣGk, cancels in gradients
however small the norms are against h; about the middle of the keys it does not."""

_LARGEST = 1e37
"""Squared norms above this are left to float64: float32 ends at 3.4e38."""

Precision = Literal["single", "double", "none"]
"""How squared distances may be computed as products: in the operands' own dtype, in float64, or not at all."""


class Distances(NamedTuple):
    """What the numbers of a call say about its distances.

    Attributes:
        mechanism: what is computed.
        inputs: the tensors as given, at least float32.
        centered: the same, shifted towards 0 where gradients would cancel otherwise.
        norms: squared norms of the centered queries and keys.
        far: max‖q‖² and max‖k‖².
        scale: 1/h².
        precision: how distances may be computed as products.
        shallow: whether each row has a key whose score is not far below 0.
        middle: the center of the keys, (..., 1, F), for products in float64.
    """

    mechanism: Mechanism
    inputs: Inputs
    centered: Inputs
    norms: Norms
    far: tuple[float, float]
    scale: float | Tensor
    precision: Precision
    shallow: bool
    middle: Tensor | None

    @property
    def why_not_single(self) -> str:
        """The reason why products in the operands' own dtype lose digits."""
        return "some points are not finite, or too far from 0 or from each other for products in single precision"


def refuses(problem: Problem) -> str | None:
    """Return why no algorithm of this folder computes a problem of distances; None if one may."""
    reasons = (
        (problem.core != "distance", f"the core is {problem.core}, not distance"),
        (problem.dtype == torch.float64, "distances in float64 are subtracted"),
        (problem.device != "cpu", "the kernels run on the CPU"),
        (problem.mode != "eager", "compiled kernels serve eager calls"),
        (problem.empty, "an axis is empty"),
    )
    return next((reason for holds, reason in reasons if holds), None) or available.why_unavailable()


def describe(facts: Distances) -> str:
    """Say how distances are computed, for `explain`."""
    return {
        "single": "the guard on ‖q‖·‖k‖/h² holds: distances as products in single precision",
        "double": "operands are too far from 0 for single precision: distances as products in double precision",
        "none": "operands are too far apart for products: distances are subtracted",
    }[facts.precision]


def inspect(problem: Problem, call: Call) -> Distances:
    """Find out how the distances of a call may be computed: one pass over queries and keys."""
    recipe, inputs = mechanism.prepare_inputs(problem, call)
    scale = recipe.factor if inputs.scale is None else inputs.scale
    if inputs.query.dtype == torch.float64:
        # The score widened its operands, which leave float32.
        nothing = inputs.query.new_zeros(1, 1)
        return Distances(
            recipe, inputs, inputs, Norms(nothing, nothing), (torch.inf, torch.inf), scale, "none", False, None
        )
    given = [None if x is None else x.float() if x.ndim else x for x in inputs[:DIFFERENTIABLE]]
    inputs = Inputs(*given, inputs.seed)  # type: ignore[arg-type, call-arg]
    scale = recipe.factor if inputs.scale is None else inputs.scale
    with as_it_is(inputs.query):
        query, key, norms = _sides(problem, inputs.query, inputs.key)
        with torch.no_grad():
            far = _far(norms)
            near = shallow(far, norms[1], scale, problem.mask == "all")
            steep = steepness(problem.pointwise)
            own = _single(far, scale, near or _vanishes(problem), _nearness(problem))
            middle = None if own else center(inputs.query, inputs.key, scale, steep)
    precision: Precision = "single" if own else "none" if middle is None else "double"
    centered = inputs._replace(query=query, key=key)
    return Distances(recipe, inputs, centered, norms, far, scale, precision, near, middle)


def _sides(problem: Problem, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, Norms]:
    """Queries and keys, about the middle of some where that counts, and their squared norms."""
    pulled = (query.requires_grad or key.requires_grad) and not isinstance(problem.pointwise, BoxcarShape)
    widened = _small(problem)
    if problem.gradient and pulled:
        return _nearer(query, key, widened)
    with torch.no_grad():
        return query, key, squared_norms(query, key, widened)


def _nearer(query: Tensor, key: Tensor, widened: bool) -> tuple[Tensor, Tensor, Norms]:
    """Both sides about the middle of some keys where most lie on one side of 0 (`SAMPLE`), and their squared norms."""
    with torch.no_grad():
        norms = squared_norms(query, key, widened)
        less, more = sorted(_far(norms))
        some = key[..., :: max(1, key.shape[-2] // SAMPLE), :]
        # A median takes longer; no far key moves it.
        middle = some.mean(-2, keepdim=True) if more <= 4 * less else some.median(-2, keepdim=True).values
        lengths = torch.linalg.vector_norm(some, dim=-1).median(-1).values
        # False where there is a NaN.
        aside = 2**0.5 * torch.linalg.vector_norm(middle, dim=(-2, -1)) > lengths
        if not bool(aside.any()):
            return query, key, norms
        middle = torch.where(aside[..., None, None], middle, 0)
    query, key = query - middle, key - middle
    return query, key, squared_norms(query.detach(), key.detach(), widened)


def _small(problem: Problem) -> bool:
    """Return whether all pairs are one tile: the operands of products are then made in the same pass as the norms."""
    return problem.gradient and pairs_of(problem) <= row_tiles.SIZE.pairs


def _vanishes(problem: Problem) -> bool:
    """Whether the score is 0 at far distances."""
    return not isinstance(problem.pointwise, NegativeHalf)


def guard(query: Tensor, key: Tensor, scale: float | Tensor) -> Precision:
    """Say how squared distances may be computed.

    Args:
        query: (..., Q, F).
        key: (..., K, F).
        scale: 1/h², of a softmax over all keys.

    Returns:
        See the module.

    Example:
        >>> x = torch.ones(40, 8)
        >>> guard(x, x, 0.1), guard(x, x, 100.0), guard(x, 1e9 * x * torch.arange(40.0)[:, None], 1.0)
        ('single', 'double', 'none')
    """
    norms = squared_norms(query, key, widened=False)
    far = _far(norms)
    if _single(far, scale, shallow(far, norms[1], scale, True), NEAR):
        return "single"
    return "none" if center(query, key, scale, 1.0) is None else "double"


def _far(norms: Norms) -> tuple[float, float]:
    """The largest of both sides."""
    return float(norms[0].max()), float(norms[1].max())


def _nearness(problem: Problem) -> float:
    """How near a score wants points to be for products in their own type; no point is near enough for a root."""
    if rooted(problem.pointwise):
        return -1.0
    return (NEAR_EDGES if isinstance(problem.pointwise, EpanechnikovShape) else NEAR) / steepness(problem.pointwise)


def _single(far: tuple[float, float], scale: float | Tensor, near_counts: bool, nearness: float) -> bool:
    """Return whether products in the operands' own dtype are as exact as the equation.

    Args:
        far: max‖q‖² and max‖k‖².
        scale: 1/h².
        near_counts: whether distances between vectors far apart do not count.
        nearness: the largest ‖q‖·‖k‖/h² of norms alike.
    """
    steepest = float(scale.max()) if isinstance(scale, Tensor) else scale
    less, more = sorted(far)
    most = min(more, 4 * less) if near_counts else more
    return more * max(1.0, steepest) <= _LARGEST and (less * most) ** 0.5 * steepest <= nearness


def shallow(far: tuple[float, float], of_key: Tensor, scale: float | Tensor, all_seen: bool) -> bool:
    """Return whether each row has a key whose score is not far below 0.

    Args:
        far: max‖q‖² and max‖k‖².
        of_key: ‖k‖², (..., K, 1).
        scale: 1/h².
        all_seen: whether every row may see every key, the nearest too.

    Returns:
        Whether (‖q‖ + ‖k‖)²/2h² ≤ `DEPTH` for all queries and the key of least norm or, if a row may not see that key,
        all keys; False if a norm is NaN.

    Example:
        >>> far = torch.tensor([[8.0], [8e4]])
        >>> shallow((8.0, 8e4), far, 0.1, True), shallow((8.0, 8e4), far, 0.1, False)
        (True, False)
    """
    steepest = float(scale.max()) if isinstance(scale, Tensor) else scale
    # Nearly always all keys are near enough, and the least norms need not be computed.
    return _above(far[0], far[1], steepest) or (
        all_seen and far[1] == far[1] and _above(far[0], float(of_key.amin(-2).max()), steepest)
    )


def _above(of_query: float, of_key: float, scale: float) -> bool:
    farthest: float = of_query**0.5 + of_key**0.5
    return farthest**2 * scale / 2 <= DEPTH
