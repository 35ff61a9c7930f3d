"""Squared norms of queries and keys, and operands whose dot products are squared distances."""

from typing import NamedTuple

import torch
from torch import Tensor


class Norms(NamedTuple):
    """The squared norms of queries and keys.

    Attributes:
        query, key: the squared norms, (..., Q, 1) and (..., K, 1).
        operands: those of `distance_operands`, if they were written in the same pass.
    """

    query: Tensor
    key: Tensor
    operands: tuple[Tensor, Tensor] | None = None


def norms(query: Tensor, key: Tensor, with_operands: bool) -> Norms:
    """Compute the squared norms of queries and keys, and in the same pass the operands of `distance_operands`.

    Args:
        query: (..., Q, F).
        key: (..., K, F).
        with_operands: whether to write the operands, which is done for contiguous queries and keys.
    """
    if not (query.is_contiguous() and key.is_contiguous()):
        return Norms(query.square().sum(-1, keepdim=True), key.square().sum(-1, keepdim=True))
    if not with_operands:
        return Norms(_squared(query), _squared(key))
    (left, query_norms), (right, key_norms) = _extended(query, -2.0, 0), _extended(key, 1.0, 1)
    return Norms(query_norms, key_norms, (left, right))


def _squared(x: Tensor) -> Tensor:
    from qkv.algorithms.rowwise.squared_norms_kernel import square
    from qkv.compiled import thread_pool

    rows, norms = _rows(x).numpy(), x.new_empty(*x.shape[:-1], 1)
    thread_pool.run_in_chunks(square, rows.dtype, len(rows), rows.size * 2e-4, (rows, norms.view(-1).numpy()))
    return norms


def _extended(x: Tensor, factor: float, first: int) -> tuple[Tensor, Tensor]:
    from qkv.algorithms.rowwise.squared_norms_kernel import extend
    from qkv.compiled import thread_pool

    *leading, width = x.shape
    rows = _rows(x).numpy()
    extended, norms = x.new_empty(*leading, width + 2), x.new_empty(*leading, 1)
    arguments = rows, factor, first, extended.view(-1, width + 2).numpy(), norms.view(-1).numpy()
    thread_pool.run_in_chunks(extend, rows.dtype, len(rows), rows.size * 5e-4, arguments)
    return extended, norms


def _rows(x: Tensor) -> Tensor:
    return x.detach().view(-1, x.shape[-1])


def distance_operands(query: Tensor, key: Tensor, query_norms: Tensor, key_norms: Tensor) -> tuple[Tensor, Tensor]:
    """Return operands whose dot products are squared distances: (−2q, ‖q‖², 1) and (k, 1, ‖k‖²).

    Example:
        >>> one = torch.ones(1, 1)
        >>> query, key = distance_operands(one, 3 * one, one, 9 * one)
        >>> query @ key.mT
        tensor([[4.]])
    """
    return (
        torch.cat([query * -2, query_norms, torch.ones_like(query_norms)], -1),
        torch.cat([key, torch.ones_like(key_norms), key_norms], -1),
    )
