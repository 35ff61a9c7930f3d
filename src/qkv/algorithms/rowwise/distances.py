"""Decide how squared distances are computed, from the numbers of a call, so that no digits are lost.

‖q−k‖² = ‖q‖² + ‖k‖² − 2q·k is the dot product of q' = (−2q, ‖q‖², 1) and k' = (k, 1, ‖k‖²), whose gradients reach q and
k through autograd. It cancels if both norms are large and their difference is small: the error is a few roundoffs of
(‖q‖ + ‖k‖)². If one norm is at least twice the other, ‖q−k‖ ≥ (‖q‖ + ‖k‖)/3, and the error is at most nine roundoffs of
the squared distance, as in the equation itself. So only pairs of similar norms lose digits. With m ≤ M the largest
norms of the two sides, such pairs have ‖q‖·‖k‖ ≤ m·min(M, 2m). A single vector far from all others therefore does no
harm if large distances do not contribute: a kernel is 0 there, and so are softmax weights in rows that also have near
keys (`no_row_underflows`).

- If m·M/h² ≤ `NEAR`, or m·min(M, 2m)/h² ≤ `NEAR` where large distances do not contribute, products in the operands' own
  dtype are exact enough: their error, a few roundoffs of `NEAR`, is that of the equation at such distances. Without
  gradients, and for boxcars, `qkv.algorithms.rowwise.distance_tiles` computes them; other softmax weights, and
  Gaussians divided by their sum, are computed by PyTorch's fused kernel (`qkv.algorithms.rowwise.augmented_dot`).
- Else, if min(max‖q−c‖², max‖k−c‖²)/h² ≤ `centering.REACH` with c the median of the keys, products in float64 are exact
  enough; the row's maximum is subtracted before anything is rounded to float32. Roots, 1 − (‖q−k‖/h)^p with p < 2,
  amplify even one roundoff of a small distance: their products are always float64, and distances so small that they
  lost digits are computed again by subtraction (`cores.recompute_small_distances`). A power p > 2 is steeper by a
  factor of p/2, which divides its limits.
- Else, and for float64 inputs, distances are subtracted, as `tiled.blocked` does.
"""

from math import isnan
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from qkv.engine.mechanism import Inputs, Mechanism, prepare_inputs
from qkv.engine.problem import Call, Problem, first_reason, is_not
from qkv.linalg.centering import center, median_key
from qkv.scores.base import without_autocast
from qkv.scores.pointwise import BoxcarShape, EpanechnikovShape, NegativeHalf, rooted, steepness

DEPTH = 80.0
"""The largest magnitude of an exponent: e^−87 is the smallest normal number of float32."""

NEAR, NEAR_EDGES = 4.0, 3.0
"""The largest ‖q‖·‖k‖/h² of similar norms for which products in the operands' own dtype are as exact as the equation.

The second is for kernels of bounded support, where a row may be divided by a single small weight.
"""

SAMPLE = 16
"""How many keys are sampled to decide whether most lie on one side of 0.

If so, the gradient Σ G(q − k) cancels when computed as qΣG − ΣGk, however small the norms are compared with h; after
centering the keys it does not.
"""

_LARGEST = 1e37
"""Squared norms above this are left to float64: float32 ends at 3.4e38."""

Precision = Literal["single", "double", "none"]
"""How squared distances may be computed as products: in the operands' own dtype, in float64, or not at all."""


class Norms(NamedTuple):
    """The squared norms of queries and keys, (..., Q, 1) and (..., K, 1)."""

    query: Tensor
    key: Tensor


