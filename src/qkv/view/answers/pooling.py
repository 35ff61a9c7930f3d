"""Pooling blocks of weights to cells of a coarser level: sums, maxima, and positions."""

import torch
from torch import Tensor

SIDE = 256
"""Cells along a side of a tile."""


def levels(rows: int, columns: int) -> int:
    """Return how many levels a matrix has: the last fits in one tile.

    Example:
        >>> levels(256, 10), levels(131_072, 131_072)
        (1, 10)
    """
    level = 0
    while max(rows, columns) > SIDE << level:
        level += 1
    return level + 1


def fine(cells: range, level: int, size: int) -> slice:
    """Return the range of weights, out of `size`, that cells of a level cover.

    Example:
        >>> fine(range(1, 3), 2, 10)
        slice(4, 10, None)
    """
    return slice(cells.start << level, min(cells.stop << level, size))


def extents(cells: range, level: int, size: int) -> Tensor:
    """Return how many weights, out of `size`, each cell of a level covers; fewer at the edge.

    Example:
        >>> extents(range(1, 3), 2, 10)
        tensor([4., 2.])
    """
    edges = torch.arange(cells.start, cells.stop + 1, device="cpu") << level
    return edges.clamp(max=size).diff().float()


def pooled(tile: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """Compute sums and maxima of blocks; those at the edges are smaller.

    Example:
        >>> pooled(torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), 2)
        (tensor([[12.,  9.]]), tensor([[5., 6.]]))
    """
    if block == 1:
        return tile, tile
    # Rows first: this adds contiguous memory to contiguous memory, many elements at a time.
    total, top = pooled_rows(tile, block)
    return pooled_columns(total, block)[0], pooled_columns(top, block)[1]


def pooled_rows(tile: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """Compute sums and maxima of blocks of rows."""
    rows, columns = tile.shape
    start = rows // block * block
    inner = tile[:start].reshape(start // block, block, columns)
    total, top = inner.sum(1), inner.amax(1)
    if start == rows:
        return total, top
    remainder = tile[start:]
    return torch.cat([total, remainder.sum(0, keepdim=True)]), torch.cat([top, remainder.amax(0, keepdim=True)])


def pooled_columns(tile: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """Compute sums and maxima of blocks of columns."""
    rows, columns = tile.shape
    start = columns // block * block
    inner = tile[:, :start].reshape(rows, start // block, block)
    total, top = inner.sum(-1), inner.amax(-1)
    if start == columns:
        return total, top
    remainder = tile[:, start:]
    return torch.cat([total, remainder.sum(-1, keepdim=True)], 1), torch.cat([top, remainder.amax(-1, keepdim=True)], 1)


def information(tile: Tensor) -> Tensor:
    """Compute −Σ w log w of each row, in nats; a weight of 0 contributes 0.

    Example:
        >>> information(torch.tensor([[1.0, 0.0], [0.5, 0.5]]))
        tensor([-0.0000, 0.6931])
    """
    # The smallest normal number instead of 0: 0·log stays 0, and log stays vectorized.
    return -(tile.clamp(min=torch.finfo(tile.dtype).tiny).log_() * tile).sum(1)
