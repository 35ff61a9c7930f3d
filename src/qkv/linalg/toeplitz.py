"""Toeplitz matrices, whose entry (i, j) depends on j − i alone, from their diagonals; and sums of diagonals."""

from torch import Tensor

from qkv.values.execution import on_host

ROWS = 128
"""How many rows of a matrix are skewed at a time: they stay in the cache, and skewing adds few columns."""


def window(rows: slice, columns: slice, queries: int) -> slice:
    """Return which diagonals of a matrix a tile needs.

    Args:
        rows, columns: of the tile, start and stop given.
        queries: Q, the number of rows of the matrix, whose diagonals j − i go from 1 − Q to K − 1.

    Example:
        >>> window(slice(0, 2), slice(0, 3), 2), window(slice(1, 2), slice(0, 3), 2)
        (slice(0, 4, None), slice(0, 3, None))
    """
    return slice(columns.start + queries - rows.stop, columns.stop + queries - 1 - rows.start)


def toeplitz(diagonals: Tensor, rows: int) -> Tensor:
    """Return the matrix with given diagonals.

    Args:
        diagonals: (..., h + c − 1), of j − i from 1 − h to c − 1.
        rows: h.

    Returns:
        (..., h, c).

    Example:
        >>> import torch
        >>> toeplitz(torch.arange(-1, 3), 2)
        tensor([[ 0,  1,  2],
                [-1,  0,  1]])
    """
    # The last row begins with the first diagonal. Without the copy, the flipped view would be column-major.
    return diagonals.unfold(-1, diagonals.shape[-1] - rows + 1, 1).contiguous().flip(-2)


def diagonal_sums(matrix: Tensor) -> Tensor:
    """Return the sum of each diagonal of (..., h, c), as (..., h + c − 1): the gradient of `toeplitz`.

    Source: the skewing of Huang et al. 2018, "Music Transformer", section 3.4.1: reading a matrix with rows that are
        one shorter shifts each row by one column relative to the previous one.

    Example:
        >>> import torch
        >>> diagonal_sums(torch.ones(2, 3))
        tensor([1., 2., 2., 1.])
    """
    *leading, rows, columns = matrix.shape
    if rows == 1:
        return matrix.squeeze(-2)
    if rows <= ROWS or not on_host(matrix.device):
        size = rows + columns - 1
        skewed = matrix.new_zeros(*leading, rows * size)
        inner = skewed[..., rows - 1 : rows * size - 1].view(*leading, rows, size - 1)
        inner[..., :columns] = matrix
        return skewed.view(*leading, rows, size).sum(-2)
    sums = matrix.new_zeros(*leading, rows + columns - 1)
    for start in range(0, rows, ROWS):
        stop = min(start + ROWS, rows)
        sums[..., rows - stop : rows - start + columns - 1] += diagonal_sums(matrix[..., start:stop, :])
    return sums
