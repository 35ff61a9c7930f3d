"""The winning key of each row under `Hard`: attention over values that spell the positions of their keys.

Positions are spelled in digits that every floating-point type holds exactly.
"""

import torch
from torch import Tensor

BASE = 128
DIGITS = 4
"""Positions up to 128⁴ − 1 = 268,435,455, least significant digit first."""


def spell(like: Tensor) -> Tensor:
    """Return the position of each row of a tensor, as digits of its dtype.

    Args:
        like: (..., N, D).

    Returns:
        (..., N, 4), a view of N encoded positions.

    Example:
        >>> spell(torch.zeros(130, 7, dtype=torch.bfloat16))[[1, 127, 129]]
        tensor([[  1.,   0.,   0.,   0.],
                [127.,   0.,   0.,   0.],
                [  1.,   1.,   0.,   0.]], dtype=torch.bfloat16)
    """
    at = torch.arange(like.shape[-2], device=like.device)
    digits = torch.stack([at // BASE**power % BASE for power in range(DIGITS)], -1)
    return digits.to(like.dtype).expand(*like.shape[:-2], -1, -1)


def values_of(key: Tensor) -> Tensor:
    """Return values that spell each key's position, and a 1 that tells whether a row saw any, (..., K, 5).

    Args:
        key: (..., K, E).
    """
    return with_positions(key[..., :0])


def with_positions(value: Tensor) -> Tensor:
    """Append the five columns of `values_of` to values, (..., K, V + 5).

    Args:
        value: (..., K, V).

    Example:
        >>> with_positions(torch.tensor([[7.0], [8.0]]))
        tensor([[7., 0., 0., 0., 0., 1.],
                [8., 1., 0., 0., 0., 1.]])
    """
    return torch.cat([value, spell(value), value.new_ones(1).expand(*value.shape[:-1], 1)], -1)


def winners(output: Tensor) -> Tensor:
    """Return the winning key of each row, −1 where a row sees nothing, NaN where its scores are.

    Args:
        output: of attention over `values_of` the keys, (..., Q, 5).

    Example:
        >>> winners(values_of(torch.zeros(3, 1)))
        tensor([0., 1., 2.], dtype=torch.float64)
    """
    return read(output[..., :DIGITS].nan_to_num()) + output[..., DIGITS].double() - 1


def read(digits: Tensor) -> Tensor:
    """Decode positions from digits, (..., 4) to (...), int64.

    Example:
        >>> read(torch.tensor([[1.0, 1.0, 0.0, 0.0]]))
        tensor([129])
    """
    scale = torch.tensor([BASE**power for power in range(DIGITS)], dtype=torch.int64, device=digits.device)
    return (digits.detach().long() * scale).sum(-1)
