"""Operands of dot products in the layouts that the kernels of this family take."""

from typing import NamedTuple

from torch import Tensor

from qkv.engine.problem import Call
from qkv.shapes import Shape


class Products(NamedTuple):
    """Scores as scaled dot products; all tensors have one dtype, at least as wide as that of the call.

    Attributes:
        query: (..., Q, F).
        key: (..., K, F).
        value: (..., K, V).
        scale: factor of the dot products.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    scale: float


def products_of(call: Call) -> Products:
    """Return the operands of a call whose core is `dot`. A score may compute its operands in a wider dtype."""
    query, key, scale = call.score.prepare(call.query, call.key).with_number()
    value = call.value if call.value.dtype == query.dtype else call.value.to(query.dtype)
    return Products(query, key, value, scale)


def by_head(x: Tensor, leading: Shape, last: int = 2) -> Tensor:
    """Reshape (..., last dimensions) to (batch, heads, last dimensions), as a view if possible."""
    shape = x.shape
    same = shape[:-last] == leading
    if same and len(leading) == 2:
        return x
    rest = shape[len(shape) - last :]
    if not same:
        x = x.expand(*leading, *rest)
    return x if len(leading) == 2 else x.reshape(-1, leading[-1] if leading else 1, *rest)


def contiguous_last_dim(x: Tensor) -> Tensor:
    """Return the same numbers in a layout in which the last dimension has stride 1 and no other dimension does.

    Example:
        >>> import torch
        >>> contiguous_last_dim(torch.ones(2, 3).mT).stride()
        (2, 1)
    """
    strides = x.stride()
    return x if strides[-1] == 1 and strides.count(1) == 1 else x.contiguous()
