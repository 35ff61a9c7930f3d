"""Dropout on weights by counters: which weight is dropped is a function of (seed, row, key) alone.

Nothing is stored: the backward pass, any tile and any backend make the same bits again. A 32-bit mixing function is
applied twice, to (seed, row) and then to (that, key): the finalizer of MurmurHash3, a bijection in which every input
bit changes every output bit with probability near one half.
"""

import torch
from torch import Tensor

_LOW = 0xFFFFFFFF


def mix(x: Tensor) -> Tensor:
    """Mix 32 bits, held in int64.

    Source: Appleby 2011, MurmurHash3, `fmix32`.

    Example:
        >>> import torch
        >>> mix(torch.tensor([0, 1]))
        tensor([         0, 1364076727])
    """
    x = x & _LOW
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & _LOW
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & _LOW
    return x ^ (x >> 16)


def keep_mask(seed: Tensor, rows: Tensor, keys: Tensor, dropout: float) -> Tensor:
    """Which weights are kept.

    Args:
        seed: one int64.
        rows: row numbers, counted over (..., Q) of the whole problem; any shape (..., Q).
        keys: key numbers (K,).
        dropout: the probability of dropping a weight.

    Returns:
        A bool tensor (..., Q, K).

    Example:
        >>> import torch
        >>> keep = keep_mask(torch.tensor(7), torch.arange(100), torch.arange(1000), 0.25)
        >>> round(keep.double().mean().item(), 2)
        0.75
    """
    row_bits = mix(mix(seed) + mix(seed >> 32) + mix(rows & _LOW) + mix(mix(rows >> 32) + 1))
    bits = _mix_whole(row_bits.to(torch.int32)[..., None] + mix(keys + 0x9E3779B9).to(torch.int32))
    # Signed numbers are compared: both sides are moved by 2³¹.
    return bits.bitwise_xor_(-(1 << 31)) >= round(dropout * 2**32) - (1 << 31)


def _mix_whole(x: Tensor) -> Tensor:
    """The same as `mix` in place on int32, whose products wrap: this is what a tile spends its time on."""
    x ^= (x >> 16).bitwise_and_(0xFFFF)
    x *= 0x85EBCA6B - (1 << 32)
    x ^= (x >> 13).bitwise_and_(0x7FFFF)
    x *= 0xC2B2AE35 - (1 << 32)
    x ^= (x >> 16).bitwise_and_(0xFFFF)
    return x
