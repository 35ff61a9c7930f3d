"""Squared norms of queries and keys, and operands whose dot products are squared distances."""

from typing import NamedTuple

import torch
from torch import Tensor


class Norms(NamedTuple):
    """What a pass over queries and keys finds.

    Attributes:
        query, key: the squared norms, (..., Q, 1) and (..., K, 1).
        wide: the operands of `wider`, where they were written in the same pass.
    """

    query: Tensor
    key: Tensor
    wide: tuple[Tensor, Tensor] | None = None


def norms(query: Tensor, key: Tensor, widened: bool) -> Norms:
    """The squared norms of both sides; in one pass with the operands of `wider` where these are wanted too."""
    if not (query.is_contiguous() and key.is_contiguous()):
        return Norms(query.square().sum(-1, keepdim=True), key.square().sum(-1, keepdim=True))
    if not widened:
        return Norms(_squared(query), _squared(key))
    (wide_query, of_query), (wide_key, of_key) = _widened(query, -2.0, 0), _widened(key, 1.0, 1)
    return Norms(of_query, of_key, (wide_query, wide_key))


def _squared(x: Tensor) -> Tensor:
    from qkv.algorithms.rowwise.squared_norms_kernel import square
    from qkv.compiled import thread_pool

    rows, found = _rows(x).numpy(), x.new_empty(*x.shape[:-1], 1)
    thread_pool.run_in_chunks(square, rows.dtype, len(rows), rows.size * 2e-4, (rows, found.view(-1).numpy()))
    return found


def _widened(x: Tensor, factor: float, first: int) -> tuple[Tensor, Tensor]:
    from qkv.algorithms.rowwise.squared_norms_kernel import widen
    from qkv.compiled import thread_pool

    *leading, width = x.shape
    rows = _rows(x).numpy()
    wide, found = x.new_empty(*leading, width + 2), x.new_empty(*leading, 1)
    given = rows, factor, first, wide.view(-1, width + 2).numpy(), found.view(-1).numpy()
    thread_pool.run_in_chunks(widen, rows.dtype, len(rows), rows.size * 5e-4, given)
    return wide, found


def _rows(x: Tensor) -> Tensor:
    return x.detach().view(-1, x.shape[-1])


def wider(query: Tensor, key: Tensor, of_query: Tensor, of_key: Tensor) -> tuple[Tensor, Tensor]:
    """Operands whose products are squared distances: (−2q, ‖q‖², 1) and (k, 1, ‖k‖²).

    Example:
        >>> query, key = wider(torch.ones(1, 1), 3 * torch.ones(1, 1), torch.ones(1, 1), 9 * torch.ones(1, 1))
        >>> query @ key.mT
        tensor([[4.]])
    """
    return (
        torch.cat([query * -2, of_query, torch.ones_like(of_query)], -1),
        torch.cat([key, torch.ones_like(of_key), of_key], -1),
    )
