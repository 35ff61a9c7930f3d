"""Biases of traced score functions: by distance, by query or key, by table, or evaluated on tiles."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from qkv.biases import Bias
from qkv.hub.flex.algebra import is_relative
from qkv.hub.flex.conditions import indices_on, per_key, per_row
from qkv.hub.flex.expressions import Expression, cast, constant, evaluate, operation, tensors_of
from qkv.masks.base import Grid


@final
@dataclass(frozen=True, eq=False)
class DistanceBias(Bias):
    """A function of j − i, and of batch and head.

    Attributes:
        added: an expression of batch, head, query and key.
        grid: the sizes; leading is (B, H).
        captured: the tensors that it reads.
    """

    relative: ClassVar[bool] = True
    added: Expression
    grid: Grid
    captured: tuple[Tensor, ...]

    def tile(self, rows_Q1: Tensor, columns_K: Tensor) -> Tensor:
        """Evaluate the function."""
        return _tile(self.added, self.grid, rows_Q1, columns_K)


@final
@dataclass(frozen=True, eq=False)
class PairBias(Bias):
    """Any function of batch, head, query and key.

    Attributes:
        added: an expression of batch, head, query and key.
        grid: the sizes; leading is (B, H).
        captured: the tensors that it reads.
    """

    added: Expression
    grid: Grid
    captured: tuple[Tensor, ...]

    def tile(self, rows_Q1: Tensor, columns_K: Tensor) -> Tensor:
        """Evaluate the function."""
        return _tile(self.added, self.grid, rows_Q1, columns_K)


def _tile(added: Expression, grid: Grid, rows_Q1: Tensor, columns_K: Tensor) -> Tensor:
    values = evaluate(added, indices_on(grid, rows_Q1, columns_K))
    return values if values.ndim >= 2 else values.expand(1, -1) if values.ndim else values.expand(1, 1)


def bias_of(biases: Sequence[tuple[int, Expression]], grid: Grid) -> Tensor | Bias | None:
    """Return the sum of terms in the form that attention adds fastest; gradients reach the tensors that they read.

    Args:
        biases: terms with their signs.
        grid: the sizes; leading is (B, H).

    Returns:
        A tensor if it depends on queries or keys alone, or is a captured matrix as it is; else a bias by position;
        None for nothing.

    Example:
        >>> from qkv.hub.flex.expressions import symbol
        >>> i, j = symbol("query"), symbol("key")
        >>> grid = Grid((1, 1), 4, 4, torch.device("cpu"))
        >>> type(bias_of([(1, operation("sub", j, i))], grid)).__name__, bias_of([(1, j)], grid).shape
        ('DistanceBias', torch.Size([1, 4]))
    """
    added = _total(biases)
    if added is None:
        return None
    if not added.symbols & {"query", "key"}:
        return _floating(per_row(added, grid)[..., None])
    if "key" not in added.symbols:
        return _floating(per_row(added, grid).unsqueeze(-1))
    if "query" not in added.symbols:
        return _floating(per_key(added, grid).unsqueeze(-2))
    table = _table(added, grid)
    if table is not None:
        return _floating(table)
    kind = DistanceBias if is_relative(added) else PairBias
    return kind(added, grid, tensors_of([added]))


def _floating(bias: Tensor) -> Tensor:
    return bias if bias.is_floating_point() else bias.to(torch.float32)


def _total(biases: Sequence[tuple[int, Expression]]) -> Expression | None:
    """Return the sum of terms, each of which was added to a score, in float32 at least."""
    total: Expression | None = None
    for sign, term in biases:
        wide = cast(term, torch.promote_types(term.dtype, torch.float32))
        if total is None:
            total = term if sign > 0 else operation("neg", wide, dtype=wide.dtype)
        else:
            kind = torch.promote_types(total.dtype, wide.dtype)
            total = operation("add" if sign > 0 else "sub", cast(total, kind), wide, dtype=kind)
    return None if total is None or constant(total) == 0 else total


def _table(added: Expression, grid: Grid) -> Tensor | None:
    """Return a captured matrix that is read at the indices of the pair, with dimensions (B, H, Q, K) or of size 1."""
    if added.name != "index":
        return None
    table, *indices = added.arguments
    names = [index.name for index in indices]
    sizes = dict(zip(("batch", "head", "query", "key"), (*grid.leading, grid.queries, grid.keys), strict=True))
    if table.name != "captured" or len(set(names)) < len(names) or not set(names) <= set(sizes):
        return None
    read: Tensor = table.arguments[0].tensor
    if any(size < sizes[name] for name, size in zip(names, read.shape, strict=True)):
        return None
    read = read[tuple(slice(0, sizes[name]) for name in names)]
    read = read.permute([names.index(name) for name in sizes if name in names])
    return read[tuple(slice(None) if name in names else None for name in sizes)]
