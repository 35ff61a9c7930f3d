"""Confidence intervals of a kernel smoother, where its points support one: of a point, or of the whole curve.

| interval | covers | from |
|---|---|---|
| "robust" | the true curve | the fit of one degree more, which has less bias, and its own spread |
| "normal" | the smoothed curve E f(x): what the bandwidth smooths away is a bias that it does not show | the fit |
| "bootstrap" | the smoothed curve | fits to resampled rows |
"""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from qkv.errors import ConfigError
from qkv.models.smoother import KernelSmoother, polynomial_features

_ALONE = 0.999
"""The weight from which a single point gives no interval."""
_CURVE = 512
_DRAWS = 2000
_TABLES = 400
"""Resampled tables of a bootstrap."""


@final
@dataclass(frozen=True)
class MergedRows:
    """The rows of a table, of which equal ones are one point.

    Args:
        smoother: the estimate; its targets are the means of each point's rows, its weights their sums.
        counts: how many rows each point has (n,).
        row_weights: the weight of each of its rows (n,).
        deviations: the sums over its rows of the squared deviations from their mean (n, outputs).
        point_of: the point of each row (rows,).
    """

    smoother: KernelSmoother
    counts: Tensor
    row_weights: Tensor
    deviations: Tensor
    point_of: Tensor


class IntervalEnds(NamedTuple):
    """Lower and upper ends (m, outputs)."""

    low: Tensor
    high: Tensor


def normal_interval(
    points: MergedRows, query: Tensor, squares: Tensor, level: float, degree: int, *, simultaneous: bool = False
) -> IntervalEnds:
    """f(x) ± z·σ(x)·‖l(x)‖ with σ²(x) = Σᵢ wᵢ(x) eᵢ²: the estimate Σ lᵢ(x) yᵢ is a sum of independent targets.

    With the degree of the estimate this covers E f(x), the smoothed curve. With one degree more, at the same bandwidth,
    bias is of a smaller order than the spread: this is the robust bias-corrected interval, which covers the true curve.

    Args:
        points: the estimate f, with kernel weights w.
        query: x (m, D).
        squares: e², the mean square of each point's leave-one-out errors (n, outputs); NaN where that is unknown: such
            a point takes no part in σ².
        level: the probability of covering, between 0 and 1.
        degree: of the polynomial.
        simultaneous: whether to cover the whole curve over the range of the points with that probability: z is then the
            quantile of the largest of the |deviations| of the curve, simulated with normal errors.

    Returns:
        The ends; NaN where there is no interval, see `unsupported`, or where no point with a residual has any weight.

    Raises:
        ConfigError: the level is outside its range.

    Source: Wasserman 2006, "All of Nonparametric Statistics", sections 5.6 and 5.7; the variance that depends on x:
        Härdle 1990, "Applied nonparametric regression", section 4.2; robust: Calonico, Cattaneo and Farrell 2018, "On
        the effect of bias estimation on coverage accuracy", with b = h; simultaneous: Ruppert, Wand and Carroll 2003,
        "Semiparametric Regression", section 6.5.
    """
    _check(level)
    z = _curve_quantile(points, degree, level) if simultaneous else -NormalDist().inv_cdf((1 - level) / 2)
    targets, known = points.smoother.targets, squares.isfinite()
    weighted = torch.where(known, squares, 0) * points.row_weights[:, None]
    low, high = (targets.new_empty(len(query), targets.shape[1]) for _ in range(2))
    for rows, keys, kernel, weights, _ in points.smoother.tiles(query, degree):
        variance = (kernel @ weighted[keys]) / (kernel @ known[keys].to(targets))  # 0/0 where no error is known
        spread = (variance * (weights.square() @ _variances(points)[keys])[:, None]).sqrt()
        spread = torch.where(_no_interval(points, query[rows], kernel, keys)[:, None], math.nan, z * spread)
        estimate = weights @ targets[keys]
        low[rows], high[rows] = estimate - spread, estimate + spread
    return IntervalEnds(low, high)


