"""The gradients of a block of softmax attention over products by PyTorch's kernel, from the merged result.

The kernel computes each weight again as e^(s − lse), and needs the output only for g·o. With output and lse of all
keys, it gives what the keys of a block contribute to the gradients of the whole: the block is computed once only.
"""

import torch
from torch import Tensor

from qkv.algorithms.sdpa import flash_operators
from qkv.distributed.blocks import Mechanism
from qkv.scores.products import Dot, ScaledDot


def fused_scale(mechanism: Mechanism, inputs: tuple[Tensor, Tensor, Tensor]) -> float | None:
    """Return the factor of the products if the kernel computes the gradients of a call; None if not.

    Args:
        mechanism: the call.
        inputs: query, key and value of a block.
    """
    query, key, value = inputs
    fits = (
        flash_operators.KERNELS
        and mechanism.kind == "softmax"
        and mechanism.bias is None
        and not mechanism.dropout
        and mechanism.backend in ("auto", "sdpa")
        and query.device.type == "cpu"
        and query.dtype in (torch.float32, torch.float64)
        and query.shape[:-2] == key.shape[:-2] == value.shape[:-2]
        and query.shape[-1] == key.shape[-1] == value.shape[-1]
        and key.shape[-2] >= flash_operators.REGISTER
    )
    score = mechanism.score
    if not fits:
        return None
    if type(score) is Dot:
        return 1.0
    if type(score) is not ScaledDot or score.softcap is not None or isinstance(score.scale, Tensor):
        return None
    return query.shape[-1] ** -0.5 if score.scale is None else float(score.scale)


def fused_gradients(
    inputs: tuple[Tensor, Tensor, Tensor],
    from_output: Tensor,
    output: Tensor,
    state: Tensor,
    causal: bool,
    scale: float,
) -> tuple[Tensor, ...]:
    """Return the gradients of query, key and value of a block.

    Args:
        inputs: query, key and value of the block.
        from_output, output: (..., Q, V), the gradient and the output of its rows, over all keys.
        state: (..., Q), their log-sum-exp over all keys.
        causal: whether query i of the block sees its keys j ≤ i alone.
        scale: factor of the products.
    """
    gradient, query, key, value, merged = (x.reshape(1, -1, *x.shape[-2:]) for x in (from_output, *inputs, output))
    lse = state.to(output.dtype).reshape(1, -1, state.shape[-1])
    gradients = flash_operators.backward(gradient, query, key, value, merged, lse, causal, scale)
    return tuple(x.reshape(like.shape) for x, like in zip(gradients, inputs, strict=True))
