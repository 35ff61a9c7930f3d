"""Where a token stands, as numbers that are added to its embedding."""

import math

import torch
from torch import Tensor


def sinusoidal(
    length: int,
    width: int,
    *,
    start: int = 0,
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """PE(i, 2j) = sin(i/10000^(2j/M)), PE(i, 2j+1) = cos(i/10000^(2j/M)), at any length.

    Args:
        length: how many positions.
        width: M.
        start: the first position; with a cache, the number of positions before.
        device: where to.
        dtype: of the result; angles are computed in float64, so that far positions keep their digits.

    Returns:
        (length, M).

    Source: Vaswani et al. 2017, section 3.5.

    Example:
        >>> sinusoidal(2, 4)
        tensor([[0.0000, 1.0000, 0.0000, 1.0000],
                [0.8415, 0.5403, 0.0100, 0.9999]])
    """
    position = torch.arange(start, start + length, device=device, dtype=torch.float64)
    rate = torch.exp(torch.arange(0, width, 2, device=device, dtype=torch.float64) * (-math.log(10_000.0) / width))
    angle = position[:, None] * rate
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)[:, :width].to(dtype)
