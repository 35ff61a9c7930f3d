"""Pointwise confidence intervals of a kernel smoother, where its points support one."""

import math
from statistics import NormalDist

import numpy as np
import torch
from torch import Tensor

from qkv.errors import ConfigError
from qkv.functional import attention, attention_with_state
from qkv.introspect.lazy_map import attention_map
from qkv.models.smoother import KernelSmoother
from qkv.normalizers.dense import Hard, Identity
from qkv.scores.kernels import Gaussian, SquaredDistance

_TILE = 1 << 22
_COLUMNS = 256
_ALONE = 0.999
"""The weight from which a single point gives no interval."""
_REACH = 4.0
"""How many bandwidths a Gaussian reaches; its value there is 0.0003 of its largest."""


def normal_interval(smoother: KernelSmoother, query: Tensor, residuals: Tensor, level: float) -> tuple[Tensor, Tensor]:
    """f(x) ± z·σ(x)·‖w(x)‖ with σ²(x) = Σᵢ wᵢ(x) eᵢ²: the estimate is a weighted sum of independent targets.

    It covers E f(x), the smoothed curve; a bandwidth that is too large biases f(x), which no such interval shows.

    Args:
        smoother: the estimate f with weights w.
        query: x (m, D).
        residuals: e, each target minus the estimate from the other points (n, outputs); NaN where that is unknown:
            such a point takes no part in σ².
        level: the probability of covering, between 0 and 1.

    Returns:
        The lower and the upper ends (m, outputs); NaN where there is no interval, see `unsupported`, or where no point
            with a residual has any weight.

    Raises:
        ConfigError: the level is outside its range.

    Source: Wasserman 2006, "All of Nonparametric Statistics", sections 5.6 and 5.7; the variance that depends on x:
        Härdle 1990, "Applied nonparametric regression", section 4.2.
    """
    z = NormalDist().inv_cdf((1 + _checked(level)) / 2)
    estimate, state = smoother(query)
    finite = residuals.isfinite()
    variance, _ = smoother(query, values=torch.where(finite, residuals, 0).square())
    if not bool(finite.all()):
        known_weight, _ = smoother(query, values=finite.to(residuals))
        variance = variance / known_weight  # 0/0 where no residual is known
    norms = _square_norms(smoother, query)
    spread = (variance * norms[:, None]).sqrt()
    no_interval = state.weightless | (norms > _ALONE**2) | _far(smoother, query)
    spread = torch.where(no_interval[:, None], math.nan, spread)
    return estimate - z * spread, estimate + z * spread


def bootstrap_interval(
    smoother: KernelSmoother, query: Tensor, level: float, draws: int = 400, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Quantiles of the estimates from resampled points, with the bandwidth as it is.

    A resampled data set counts each point some number of times c, so all of them are one attention whose values are
    c·y and c: Σ K c y / Σ K c.

    Args:
        smoother: the estimate.
        query: x (m, D).
        level: the probability of covering, between 0 and 1.
        draws: number of resampled data sets.
        seed: random seed, any integer.

    Returns:
        The lower and the upper ends (m, outputs); NaN where there is no interval, see `unsupported`.

    Raises:
        ConfigError: the level or the number of draws is outside its range.

    Source: Efron 1979, "Bootstrap Methods"; percentiles of resampled pairs are what Stata's `npregress kernel` reports.
    """
    ends = ((1 - _checked(level)) / 2, (1 + level) / 2)
    if draws < 2:
        raise ConfigError("draws", "at least 2", f"{draws}", "A few hundred suit most data.")
    random, (scaled, points, score) = np.random.default_rng(seed % 2**64), smoother.scaled(query)
    targets = smoother.get_buffer("targets")
    count, outputs = targets.shape
    samples = []
    for first in range(0, draws, _COLUMNS):
        size = min(_COLUMNS, draws - first)
        counts = torch.from_numpy(random.multinomial(count, np.full(count, 1 / count), size).T.astype(np.float64))
        values = torch.cat([(counts[:, :, None] * targets[:, None]).flatten(1), counts], 1)
        sums = attention(scaled, points, values, score=score, normalizer=Identity())
        numerators, denominators = sums[:, : size * outputs].view(-1, size, outputs), sums[:, size * outputs :, None]
        samples.append(torch.where(denominators == 0, math.nan, numerators / denominators))
    estimates = torch.cat(samples, 1)
    low, high = torch.nanquantile(estimates, torch.tensor(ends, dtype=estimates.dtype, device=estimates.device), dim=1)
    no_interval = unsupported(smoother, query)[:, None]
    return torch.where(no_interval, math.nan, low), torch.where(no_interval, math.nan, high)


def unsupported(smoother: KernelSmoother, query: Tensor) -> Tensor:
    """Return where the points support no interval.

    That is where no point has any weight, where a single one has all of it (99.9 %), or where a Gaussian is more than
    four bandwidths from every point: there its weights are those of extrapolation, and the errors elsewhere are not
    those of the estimate.

    Args:
        smoother: the estimate.
        query: x (m, D).

    Returns:
        (m,), bool.

    Example:
        >>> points = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
        >>> smoother = KernelSmoother(points, points, "gaussian", points.new_ones(1))
        >>> unsupported(smoother, points.new_tensor([[0.5], [-3.9], [5.1]]))
        tensor([False, False,  True])
    """
    _, state = smoother(query)
    no_interval: Tensor = state.weightless | (_square_norms(smoother, query) > _ALONE**2) | _far(smoother, query)
    return no_interval


def _far(smoother: KernelSmoother, query: Tensor) -> Tensor:
    """Return where a Gaussian is out of reach of every point (m,); compact kernels have no weight there anyway."""
    scaled, points, score = smoother.scaled(query)
    if not isinstance(score, Gaussian):
        return torch.zeros(len(query), dtype=torch.bool, device=query.device)
    measure = SquaredDistance(score.bandwidth)
    _, nearest = attention_with_state(scaled, points, points[:, :1], score=measure, normalizer=Hard())
    # The hard normalizer's state is the largest score: −u²/2 of the nearest point.
    return torch.lt(nearest.value, -(_REACH**2) / 2)


def _square_norms(smoother: KernelSmoother, query: Tensor) -> Tensor:
    """Return Σᵢ wᵢ(x)² of each query (m,), tile by tile."""
    scaled, points, score = smoother.scaled(query)
    weights, rows = attention_map(scaled, points, score=score), max(1, _TILE // len(points))
    parts = [weights[first : first + rows, :].square().sum(-1) for first in range(0, len(query), rows)]
    return torch.cat(parts) if parts else query.new_zeros(0)


def _checked(level: float) -> float:
    if not 0 < level < 1:
        hint = "0.95 for an interval that covers 95 times in 100."
        raise ConfigError("level", "a probability above 0 and below 1", f"{level:g}", hint)
    return level
