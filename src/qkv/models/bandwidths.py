"""Choosing a kernel's bandwidths, one per input column, by minimizing an error."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from qkv.functional import attention_with_state
from qkv.masks.patterns import window
from qkv.normalizers.dense import Hard
from qkv.scores.kernels import SquaredDistance

_GRID = 12
_ROUNDS = 3
_FACTORS = (0.25, 0.5, 0.75, 1.5, 2.0, 4.0)
_SWEEPS = 4
_STEPS = 100
_RATE = 0.1

Error = Callable[[Tensor], Tensor]


def best_on_grid(error: Error, inputs: Tensor) -> tuple[Tensor, float]:
    """Search a logarithmic grid for a multiple of the columns' standard deviations, then each column's by itself.

    Args:
        error: function of the bandwidths (D,).
        inputs: the training inputs (n, D), which give the range of bandwidths: from half the smallest distance between
            neighbors to the diameter.

    Returns:
        The bandwidths (D,), and their error.

    Example:
        >>> best, least = best_on_grid(lambda h: (h - 0.5).square().sum(), torch.arange(5.0)[:, None])
        >>> best
        tensor([0.5...])
    """
    scales = _scales(inputs)
    low, high = _range(inputs / scales)
    best, least = high * scales, math.inf
    middle = high
    for _ in range(_ROUNDS):
        ratio = (high / low) ** (1 / (_GRID - 1))
        for step in range(_GRID):
            multiple = low * ratio**step
            loss = float(error(multiple * scales))
            if loss < least:
                best, least, middle = multiple * scales, loss, multiple
        low, high = middle / ratio, middle * ratio
    return _each_column(error, best, least) if len(scales) > 1 else (best, least)


def by_gradient(error: Error, inputs: Tensor) -> tuple[Tensor, float]:
    """Minimize over log h of every column by Adam; return the best point seen.

    It starts from the best point of a coarse grid, then column by column: the gradient of a column that does not matter
    vanishes long before its bandwidth is as large as it should be.

    Args:
        error: differentiable function of the bandwidths (D,).
        inputs: as for `best_on_grid`.

    Returns:
        The bandwidths (D,), and their error.

    Example:
        >>> error = lambda h: (h - torch.tensor([0.5, 2.0])).square().sum()
        >>> best, least = by_gradient(error, torch.rand(9, 2, dtype=torch.float64))
        >>> least < 1e-3
        True
    """
    scales = _scales(inputs)
    low, high = _range(inputs / scales)
    multiples = [low * (high / low) ** (step / 7) for step in range(8)]
    best = min((multiple * scales for multiple in multiples), key=lambda h: float(error(h)))
    least = math.inf
    if len(scales) > 1:
        best, least = _each_column(error, best, float(error(best)))
    logarithms = best.log().requires_grad_()
    optimizer = torch.optim.Adam([logarithms], lr=_RATE)
    for step in range(_STEPS):
        for group in optimizer.param_groups:
            group["lr"] = _RATE * (1 - step / _STEPS)
        bandwidths = logarithms.exp()
        loss = error(bandwidths)
        if loss.item() < least:
            best, least = bandwidths.detach(), loss.item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return best, least


def _each_column(error: Error, best: Tensor, least: float) -> tuple[Tensor, float]:
    """Try multiples of one column's bandwidth after another: a column that does not matter gets a large one."""
    for _ in range(_SWEEPS):
        before = least
        for column in range(len(best)):
            for factor in _FACTORS:
                tried = best.clone()
                tried[column] *= factor
                loss = float(error(tried))
                if loss < least:
                    best, least = tried, loss
        if least == before:
            break
    return best, least


def _scales(inputs: Tensor) -> Tensor:
    """Return the standard deviation of each column; 1 if it is 0, and for a single column, which needs none."""
    if inputs.shape[1] == 1:
        return inputs.new_ones(1)
    deviations = inputs.std(0, correction=0)
    return torch.where(deviations > 0, deviations, 1)


def _range(inputs: Tensor) -> tuple[float, float]:
    """Return half the smallest distance between two distinct neighbors, and the diagonal of the bounding box."""
    count = inputs.shape[0]
    widest = float((inputs.amax(0) - inputs.amin(0)).norm()) if count else 0.0
    if widest == 0:
        return 0.5, 1.0
    score, value = SquaredDistance(), inputs[:, :1]
    _, state = attention_with_state(inputs, inputs, value, score=score, normalizer=Hard(), mask=~window(0, 0))
    # The hard normalizer's state is the largest score: −d²/2 of the nearest neighbor.
    nearest = (-2 * state.value[state.value < 0]).sqrt()
    finite = nearest[nearest.isfinite()]
    return (0.5 * float(finite.min()) if finite.numel() else widest / 100), widest
