"""PyTorch's fused CPU kernel and its backward pass, called nowhere else; what it gives beside the output, log Σ e^s, is
read here too.

`scaled_dot_product_attention` keeps two things from its callers that these operators do not:

- They take the last dimension to have stride 1, and read past the end of a tensor where it has not.
- They say nothing of numbers that got out of hand. A mask is added as −inf, and NaN or +inf of a key that a row may
  not see makes that row NaN; a row whose scores are all NaN is taken for an empty one where they fill no register; in
  half types a score of +inf may give 0. `trusted` finds each of these in log Σ e^s: it is then NaN, infinite or 0.
"""

from typing import Any

import torch
from torch import Tensor

_NAME = "_scaled_dot_product_flash_attention_for_cpu"
_forward: Any = getattr(torch, _NAME, None)
_backward: Any = getattr(torch.ops.aten, f"{_NAME}_backward", None)
KERNELS = _forward is not None and _backward is not None
"""Whether this PyTorch has them; `scaled_dot_product_attention` stands in for the former where it has not."""

REGISTER = 16
"""The most numbers of a register: with as many keys or more, the maximum of a row whose scores are all NaN is NaN."""


def forward(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Attend under softmax, on the CPU.

    Args:
        query: (B, H, Q, F), of any strides, as all tensors are.
        key: (B, H, K, F).
        value: (B, H, K, F).
        mask: bool, or a bias in the type of the query; broadcasts to (B, H, Q, K), of rank two or four.
        causal: whether query i sees the keys j ≤ i alone.
        scale: multiplies the products.

    Returns:
        The output (B, H, Q, F), differentiable once; and log Σ e^s (B, H, Q), at least float32, 0 where a row may see
        nothing, without a gradient.

    Example:
        >>> x = torch.zeros(1, 1, 2, 4)
        >>> forward(x, x, x + 1, None, False, 1.0)[1]
        tensor([[[0.6931, 0.6931]]])
    """
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.where(mask, query.new_zeros(()), -torch.inf)
    query, key, value = _together(query), _together(key), _together(value)
    output, lse = _forward(query, key, value, 0.0, causal, attn_mask=mask, scale=scale)
    return output, lse.detach()


def backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, output: Tensor, lse: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Give the gradients of query, key and value.

    Args:
        grad: of the output, (B, H, Q, F), of any strides, as all tensors are.
        query, key, value, causal, scale: as `forward` took them.
        output, lse: weights are made again as e^(s − lse).

    Example:
        >>> x = torch.ones(1, 1, 2, 4)
        >>> backward(x, x, x, x, *forward(x, x, x, None, False, 1.0), False, 1.0)[2][0, 0, 0]
        tensor([1., 1., 1., 1.])
    """
    grad, query, key, value, output = (_together(x) for x in (grad, query, key, value, output))
    found: tuple[Tensor, Tensor, Tensor] = _backward(
        grad, query, key, value, output, lse.contiguous(), 0.0, causal, attn_mask=None, scale=scale
    )
    return found


def _together(x: Tensor) -> Tensor:
    """Numbers of the last dimension beside each other; of a dimension of size 1 no stride is read."""
    return x if x.stride(-1) == 1 else x.contiguous()


def suspect(keys: int, dtype: torch.dtype, masked: bool) -> bool:
    """Say whether a call can give numbers that `trusted` must look at: the others give NaN where the equation does.

    Args:
        keys: K.
        dtype: of query, key and value.
        masked: whether anything is added to the scores.

    Example:
        >>> suspect(15, torch.float32, False), suspect(16, torch.float32, False), suspect(16, torch.float32, True)
        (True, False, True)
    """
    return masked or keys < REGISTER or dtype.itemsize == 2


def trusted(lse: Tensor, keys: int, masked: bool) -> bool:
    """Say whether the output beside log Σ e^s is that of the equation, empty rows apart.

    Where nothing is added to scores, no row is empty, and 0 stands for a maximum of −inf: all scores of a row are NaN,
    unless their exponentials happen to add up to 1. Beside a mask such a row is NaN, and 0 stands for an empty row.

    Example:
        >>> trusted(torch.tensor([0.5, -3.0]), 9, False), trusted(torch.tensor([0.5, 0.0]), 9, False)
        (True, False)
        >>> trusted(torch.tensor([0.5, 0.0]), 9, True), trusted(torch.tensor([0.5, torch.nan]), 9, True)
        (True, False)
    """
    # x/x is 1, and NaN for 0, infinities and NaN. A sum of finite numbers that overflows is looked at in vain.
    total = float((lse if masked or keys >= REGISTER else lse / lse).sum())
    return total - total == 0
