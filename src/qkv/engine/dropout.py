"""Counter-based dropout: which weights are dropped is a function of (seed, row, key) alone.

Nothing is stored: the backward pass, any tile and any backend compute the same bits again. A 32-bit mixing function is
applied twice, to (seed, row) and then to (that, key): the finalizer of MurmurHash3, a bijection in which every input
bit changes every output bit with probability near one half.
"""

from functools import lru_cache
from math import prod
from typing import TypeVar

import torch
from torch import Tensor

from qkv.shapes import Shape
from qkv.values.parameters import numbers

_LOW = 0xFFFFFFFF
_FEW = 1 << 16
"""How many counters are mixed once and stored."""

Bits = TypeVar("Bits", int, Tensor)


def mix(x: Bits) -> Bits:
    """Mix 32 bits, held in int64 or a Python integer.

    Source: Appleby 2011, MurmurHash3, `fmix32`.

    Example:
        >>> import torch
        >>> mix(torch.tensor([0, 1])), mix(1)
        (tensor([         0, 1364076727]), 1364076727)
    """
    x = x & _LOW
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & _LOW
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & _LOW
    return x ^ (x >> 16)


def keep_mask(seed: Tensor, rows: Tensor, keys: Tensor, dropout: float) -> Tensor:
    """Return which weights dropout keeps.

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
    return _keep(seed, _mixed_rows(rows), _mixed_keys(keys), dropout)


def keep_matrix(seed: Tensor, leading: Shape, queries: int, keys: int, dropout: float) -> Tensor:
    """Return which weights of a whole problem are kept, (*leading, Q, K).

    Args:
        seed: one int64.
        leading, queries, keys: the sizes of the problem.
        dropout: the probability of dropping a weight.

    Example:
        >>> keep_matrix(torch.tensor(7), (2,), 3, 4, 0.0).all()
        tensor(True)
    """
    rows = prod(leading) * queries
    if numbers(seed) and max(rows, keys) <= _FEW and not torch.is_inference_mode_enabled():
        row_bits, key_bits = _first_rows(rows), _first_keys(keys)
    else:
        row_bits = _mixed_rows(torch.arange(rows, device=seed.device))
        key_bits = _mixed_keys(torch.arange(keys, device=seed.device))
    return _keep(seed, row_bits.view(*leading, queries), key_bits, dropout)


@lru_cache(maxsize=8)
def _first_rows(count: int) -> Tensor:
    return _mixed_rows(torch.arange(count, device="cpu"))


@lru_cache(maxsize=8)
def _first_keys(count: int) -> Tensor:
    return _mixed_keys(torch.arange(count, device="cpu"))


def _mixed_rows(rows: Tensor) -> Tensor:
    return mix(rows & _LOW) + mix(mix(rows >> 32) + 1)


def _mixed_keys(keys: Tensor) -> Tensor:
    return mix(keys + 0x9E3779B9).to(torch.int32)


def _mixed_seed(seed: Bits) -> Bits:
    return mix(seed) + mix(seed >> 32)


def _keep(seed: Tensor, row_bits: Tensor, key_bits: Tensor, dropout: float) -> Tensor:
    # One number is mixed faster outside of PyTorch's operators.
    seed_bits = _mixed_seed(int(seed)) if numbers(seed) else _mixed_seed(seed)
    bits = _mix_int32(mix(row_bits + seed_bits).to(torch.int32)[..., None] + key_bits)
    # The comparison is signed, so both sides are shifted by 2³¹.
    return bits.bitwise_xor_(-(1 << 31)) >= round(dropout * 2**32) - (1 << 31)


def _mix_int32(x: Tensor) -> Tensor:
    """Compute `mix` in place on int32, whose products wrap: dropout of a tile spends most of its time here."""
    x ^= (x >> 16).bitwise_and_(0xFFFF)
    x *= 0x85EBCA6B - (1 << 32)
    x ^= (x >> 13).bitwise_and_(0x7FFFF)
    x *= 0xC2B2AE35 - (1 << 32)
    x ^= (x >> 16).bitwise_and_(0xFFFF)
    return x
