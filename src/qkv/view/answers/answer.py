"""The types of answers: a matrix of numbers, or JSON."""

import math
from dataclasses import dataclass
from typing import Any, Literal, final

from torch import Tensor


@final
@dataclass(frozen=True, eq=False)
class Numbers:
    """A matrix in its transfer format: float32, row by row, little-endian.

    Args:
        rows, columns: its shape.
        content: the bytes.
        state: whether it is exact, or estimated from a sample.
        low, high: the smallest and the largest number.
    """

    rows: int
    columns: int
    content: bytes
    state: Literal["exact", "sampled"]
    low: float
    high: float


@final
@dataclass(frozen=True, eq=False)
class JsonValue:
    """Any JSON value."""

    content: Any


Answer = Numbers | JsonValue


def numbers(matrix: Tensor, exact: bool = True) -> Numbers:
    """Convert a matrix (rows, columns) to an answer.

    Example:
        >>> import torch
        >>> numbers(torch.tensor([[0.5, 0.25]])).content.hex()
        '0000003f0000803e'
    """
    m = matrix.detach().float().cpu().contiguous()
    low, high = (float(m.min()), float(m.max())) if m.numel() else (0.0, 0.0)
    rows, columns = m.shape
    content = m.numpy().astype("<f4").tobytes()
    return Numbers(rows, columns, content, "exact" if exact else "sampled", low, high)


def plain(tensor: Tensor) -> list[Any]:
    """Convert a tensor to numbers for JSON, which has no NaN and no infinity: they become null."""
    listed: list[Any] = tensor.detach().double().cpu().tolist()
    return [_plain(item) for item in listed] if tensor.ndim else [_plain(listed)]


def _plain(item: Any) -> Any:
    if isinstance(item, list):
        return [_plain(inner) for inner in item]
    return item if math.isfinite(item) else None