class Distances(NamedTuple):
    """How the distances of a call are computed, with the tensors that this needs.

    Attributes:
        mechanism: what is computed.
        inputs: the tensors of the call, cast to at least float32.
        centered: the same, shifted to the center of the keys if gradients would cancel otherwise.
        norms: squared norms of the centered queries and keys.
        max_norms: max‖q‖² and max‖k‖².
        scale: 1/h².
        precision: how distances may be computed as products.
        no_row_underflows: whether each row has a key whose score is not far below 0.
        center: the center of the keys, (..., 1, F), for products in float64; None if these are not exact enough.
    """

    mechanism: Mechanism
    inputs: Inputs
    centered: Inputs
    norms: Norms
    max_norms: tuple[float, float]
    scale: float | Tensor
    precision: Precision
    no_row_underflows: bool
    center: Tensor | None


WHY_NOT_SINGLE = "some points are not finite, or too far from 0 or from each other for products in single precision"


def refuses(problem: Problem) -> str | None:
    """Return why no algorithm of this folder computes a problem over distances; None if one may."""
    return first_reason(
        is_not(problem, "distance"),
        (problem.dtype == torch.float64, "distances in float64 are subtracted"),
        (problem.device != "cpu", "the kernels run on the CPU"),
        (problem.mode != "eager", "compiled kernels serve eager calls"),
        (problem.empty, "an axis is empty"),
    )


def describe(facts: Distances) -> str:
    """Say how distances are computed, for `explain`."""
    return {
        "single": "the guard on ‖q‖·‖k‖/h² holds: distances as products in single precision",
        "double": "operands are too far from 0 for single precision: distances as products in double precision",
        "none": "operands are too far apart for products: distances are subtracted",
    }[facts.precision]


def inspect(problem: Problem, call: Call) -> Distances:
    """Decide how the distances of a call are computed, in one pass over queries and keys."""
    mechanism, inputs = prepare_inputs(problem, call)
    scale = mechanism.factor if inputs.scale is None else inputs.scale
    if inputs.query.dtype == torch.float64:
        # The score cast its operands to float64, because they exceed float32.
        nothing = inputs.query.new_zeros(1, 1)
        return Distances(
            mechanism, inputs, inputs, Norms(nothing, nothing), (torch.inf, torch.inf), scale, "none", False, None
        )
    inputs = inputs.cast(torch.float32)
    scale = mechanism.factor if inputs.scale is None else inputs.scale
    with without_autocast(inputs.query):
        query, key, norms = _centered(problem, inputs.query, inputs.key)
        with torch.no_grad():
            max_norms = _max_norms(norms)
            no_underflow = no_row_underflows(max_norms, norms[1], scale, problem.mask == "all")
            far_pairs_are_zero = no_underflow or not isinstance(problem.pointwise, NegativeHalf)
            single = _single_is_exact(max_norms, scale, far_pairs_are_zero, _norm_limit(problem))
            slope = steepness(problem.pointwise)
            key_center = None if single else center(inputs.query, inputs.key, scale, slope)
    precision: Precision = "single" if single else "none" if key_center is None else "double"
    centered = inputs._replace(query=query, key=key)
    return Distances(mechanism, inputs, centered, norms, max_norms, scale, precision, no_underflow, key_center)


