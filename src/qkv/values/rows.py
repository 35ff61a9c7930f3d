"""Rows of a batch: selected by their indices, and which of their positions are real."""

import torch
from torch import Tensor

from qkv.errors import DtypeError, ShapeError
from qkv.shapes import show
from qkv.values.checked import explained_by
from qkv.values.execution import readable
from qkv.values.parameters import is_dense
from qkv.values.sharded import expect_whole


def expect_rows(rows: Tensor, count: int) -> None:
    """Check the indices of rows of a batch.

    Args:
        rows: the indices (R,), int64 or int32.
        count: B, the number of rows of the batch.

    Raises:
        DtypeError: they are not a dense tensor of these integers.
        ShapeError: they have another shape, or an index is out of range.

    Example:
        >>> expect_rows(torch.tensor([0, 3]), 2)
        Traceback (most recent call last):
        qkv.errors.ShapeError: rows: expected indices of the 2 rows, from 0 to 1; got 3. Rows count from 0.
    """
    if not isinstance(rows, Tensor) or not is_dense(rows) or rows.dtype not in (torch.int64, torch.int32):
        got = f"dtype {rows.dtype}" if isinstance(rows, Tensor) else type(rows).__name__
        raise DtypeError("rows", "a dense tensor of int64", got, "Use torch.as_tensor, or .long().")
    if rows.ndim != 1:
        raise ShapeError("rows", "shape (R,)", show(tuple(rows.shape)), "They are indices, one for each new row.")
    if not readable(rows) or not rows.numel():
        return
    low, high = (int(number) for number in rows.aminmax())
    if low < 0 or high >= count:
        expected = f"indices of the {count} rows, from 0 to {count - 1}" if count else "no index, of an empty batch"
        raise ShapeError("rows", expected, f"{low if low < 0 else high}", "Rows count from 0.")


@explained_by(lambda x, rows: expect_rows(rows, len(x)))
def select_rows(x: Tensor, rows: Tensor) -> Tensor:
    """Select rows of a batch: fewer, repeated or reordered.

    Args:
        x: (B, ...).
        rows: indices (R,), int64.

    Returns:
        (R, ...).

    Raises:
        ShapeError, DtypeError: as `expect_rows`; the indices are looked at only if PyTorch refuses them.

    Example:
        >>> select_rows(torch.tensor([[1.0], [2.0]]), torch.tensor([1, 1])).tolist()
        [[2.0], [2.0]]
    """
    return x.index_select(0, rows)


def real_positions(lengths: Tensor, count: int) -> Tensor:
    """Return which positions of padded rows are real.

    Args:
        lengths: of the rows (B,).
        count: S, the positions of each row.

    Returns:
        (B, S), bool.

    Example:
        >>> real_positions(torch.tensor([2, 1]), 2).tolist()
        [[True, True], [True, False]]
    """
    expect_whole("lengths", False, "padding that a model counts")
    return torch.arange(count, device=lengths.device) < lengths[:, None]
