"""Squared distances of a full matrix in few operators, as exact as subtraction.

A call of a few dozen keys takes as long as its operators take to start. Up to `DIFFERENCES` hidden features the keys
are subtracted from the queries. Above, ‖q−k‖² = ‖q‖² + ‖k‖² − 2q·k is computed in float64, where it cancels too little
to matter if the norms of one side are small in units of the bandwidth (`centering.REACH`). A root magnifies the errors
of small distances, so those are subtracted again. Otherwise the equation serves.
"""

import torch
from torch import Tensor

from qkv.engine.autograd import with_zero_gradients
from qkv.engine.work import DIFFERENCES
from qkv.linalg.centering import NEARBY, REACH, center
from qkv.scores.base import Score, wide, without_autocast
from qkv.scores.kernels import Boxcar
from qkv.scores.pointwise import Pointwise, rooted, steepness
from qkv.values.execution import mode_of


def scores(score: Score, query: Tensor, key: Tensor) -> Tensor | None:
    """Compute the scores of a kernel or squared distance in few operators.

    Args:
        score: any score.
        query: (..., Q, D).
        key: (..., K, D).

    Returns:
        (..., Q, K), in float32; None if only the literal equation serves: for other scores, float64, tracing, and
        points too far apart.

    Example:
        >>> from qkv.scores.kernels import Gaussian
        >>> scores(Gaussian(), torch.zeros(1, 2), torch.tensor([[0.0, 2.0]]))
        tensor([[0.1353]])
    """
    if type(score) is Boxcar:
        # A step has no slope, so that no gradient passes through the distances.
        with torch.no_grad():
            distances = squared_distances(score, query, key)
        leaves = (query, key, score.bandwidth)
        return None if distances is None else with_zero_gradients(score.pointwise(distances), leaves)
    distances = squared_distances(score, query, key)
    return None if distances is None else score.pointwise(distances)


def squared_distances(score: Score, query: Tensor, key: Tensor) -> Tensor | None:
    """Compute ‖q−k‖²/h²; None as for `scores`.

    Example:
        >>> from qkv.scores.kernels import Gaussian
        >>> squared_distances(Gaussian(2.0), torch.zeros(1, 2), torch.tensor([[0.0, 2.0]]))
        tensor([[1.]])
    """
    eager = score.core == "distance" and mode_of(query, key) == "eager" and query.is_cpu
    if not eager or query.dtype == torch.float64 or 0 in (*query.shape, *key.shape):
        return None
    query, key, scale, _ = score.prepare(wide(query), wide(key))
    if query.dtype == torch.float64:
        # The bandwidth is near the limits of float32.
        return None
    with without_autocast(query):
        if max(query.numel() * key.shape[-2], key.numel() * query.shape[-2]) <= DIFFERENCES:
            return _scaled(_by_subtraction(query, key), scale)
        return _by_products(query, key, scale, score.pointwise)


def _by_subtraction(query: Tensor, key: Tensor) -> Tensor:
    if query.shape[-1] == 1:
        return (query - key.mT).square()
    difference = query.unsqueeze(-2) - key.unsqueeze(-3)
    return _squared_norms(difference)


def _by_products(query: Tensor, key: Tensor, scale: float | Tensor, pointwise: Pointwise) -> Tensor | None:
    """Compute ‖q−k‖²/h² from products in float64, rounded once; None where that may lose digits of float32.

    A pair cancels only if both of its vectors are long, so the shorter side bounds the error. Points far from 0 are
    shifted to the median of the keys.
    """
    steep = steepness(pointwise)
    a, b = query.double(), key.double()
    a_norms, b_norms = _squared_norms(a), _squared_norms(b)
    lengths = [float(norms.detach().max()) for norms in (a_norms, b_norms)]
    largest_scale = float(scale.detach().max()) if isinstance(scale, Tensor) else scale
    if not (lengths[0] < torch.inf and lengths[1] < torch.inf):
        # NaN too.
        return None
    if min(lengths) * largest_scale * steep > REACH:
        middle = center(query.detach(), key.detach(), scale, steep)
        if middle is None:
            return None
        a, b = a - middle, b - middle
        a_norms, b_norms = _squared_norms(a), _squared_norms(b)
    norms = a_norms[..., :, None] + b_norms[..., None, :]
    if a.ndim == b.ndim == 3 and a.shape[0] == b.shape[0]:
        distances = torch.baddbmm(norms, a, b.mT, alpha=-2)
    else:
        distances = norms.sub(a @ b.mT, alpha=2)
    if rooted(pointwise):
        distances = _recompute_small(distances, a, b, a_norms)
    return _scaled(distances, scale).to(torch.float32)


def _recompute_small(distances: Tensor, a: Tensor, b: Tensor, a_norms: Tensor) -> Tensor:
    """Return squared distances, recomputed by subtraction where products have lost digits."""
    lost = (distances.detach() < a_norms.detach().unsqueeze(-1) * NEARBY).nonzero(as_tuple=True)
    if lost[0].numel() == 0:
        return distances
    *items, row, column = lost
    leading = distances.shape[:-2]
    a, b = a.expand(*leading, *a.shape[-2:]), b.expand(*leading, *b.shape[-2:])
    return distances.index_put(lost, _squared_norms(a[(*items, row)] - b[(*items, column)]))


def _squared_norms(x: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vecdot(x, x)
    return norms


def _scaled(x: Tensor, scale: float | Tensor) -> Tensor:
    """Multiply new numbers, in place where that needs no memory for a gradient."""
    if isinstance(scale, Tensor):
        return x * scale
    return x if scale == 1 else x.mul_(scale)