def _centered(problem: Problem, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, Norms]:
    """Return queries and keys, and their squared norms.

    The center of a sample of the keys is subtracted where most keys lie on one side of 0 (`SAMPLE`) and the gradients
    would cancel.
    """
    norms = squared_norms(query, key)
    learns = (query.requires_grad or key.requires_grad) and not isinstance(problem.pointwise, BoxcarShape)
    if not (problem.gradient and learns):
        return query, key, norms
    with torch.no_grad():
        smaller, larger = sorted(_max_norms(norms))
        sample = key[..., :: max(1, key.shape[-2] // SAMPLE), :]
        # The median is slower than the mean, but an outlier does not move it.
        middle = sample.mean(-2, keepdim=True) if larger <= 4 * smaller else median_key(sample)
        lengths = torch.linalg.vector_norm(sample, dim=-1).median(-1).values
        # False if there is a NaN.
        off_center = 2**0.5 * torch.linalg.vector_norm(middle, dim=(-2, -1)) > lengths
        if not bool(off_center.any()):
            return query, key, norms
        middle = torch.where(off_center[..., None, None], middle, 0)
    query, key = query - middle, key - middle
    return query, key, squared_norms(query, key)


@torch.no_grad()
def squared_norms(query: Tensor, key: Tensor) -> Norms:
    """Return the squared norms of queries (..., Q, F) and keys (..., K, F)."""
    return Norms(_squared(query), _squared(key))


def _squared(x: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vecdot(x, x)
    return norms.unsqueeze(-1)


def distance_operands(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Return operands whose dot products are squared distances: (−2q, ‖q‖², 1) and (k, 1, ‖k‖²).

    Example:
        >>> query, key = distance_operands(torch.ones(1, 1), torch.full((1, 1), 3.0))
        >>> query @ key.mT
        tensor([[4.]])
    """
    query_norms, key_norms = _squared(query), _squared(key)
    return (
        torch.cat([query * -2, query_norms, torch.ones_like(query_norms)], -1),
        torch.cat([key, torch.ones_like(key_norms), key_norms], -1),
    )


def _max_norms(norms: Norms) -> tuple[float, float]:
    """Return max‖q‖² and max‖k‖²."""
    return float(norms[0].max()), float(norms[1].max())


def _norm_limit(problem: Problem) -> float:
    """Return the limit of ‖q‖·‖k‖/h² for products in the operands' own dtype; roots never allow them."""
    if rooted(problem.pointwise):
        return -1.0
    return (NEAR_EDGES if isinstance(problem.pointwise, EpanechnikovShape) else NEAR) / steepness(problem.pointwise)


def _single_is_exact(
    max_norms: tuple[float, float], scale: float | Tensor, far_pairs_are_zero: bool, limit: float
) -> bool:
    """Return whether products in the operands' own dtype are as exact as the equation.

    Args:
        max_norms: max‖q‖² and max‖k‖².
        scale: 1/h².
        far_pairs_are_zero: whether pairs far apart have weight 0.
        limit: the largest ‖q‖·‖k‖/h² of similar norms.
    """
    max_scale = float(scale.max()) if isinstance(scale, Tensor) else scale
    smaller, larger = sorted(max_norms)
    similar = min(larger, 4 * smaller) if far_pairs_are_zero else larger
    return larger * max(1.0, max_scale) <= _LARGEST and (smaller * similar) ** 0.5 * max_scale <= limit


def no_row_underflows(
    max_norms: tuple[float, float], key_norms: Tensor, scale: float | Tensor, all_visible: bool
) -> bool:
    """Return whether each row has a key whose score is not far below 0.

    Args:
        max_norms: max‖q‖² and max‖k‖².
        key_norms: ‖k‖², (..., K, 1).
        scale: 1/h².
        all_visible: whether every row may see every key, including the one of smallest norm.

    Returns:
        True if (‖q‖ + ‖k‖)²/2h² ≤ `DEPTH` for all queries and the key of smallest norm or, if some row may not see that
        key, all keys; False if a norm is NaN.

    Example:
        >>> norms = torch.tensor([[8.0], [8e4]])
        >>> no_row_underflows((8.0, 8e4), norms, 0.1, True), no_row_underflows((8.0, 8e4), norms, 0.1, False)
        (True, False)
    """
    max_scale = float(scale.max()) if isinstance(scale, Tensor) else scale
    query_norm, key_norm = max_norms
    # Nearly always all keys are near enough, and the smallest norms need not be computed.
    return _within_depth(query_norm, key_norm, max_scale) or (
        all_visible and not isnan(key_norm) and _within_depth(query_norm, float(key_norms.amin(-2).max()), max_scale)
    )


def _within_depth(query_norm: float, key_norm: float, scale: float) -> bool:
    """Return whether (‖q‖ + ‖k‖)²/2h² ≤ `DEPTH`, given ‖q‖², ‖k‖² and 1/h²."""
    largest_distance: float = query_norm**0.5 + key_norm**0.5
    return largest_distance**2 * scale / 2 <= DEPTH
