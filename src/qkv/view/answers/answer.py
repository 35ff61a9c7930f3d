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
        low, high: the smallest and the largest finite number.
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
    finite = m if bool(m.sum().isfinite()) else m[m.isfinite()]
    low, high = (float(finite.min()), float(finite.max())) if finite.numel() else (0.0, 0.0)
    rows, columns = m.shape
    content = m.numpy().astype("<f4").tobytes()
    return Numbers(rows, columns, content, "exact" if exact else "sampled", low, high)


def as_numbers(tensor: Tensor) -> list[Any]:
    """Convert a tensor to numbers; −∞, the score of a masked key, becomes None."""
    listed: list[Any] = tensor.detach().double().cpu().tolist()
    return [_as_number(item) for item in listed] if tensor.ndim else [_as_number(listed)]


def _as_number(item: Any) -> Any:
    if isinstance(item, list):
        return [_as_number(inner) for inner in item]
    return None if item == -math.inf else item


def as_json_numbers(content: Any) -> Any:
    """Return content that JSON can hold, which has no NaN and no infinity: `static/numbers.js` makes them again.

    Example:
        >>> as_json_numbers({"values": [0.5, float("nan")]})
        {'values': [0.5, {'number': 'NaN'}]}
    """
    if isinstance(content, float):
        if math.isfinite(content):
            return content
        return {"number": "NaN" if math.isnan(content) else "Infinity" if content > 0 else "-Infinity"}
    if isinstance(content, (list, tuple)):
        return [as_json_numbers(item) for item in content]
    if isinstance(content, dict):
        return {name: as_json_numbers(item) for name, item in content.items()}
    return content
