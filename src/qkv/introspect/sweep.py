"""One pass over all weights, tile by tile, for any number of statistics."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from math import prod
from typing import Literal, final

import torch
from torch import Tensor

from qkv.engine.problem import Call
from qkv.introspect.tiles import tile
from qkv.shapes import Shape

WEIGHTS = 1 << 20
"""Number of weights computed at a time."""
_WIDTH = 1 << 12


class Tally(ABC):
    """A statistic accumulated tile by tile, each row from its first key to its last."""

    @abstractmethod
    def add(self, w: Tensor, rows: slice, columns: slice) -> None:
        """Accumulate the weights (..., rows, columns)."""

    @abstractmethod
    def result(self) -> Tensor:
        """Return the result."""


@final
class Received(Tally):
    """Σ_i w_ij of each key, (..., K), float64."""

    def __init__(self, shape: Shape, device: torch.device) -> None:
        self.sums = torch.zeros(*shape[:-2], shape[-1], dtype=torch.float64, device=device)

    def add(self, w: Tensor, rows: slice, columns: slice) -> None:
        """Add the sums over columns."""
        self.sums[..., columns] += w.sum(-2, dtype=torch.float64)

    def result(self) -> Tensor:
        """Return the sums."""
        return self.sums


@final
class Total(Tally):
    """Σ_j w_ij of each row, (..., Q), float64."""

    def __init__(self, shape: Shape, device: torch.device) -> None:
        self.sums = torch.zeros(shape[:-1], dtype=torch.float64, device=device)

    def add(self, w: Tensor, rows: slice, columns: slice) -> None:
        """Add the sums over rows."""
        self.sums[..., rows] += w.sum(-1, dtype=torch.float64)

    def result(self) -> Tensor:
        """Return the sums."""
        return self.sums


@final
class Entropy(Tally):
    """−Σ_j w_ij log w_ij of each row, (..., Q), float64."""

    def __init__(self, shape: Shape, device: torch.device) -> None:
        self.sums = torch.zeros(shape[:-1], dtype=torch.float64, device=device)

    def add(self, w: Tensor, rows: slice, columns: slice) -> None:
        """Add −w log w, 0 where w = 0."""
        self.sums[..., rows] += torch.special.entr(w).sum(-1, dtype=torch.float64)

    def result(self) -> Tensor:
        """Return the sums."""
        return self.sums


@final
class Largest(Tally):
    """The n largest weights of each row and their keys; ties go to earlier keys.

    Attributes:
        weights: (..., Q, n), descending.
        keys: (..., Q, n), int64.
    """

    def __init__(self, shape: Shape, device: torch.device, dtype: torch.dtype, count: int) -> None:
        self.weights = torch.full((*shape[:-1], count), -torch.inf, dtype=dtype, device=device)
        self.keys = torch.zeros((*shape[:-1], count), dtype=torch.int64, device=device)

    def add(self, w: Tensor, rows: slice, columns: slice) -> None:
        """Merge the tile's largest after those so far, which come from earlier keys."""
        count = self.weights.shape[-1]
        largest, indices = _first_of_largest(w, min(count, w.shape[-1]))
        weights = torch.cat([self.weights[..., rows, :], largest], -1)
        keys = torch.cat([self.keys[..., rows, :], indices + columns.start], -1)
        weights, order = weights.sort(dim=-1, descending=True, stable=True)
        self.weights[..., rows, :] = weights[..., :count]
        self.keys[..., rows, :] = keys.gather(-1, order)[..., :count]

    def result(self) -> Tensor:
        """Return the weights."""
        return self.weights


def _first_of_largest(w: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the largest in descending order with stable ties, which `topk` alone does not guarantee."""
    weights, keys = w.topk(count, -1)
    least = weights[..., -1:]
    if bool(((w == least).sum(-1) > (weights == least).sum(-1)).any()):
        weights, order = w.sort(dim=-1, descending=True, stable=True)
        return weights[..., :count], order[..., :count]
    keys, order = keys.sort(-1)
    weights, descending = weights.gather(-1, order).sort(dim=-1, descending=True, stable=True)
    return weights, keys.gather(-1, descending)


@final
class Pooled(Tally):
    """The matrix downsampled to height × width blocks, by mean or maximum.

    Block a holds the rows from ⌈a·Q/height⌉ up to ⌈(a + 1)·Q/height⌉, likewise for keys.
    """

    def __init__(
        self, shape: Shape, device: torch.device, size: tuple[int, int], how: Literal["mean", "max"], dtype: torch.dtype
    ) -> None:
        self.how, self.size, self.shape = how, size, shape
        kind = torch.float64 if how == "mean" else dtype
        start = 0.0 if how == "mean" else -torch.inf
        self.cells = torch.full((*shape[:-2], *size), start, dtype=kind, device=device)
        self.blocks = [
            torch.arange(length, device=device) * blocks // length
            for length, blocks in zip(shape[-2:], size, strict=True)
        ]

    def add(self, w: Tensor, rows: slice, columns: slice) -> None:
        """Pool the rows of each block first, then the columns of the result."""
        downward, across = self.blocks[0][rows], self.blocks[1][columns]
        for block in range(int(downward[0]), int(downward[-1]) + 1):
            inside = w[..., downward == block, :]
            line = inside.sum(-2, dtype=torch.float64) if self.how == "mean" else inside.amax(-2)
            cells = self.cells[..., block, :]
            index = across.expand(line.shape)
            cells.scatter_reduce_(-1, index, line.to(cells.dtype), "sum" if self.how == "mean" else "amax")

    def result(self) -> Tensor:
        """Return the blocks, (..., height, width)."""
        if self.how == "max":
            return self.cells
        counts = [index.bincount(minlength=blocks) for index, blocks in zip(self.blocks, self.size, strict=True)]
        return self.cells / (counts[0][:, None] * counts[1])


def sweep(call: Call, kind: str, state: Tensor, shape: Shape, provided: bool, tallies: Sequence[Tally]) -> None:
    """Compute every weight once, in tiles, and pass it to each tally.

    Args:
        call, kind, state, provided: as for `tile`.
        shape: (..., Q, K), leading dimensions of the call.
        tallies: the statistics to accumulate.
    """
    for rows, columns in _tiles(shape):
        w = tile(call, kind, lambda: state, rows, columns, provided)
        w = w.expand(*shape[:-2], *w.shape[-2:])
        for tally in tallies:
            tally.add(w, rows, columns)


def _tiles(shape: Shape) -> Iterator[tuple[slice, slice]]:
    leading, (queries, keys) = max(1, prod(shape[:-2])), shape[-2:]
    width = max(1, min(keys, _WIDTH))
    height = max(1, min(queries, WEIGHTS // (leading * width)))
    for start in range(0, queries, height):
        for column in range(0, keys, width):
            yield slice(start, min(start + height, queries)), slice(column, min(column + width, keys))
