"""A softmax with a sink by PyTorch's fused kernel, forward and backward: the sink is never a column of scores.

With ℓ = log Σ_j e^{s_j} of a row and ℓ' = log(e^ℓ + e^sink), the weights are w_j = e^{s_j − ℓ'}: those of a softmax,
all smaller by the factor e^{ℓ − ℓ'}, and so is the output. The kernel's backward pass makes weights from scores and row
state, and takes w_j(g·v_j − g·out) for the gradient of s_j: given ℓ' and the smaller output in place of its own, these
are the gradients with the sink. The sink's own is −w_sink (g·out), summed over rows.
"""

from typing import Any

import torch
from torch import Tensor

from qkv.algorithms.sdpa import flash
from qkv.engine.autograd import second_derivative
from qkv.engine.problem import Problem
from qkv.values.parameters import finite, spread


def refuses(problem: Problem) -> str | None:
    """Say why a sink cannot be served, or None: only rows that see a key, whose state needs no gradient.

    Half precision would be rounded twice.
    """
    served = (
        flash.KERNELS
        and problem.device == "cpu"
        and problem.mask in ("all", "causal")
        and problem.bias == "none"
        and problem.dtype in (torch.float32, torch.float64)
        and not torch.compiler.is_compiling()
    )
    return None if served else "the softmax has a sink"


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sink: float | Tensor,
    plain: tuple[Tensor, Tensor],
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Attend with a sink.

    Args:
        query: (B, H, Q, F).
        key: (B, H, K, F).
        value: (B, H, K, F).
        sink: a number, or a tensor that broadcasts to (B, H).
        plain: output and row state without it, as `flash.forward` gives them where no gradient is recorded.
        causal: whether query i sees the keys j ≤ i alone.
        scale: multiplies the products.

    Returns:
        The output (B, H, Q, F), differentiable once; and the row state (B, H, Q), without a gradient.

    Example:
        >>> zeros, ones = torch.zeros(1, 1, 2, 4), torch.ones(1, 1, 3, 4)
        >>> plain = flash.forward(zeros, ones, ones, None, False, 1.0)
        >>> attend(zeros, ones, ones, 0.0, plain, False, 1.0)[0][0, 0, 0]
        tensor([0.7500, 0.7500, 0.7500, 0.7500])
    """
    sink = torch.as_tensor(spread(sink, by=1), dtype=query.dtype, device=query.device)
    output, state = _Sunk.apply(query, key, value, sink, plain, causal, scale)  # type: ignore[no-untyped-call]
    return output, state


class _Sunk(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sink: Tensor,
        plain: tuple[Tensor, Tensor],
        causal: bool,
        scale: float,
    ) -> tuple[Tensor, Tensor]:
        output, lse = plain
        state = torch.logaddexp(lse, sink)
        output *= torch.sigmoid(lse - finite(sink)).unsqueeze(-1)
        ctx.save_for_backward(query, key, value, sink, output, state)
        ctx.causal, ctx.scale = causal, scale
        ctx.mark_non_differentiable(state)
        return output, state

    @staticmethod
    def backward(ctx: Any, g_output: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        found = _SunkBackward.apply(g_output, ctx.causal, ctx.scale, ctx.needs_input_grad[3], *ctx.saved_tensors)  # type: ignore[no-untyped-call]
        return (*found, None, None, None)


class _SunkBackward(torch.autograd.Function):
    """The gradients, as a function whose own derivative says where second derivatives are to be had."""

    @staticmethod
    def forward(
        ctx: Any, g: Tensor, causal: bool, scale: float, learns: bool, *known: Tensor
    ) -> tuple[Tensor | None, ...]:
        query, key, value, sink, output, state = known
        found = flash.backward(g, query, key, value, output, state, causal, scale)
        if not learns:
            return (*found, None)
        weight = torch.exp(finite(sink) - finite(state))
        return (*found, -(weight * (g * output).sum(-1)).sum_to_size(sink.shape))

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise second_derivative("sdpa")
