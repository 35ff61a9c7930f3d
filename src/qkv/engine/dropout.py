"""Counter-based dropout: which weights are dropped is a function of (seed, row, key) alone.

Nothing is stored: the backward pass, any tile and any backend compute the same bits again. A 32-bit mixing function is
applied twice, to (seed, row) and then to (that, key): the finalizer of MurmurHash3, a bijection in which every input
bit changes every output bit with probability near one half.
"""

from functools import lru_cache
from math import prod
from typing import TypeVar, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qkv.shapes import Shape
from qkv.values.execution import has_plain_memory

_LOW = 0xFFFFFFFF
_SMALL = 1 << 17
"""The most weights whose bits NumPy computes, in one thread; PyTorch divides more of them among threads."""

_SIXTEEN, _THIRTEEN, _FIRST, _SECOND = (np.array(x, np.uint32) for x in (16, 13, 0x85EBCA6B, 0xC2B2AE35))
"""The numbers of `mix` as arrays, which NumPy need not convert in every operation."""

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


def threshold(dropout: float) -> int:
    """Return the number below which 32 bits drop a weight; it has 32 bits itself.

    Example:
        >>> threshold(0.5) == 2**31, threshold(1 - 2**-53) == 2**32 - 1
        (True, True)
    """
    return min(round(dropout * 2**32), _LOW)


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
    return _keep(_row_bits(seed, rows), _mixed_keys(keys), dropout)


@final
class Kept:
    """Which weights of a problem dropout keeps, tile by tile: rows and keys are mixed once, for all tiles.

    Args:
        seed: one int64.
        leading, queries, keys: the sizes of the problem.
        dropout: the probability of dropping a weight.

    Example:
        >>> Kept(torch.tensor(7), (2,), 3, 8, 0.5).factors(torch.float32, (slice(1),), slice(2)).shape
        torch.Size([1, 2, 8])
    """

    def __init__(self, seed: Tensor, leading: Shape, queries: int, keys: int, dropout: float) -> None:
        rows = torch.arange(prod(leading) * queries, device=seed.device)
        self.dropout, self.rows = dropout, _row_bits(seed, rows).view(*leading, queries)
        self.keys = _mixed_keys(torch.arange(keys, device=seed.device))

    def matrix(self) -> Tensor:
        """Return which weights are kept, (*leading, Q, K)."""
        return _keep(self.rows, self.keys, self.dropout)

    def factors(
        self,
        dtype: torch.dtype,
        items: tuple[slice, ...] = (),
        rows: slice | Tensor = slice(None),
        columns: slice | Tensor = slice(None),
    ) -> Tensor:
        """Return the factor of each weight of a tile: 0, or 1/(1 − dropout).

        Args:
            dtype: of the weights, float32 or float64.
            items, rows, columns: of the tile; all by default.
        """
        keep = _keep(self.rows[(*items, ..., rows)], self.keys[columns], self.dropout)
        return keep.to(dtype).div_(1 - self.dropout)


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
    if _by_numpy(seed, rows, keys):
        return torch.from_numpy(_keep_by_numpy(seed, rows, keys, dropout).reshape(*leading, queries, keys))
    return Kept(seed, leading, queries, keys, dropout).matrix()


def factor_matrix(seed: Tensor, leading: Shape, queries: int, keys: int, dropout: float, dtype: torch.dtype) -> Tensor:
    """Return the factor of each weight of a whole problem, (*leading, Q, K): 0, or 1/(1 − dropout).

    Args:
        seed, leading, queries, keys, dropout: as for `keep_matrix`.
        dtype: of the weights, float32 or float64.

    Example:
        >>> factor_matrix(torch.tensor(7), (), 4, 8, 0.5, torch.float32).unique()
        tensor([0., 2.])
    """
    rows = prod(leading) * queries
    if _by_numpy(seed, rows, keys):
        factor = (np.float64 if dtype == torch.float64 else np.float32)(1 / (1 - dropout))
        return torch.from_numpy((_keep_by_numpy(seed, rows, keys, dropout) * factor).reshape(*leading, queries, keys))
    return Kept(seed, leading, queries, keys, dropout).factors(dtype)


def _by_numpy(seed: Tensor, rows: int, keys: int) -> bool:
    """Return whether NumPy computes the bits: its operators start in a fraction of the time of PyTorch's."""
    return rows * keys <= _SMALL and has_plain_memory(seed)


def _keep_by_numpy(seed: Tensor, rows: int, keys: int, dropout: float) -> NDArray[np.bool_]:
    row_bits, key_bits = _first_counters(rows, keys)
    bits = _mix_uint32(row_bits + np.uint32(_mixed_seed(int(seed)) & _LOW))[:, None] + key_bits
    return _mix_uint32(bits) >= np.uint32(threshold(dropout))


@lru_cache(maxsize=64)
def _first_counters(rows: int, keys: int) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Return the mixed numbers of the first rows and keys, in 32 bits, whose sums wrap as `mix` cuts them."""
    counters = _mixed_rows(torch.arange(rows, device="cpu")) & _LOW, _mixed_keys(torch.arange(keys, device="cpu"))
    row_bits, key_bits = (x.numpy().astype(np.uint32) for x in counters)
    return row_bits, key_bits


def _mix_uint32(x: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Compute `mix` in place."""
    x ^= x >> _SIXTEEN
    x *= _FIRST
    x ^= x >> _THIRTEEN
    x *= _SECOND
    x ^= x >> _SIXTEEN
    return x


def _mixed_rows(rows: Tensor) -> Tensor:
    return mix(rows & _LOW) + mix(mix(rows >> 32) + 1)


def _mixed_keys(keys: Tensor) -> Tensor:
    return mix(keys + 0x9E3779B9).to(torch.int32)


def _mixed_seed(seed: Bits) -> Bits:
    return mix(seed) + mix(seed >> 32)


def _row_bits(seed: Tensor, rows: Tensor) -> Tensor:
    """Return what the bits of all weights of a row have in common, int32."""
    # One number is mixed faster outside of PyTorch's operators.
    seed_bits = _mixed_seed(int(seed)) if has_plain_memory(seed) else _mixed_seed(seed)
    return mix(_mixed_rows(rows) + seed_bits).to(torch.int32)


def _keep(row_bits: Tensor, key_bits: Tensor, dropout: float) -> Tensor:
    bits = _mix_int32(row_bits[..., None] + key_bits)
    # The comparison is signed, so both sides are shifted by 2³¹.
    return bits.bitwise_xor_(-(1 << 31)) >= threshold(dropout) - (1 << 31)


def _mix_int32(x: Tensor) -> Tensor:
    """Compute `mix` in place on int32, whose products wrap: dropout of a tile spends most of its time here."""
    x ^= (x >> 16).bitwise_and_(0xFFFF)
    x *= 0x85EBCA6B - (1 << 32)
    x ^= (x >> 13).bitwise_and_(0x7FFFF)
    x *= 0xC2B2AE35 - (1 << 32)
    x ^= (x >> 16).bitwise_and_(0xFFFF)
    return x
