"""Choosing a kernel's bandwidths, one per input column, by minimizing a criterion."""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from qkv.functional import attention_with_state
from qkv.masks.patterns import window
from qkv.normalizers.dense import Hard
from qkv.scores.kernels import SquaredDistance

_GRID = 20
_FACTORS = (0.25, 0.5, 2.0, 4.0)
_SWEEPS = 4
_STARTS = 3
"""How many valleys of the grid are searched: a criterion can have several."""
_WIDEST = 1e3
"""How many times wider than the data a bandwidth can become, where a column does not matter."""
_EVALUATIONS = 40

_NONE = 1e300
"""In place of a criterion that is not a number."""

Criterion = Callable[[Tensor], float]


def minimize(
    criterion: Criterion, scales: Tensor, low: float, high: float, shares: Tensor | None = None
) -> tuple[Tensor, float]:
    """Search multiples of the scales on a logarithmic grid, then column by column, then by Nelder and Mead's simplex.

    Args:
        criterion: function of the bandwidths (D,).
        scales: of the columns (D,).
        low, high: the range of the multiples.
        shares: which columns hold a λ in [0, 1] instead of a bandwidth (D,).

    Returns:
        The bandwidths (D,), and their criterion; NaN if no bandwidth has one.

    Source: Nelder and Mead 1965, "A simplex method for function minimization".

    Example:
        >>> best, least = minimize(lambda h: float((h - 0.5).square().sum()), torch.ones(1), 0.1, 4.0)
        >>> best
        tensor([0.5000])
    """
    fixed = torch.zeros_like(scales, dtype=torch.bool) if shares is None else shares
    known = dict[tuple[float, ...], float]()

    def value(bandwidths: Tensor) -> float:
        key = tuple(bandwidths.tolist())
        if key not in known:
            number = criterion(bandwidths)
            known[key] = number if math.isfinite(number) else _NONE
        return known[key]

    ratio = (high / low) ** (1 / (_GRID - 1))
    multiples = [low * ratio**step for step in range(_GRID)] if not bool(fixed.all()) else [1.0]
    starts = _lowest(value, [torch.where(fixed, 0.5, multiple * scales) for multiple in reversed(multiples)])
    if len(scales) > 1:  # from there, and from no dependence at all, where few columns need a narrow bandwidth
        widest = torch.where(fixed, 1.0, high * scales)
        starts = [min((_each_column(value, start, fixed) for start in (starts[0], widest)), key=value)]
    found = []
    for start in starts:
        ends = torch.minimum(low * scales / 4, start), torch.maximum(high * scales * _WIDEST, start)
        found.append(_simplex(value, start, fixed, ends, ratio))
    best = min(found, key=value)
    return best, value(best) if value(best) < _NONE else math.nan


def _lowest(value: Criterion, places: list[Tensor]) -> list[Tensor]:
    """Return the places that are no worse than both of their neighbors, the best one first, at most `_STARTS`."""
    values = [math.inf, *map(value, places), math.inf]
    lows = [
        place for number, place in enumerate(places, start=1) if values[number] <= min(values[number - 1 : number + 2])
    ]
    return sorted(lows, key=value)[:_STARTS]


def _each_column(value: Criterion, best: Tensor, fixed: Tensor) -> Tensor:
    """Try multiples of one column's bandwidth after another: a column that does not matter gets a large one."""
    for _ in range(_SWEEPS):
        before = value(best)
        for column in range(len(best)):
            for factor in _FACTORS:
                tried = best.clone()
                tried[column] *= factor
                if fixed[column]:
                    tried[column].clamp_(max=1)
                best = min(best, tried, key=value)
        if value(best) == before:
            break
    return best


def _simplex(value: Criterion, best: Tensor, fixed: Tensor, ends: tuple[Tensor, Tensor], ratio: float) -> Tensor:
    """Minimize over the logarithms of bandwidths, and over each λ itself, which can be 0."""
    from scipy.optimize import minimize as search

    def place(bandwidths: Tensor) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
        return np.asarray(torch.where(fixed, bandwidths, bandwidths.log()), dtype=np.float64)

    def bandwidths(x: object) -> Tensor:
        tensor = torch.as_tensor(x, dtype=best.dtype, device=best.device)
        return torch.where(fixed, tensor, tensor.exp())

    start = place(best)
    least, most = (place(torch.where(fixed, torch.full_like(best, side), end)) for side, end in enumerate(ends))
    steps = np.where(fixed, np.where(start > 0.5, -0.25, 0.25), math.log(ratio) / 2)
    corners = np.clip(start + np.vstack([np.zeros_like(start), np.diag(steps)]), least, most)
    options = {
        "initial_simplex": corners,
        "maxfev": _EVALUATIONS * len(start),
        "xatol": 1e-4,
        "fatol": 1e-10 * abs(value(best)),
    }
    found = search(
        lambda x: value(bandwidths(x)),
        start,
        method="Nelder-Mead",
        bounds=list(zip(least, most, strict=True)),
        options=options,
    )
    return min(best, bandwidths(found.x), key=value)


def column_scales(inputs: Tensor) -> Tensor:
    """Return the standard deviation of each column; 1 if it is 0, and for a single column, which needs none."""
    if inputs.shape[1] == 1:
        return inputs.new_ones(1)
    deviations = inputs.std(0, correction=0)
    return torch.where(deviations > 0, deviations, 1)


def distance_range(inputs: Tensor) -> tuple[float, float]:
    """Return half the smallest distance between two distinct neighbors, and the diagonal of the bounding box."""
    widest = float((inputs.amax(0) - inputs.amin(0)).norm()) if inputs.numel() else 0.0
    if widest == 0:
        return 0.5, 1.0
    score, value = SquaredDistance(), inputs[:, :1]
    _, state = attention_with_state(inputs, inputs, value, score=score, normalizer=Hard(), mask=~window(0, 0))
    # The hard normalizer's state is the largest score: −d²/2 of the nearest neighbor.
    nearest = (-2 * state.value[state.value < 0]).sqrt()
    finite = nearest[nearest.isfinite()]
    return (0.5 * float(finite.min()) if finite.numel() else widest / 100), widest