def bootstrap_interval(points: MergedRows, query: Tensor, targets: Tensor, level: float, seed: int = 0) -> IntervalEnds:
    """Quantiles of the estimates from resampled rows, with the bandwidth as it is.

    A resampled table counts each row some number of times, so all of them are one attention whose values are products
    of features, counts and targets: the moments of a polynomial for each table.

    Args:
        points: the estimate.
        query: x (m, D).
        targets: of all rows (rows, outputs).
        level: the probability of covering, between 0 and 1.
        seed: random seed, any integer.

    Returns:
        The ends; NaN where there is no interval, see `unsupported`.

    Raises:
        ConfigError: the level is outside its range.

    Source: Efron 1979, "Bootstrap Methods"; percentiles of resampled pairs are what Stata's `npregress kernel` reports.
    """
    _check(level)
    random, count = np.random.default_rng(seed % 2**64), len(targets)
    drawn = torch.from_numpy(random.multinomial(count, np.full(count, 1 / count), _TABLES).T.astype(np.float64))
    counts, sums = _per_point(points, drawn), _per_point(points, (drawn[:, :, None] * targets[:, None]).flatten(1))
    low, high = (targets.new_full((len(query), targets.shape[1]), math.nan) for _ in range(2))
    quantiles = targets.new_tensor([(1 - level) / 2, (1 + level) / 2])
    for tile in points.smoother.tiles(query):
        for rows, kernel in zip(tile.rows.split(16), tile.kernel.split(16), strict=True):  # each solves all tables
            estimates = _resampled(points, query[rows], kernel, tile.keys, counts, sums)
            outside = _no_interval(points, query[rows], kernel, tile.keys)[:, None]
            ends = torch.nanquantile(estimates, quantiles, dim=1)
            low[rows], high[rows] = torch.where(outside, math.nan, ends)
    return IntervalEnds(low, high)


def _resampled(points: MergedRows, query: Tensor, kernel: Tensor, keys: slice, counts: Tensor, sums: Tensor) -> Tensor:
    """Return the estimates (m, draws, outputs) of tables that hold points `counts` times, with `sums` of targets."""
    smoother = points.smoother
    single = kernel / points.counts[keys]  # of one row of each point
    features = torch.ones_like(kernel)[:, None]
    if smoother.degree and smoother.numeric:
        offsets = smoother.offsets(query, keys, smoother.widths(query))
        features = torch.cat([features, polynomial_features(offsets, smoother.degree)], 1)  # (m, P, k)
    products = single[:, None, None] * features[:, :, None] * features[:, None]  # (m, P, P, k)
    moments = (products @ counts[keys]).permute(0, 3, 1, 2)  # (m, draws, P, P)
    outputs = sums.shape[1] // counts.shape[1]
    values = ((single[:, None] * features) @ sums[keys]).unflatten(-1, (-1, outputs)).transpose(1, 2)
    estimates = (torch.linalg.pinv(moments, rtol=1e-10, hermitian=True) @ values)[..., 0, :]
    return torch.where(moments[..., :1, 0] > 0, estimates, math.nan)


def unsupported(points: MergedRows, query: Tensor) -> Tensor:
    """Return where the points support no interval (m,), bool.

    That is where no point has any weight, where a single row has all of it (99.9 %), or out of the kernel's reach, such
    as four bandwidths of a Gaussian: there weights are those of extrapolation, and the errors elsewhere are not those
    of the estimate.
    """
    outside = torch.ones_like(query[:, 0], dtype=torch.bool)
    for rows, keys, kernel, *_ in points.smoother.tiles(query):
        outside[rows] = _no_interval(points, query[rows], kernel, keys)
    return outside


def _no_interval(points: MergedRows, query: Tensor, kernel: Tensor, keys: slice) -> Tensor:
    alone = kernel.square() @ (1 / points.counts[keys]) > _ALONE**2
    return alone | ~points.smoother.supported(query, keys, kernel, degree=1)


def _variances(points: MergedRows) -> Tensor:
    """Return the variance of each point's mean, where that of a row of weight 1 is 1 (n,)."""
    return 1 / (points.counts * points.row_weights)


def _per_point(points: MergedRows, rows: Tensor) -> Tensor:
    """Add up the rows of each point."""
    return rows.new_zeros(len(points.counts), rows.shape[1]).index_add_(0, points.point_of, rows)


def _curve_quantile(points: MergedRows, degree: int, level: float) -> float:
    """Return the quantile of the largest standardized deviation of the curve, over the places of points."""
    smoother = points.smoother
    places = smoother.inputs
    if len(places) > _CURVE:
        places = places[np.linspace(0, len(places) - 1, _CURVE).round().astype(int)]
    variances = _variances(points)
    normal = np.random.default_rng(0).standard_normal((len(variances), _DRAWS))
    errors = torch.from_numpy(normal) * variances.sqrt()[:, None]
    largest = errors.new_zeros(_DRAWS)
    for rows, keys, kernel, weights, _ in smoother.tiles(places, degree):
        inside = ~_no_interval(points, places[rows], kernel, keys)
        norms = (weights.square() @ variances[keys]).sqrt()
        curves = (weights[inside] @ errors[keys]).abs() / norms[inside, None]
        largest = torch.cat([largest[None], curves]).amax(0)
    return float(largest.quantile(level))


def _check(level: float) -> None:
    if not 0 < level < 1:
        hint = "0.95 for an interval that covers 95 times in 100."
        raise ConfigError("level", "a probability above 0 and below 1", f"{level:g}", hint)
