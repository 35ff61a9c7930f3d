"""Choosing a kernel's bandwidth by minimizing an error."""

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
_STEPS = 100
_RATE = 0.1

Error = Callable[[Tensor | float], Tensor]


def best_on_grid(error: Error, inputs: Tensor) -> tuple[float, float]:
    """Search a logarithmic grid, then a finer one around its best point.

    Args:
        error: function of the bandwidth.
        inputs: the training inputs (n, D), which give the range of bandwidths: from half the smallest distance between
            neighbors to the diameter.

    Returns:
        The bandwidth, and its error.

    Example:
        >>> best_on_grid(lambda h: torch.as_tensor((h - 0.5) ** 2), torch.arange(5.0)[:, None])[0]
        0.5...
    """
    low, high = _range(inputs)
    best, least = high, math.inf
    for _ in range(_ROUNDS):
        ratio = (high / low) ** (1 / (_GRID - 1))
        for step in range(_GRID):
            bandwidth = low * ratio**step
            found = float(error(bandwidth))
            if found < least:
                best, least = bandwidth, found
        low, high = best / ratio, best * ratio
    return best, least


def by_gradient(error: Error, inputs: Tensor) -> tuple[float, float]:
    """Minimize over log h by Adam from the best point of a coarse grid; return the best point seen.

    Args:
        error: differentiable function of the bandwidth.
        inputs: as for `best_on_grid`.

    Returns:
        The bandwidth, and its error.

    Example:
        >>> best, least = by_gradient(lambda h: (h - 0.5) ** 2, torch.arange(5.0, dtype=torch.float64)[:, None])
        >>> abs(best - 0.5) < 1e-3
        True
    """
    low, high = _range(inputs)
    start = min((low * (high / low) ** (step / 7) for step in range(8)), key=lambda h: float(error(h)))
    logarithm = torch.tensor(math.log(start), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([logarithm], lr=_RATE)
    best, least = start, math.inf
    for step in range(_STEPS):
        for group in optimizer.param_groups:
            group["lr"] = _RATE * (1 - step / _STEPS)
        bandwidth = logarithm.exp()
        loss = error(bandwidth)
        if loss.item() < least:
            best, least = bandwidth.item(), loss.item()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return best, least


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
    near = nearest[nearest.isfinite()]
    return (0.5 * float(near.min()) if near.numel() else widest / 100), widest
