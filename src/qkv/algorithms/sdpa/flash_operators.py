"""The only module that calls PyTorch's fused CPU kernel and its backward pass; it also returns the row state log Σ e^s.

`scaled_dot_product_attention` hides two properties of these operators from its callers; they are handled here:

- The operators assume that the last dimension has stride 1, and read past the end of a tensor if it does not. So do
  outputs and gradients, which get the order of dimensions of the inputs' strides: where another stride is 1 too, as in
  sliding windows, their last dimension may be another.
- They do not report non-finite numbers. A mask is added as −inf, so NaN or +inf in a key that is masked for a row makes
  that row NaN; a row whose scores are all NaN counts as empty if its scores do not fill a vector register; in
  half-precision types a score of +inf may give 0. `trusted` detects each of these cases from log Σ e^s, which is then
  NaN, infinite or 0.
"""

from typing import Any

import torch
from torch import Tensor

from qkv.algorithms.sdpa.operands import contiguous_last_dim

_NAME = "_scaled_dot_product_flash_attention_for_cpu"
_forward: Any = getattr(torch, _NAME, None)
_backward: Any = getattr(torch.ops.aten, f"{_NAME}_backward", None)
KERNELS = _forward is not None and _backward is not None
"""Whether this PyTorch has both operators; if not, `scaled_dot_product_attention` replaces the forward one."""

REGISTER = 16
"""Floats in the widest vector register: with at least as many keys, the maximum of a row of NaN scores is NaN."""


def forward(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Compute softmax attention on the CPU.

    Args:
        query: (B, H, Q, F); this and all other tensors may have any strides.
        key: (B, H, K, F).
        value: (B, H, K, F).
        mask: bool, or a bias in the type of the query; broadcasts to (B, H, Q, K), of rank two or four.
        causal: whether query i sees only the keys j ≤ i.
        scale: factor of the dot products.

    Returns:
        The output (B, H, Q, F), differentiable once; and log Σ e^s (B, H, Q), at least float32, 0 for a row without
        visible keys, without a gradient.

    Example:
        >>> x = torch.zeros(1, 1, 2, 4)
        >>> forward(x, x, x + 1, None, False, 1.0)[1]
        tensor([[[0.6931, 0.6931]]])
    """
    if mask is not None and mask.dtype == torch.bool:
        mask = added(mask, query.dtype)
    query, key, value = contiguous_last_dim(query), contiguous_last_dim(key), contiguous_last_dim(value)
    output, lse = _forward(query, key, value, 0.0, causal, attn_mask=mask, scale=scale)
    return output, lse.detach() if lse.requires_grad else lse


def added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a bool mask as the kernel takes it: 0 where a key is visible, −inf elsewhere.

    Example:
        >>> added(torch.tensor([True, False]), torch.float32)
        tensor([0., -inf])
    """
    return mask.to(dtype).log_()


def backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, output: Tensor, lse: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of query, key and value.

    Args:
        grad: gradient of the output, (B, H, Q, F); this and all other tensors may have any strides.
        query, key, value, causal, scale: as passed to `forward`.
        output, lse: as returned by `forward`; the weights are recomputed as e^(s − lse).

    Example:
        >>> x = torch.ones(1, 1, 2, 4)
        >>> backward(x, x, x, x, *forward(x, x, x, None, False, 1.0), False, 1.0)[2][0, 0, 0]
        tensor([1., 1., 1., 1.])
    """
    grad, query, key, value, output = (contiguous_last_dim(x) for x in (grad, query, key, value, output))
    gradients: tuple[Tensor, Tensor, Tensor] = _backward(
        grad, query, key, value, output, lse.contiguous(), 0.0, causal, attn_mask=None, scale=scale
    )
    return gradients


def suspect(keys: int, dtype: torch.dtype, masked: bool) -> bool:
    """Return whether `trusted` must check the output of a call.

    Other calls give NaN where the equation does, except that a row whose scores all overflow to −inf gives 0.

    Args:
        keys: K.
        dtype: of query, key and value.
        masked: whether a mask or bias is added to the scores.

    Example:
        >>> suspect(15, torch.float32, False), suspect(16, torch.float32, False), suspect(16, torch.float32, True)
        (True, False, True)
    """
    return masked or keys < REGISTER or dtype.itemsize == 2


def trusted(lse: Tensor, masked: bool) -> bool:
    """Return whether log Σ e^s shows that the output is that of the equation, empty rows apart.

    Without a mask or bias no row is empty, and lse = 0 means that the maximum was −inf: all scores of the row are NaN
    or overflowed, unless their exponentials happen to add up to 1. With a mask lse = 0 means an empty row.

    Example:
        >>> trusted(torch.tensor([0.5, -3.0]), False), trusted(torch.tensor([0.5, 0.0]), False)
        (True, False)
        >>> trusted(torch.tensor([0.5, 0.0]), True), trusted(torch.tensor([0.5, torch.nan]), True)
        (True, False)
    """
    # x/x is 1, and NaN for 0, infinities and NaN. A sum of finite numbers that overflows is a harmless false alarm.
    total = float((lse if masked else lse / lse).sum())
    return total - total == 0
