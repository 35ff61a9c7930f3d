"""A softmax with a sink by PyTorch's fused kernel, forward and backward: the sink is never a column of scores.

With ℓ = log Σ_j e^{s_j} of a row and ℓ' = log(e^ℓ + e^sink), the weights are w_j = e^{s_j − ℓ'}: those of a softmax,
all smaller by the factor e^{ℓ − ℓ'}, and so is the output. The kernel's backward pass makes weights from scores and row
state, and takes w_j(g·v_j − g·out) for the gradient of s_j: given ℓ' and the smaller output in place of its own, these
are the gradients with the sink. The sink's own is −w_sink (g·out), summed over rows.
"""

from typing import Any

import torch
from torch import Tensor

from qkv.algorithms.sdpa import flash, flash_operators
from qkv.algorithms.sdpa.operands import products_of
from qkv.algorithms.tiled import blocked
from qkv.engine.algorithm import Algorithm, Facts, Result
from qkv.engine.autograd import once_differentiable
from qkv.engine.problem import Call, Problem
from qkv.normalizers.dense import Softmax
from qkv.scores.widened import as_it_is
from qkv.values.parameters import finite, spread


def refuses(problem: Problem) -> str | None:
    """Return why a sink cannot be served, or None. Half precision would be rounded twice."""
    if not problem.sink:
        return "the softmax has no sink"
    served = (
        flash_operators.KERNELS
        and problem.device == "cpu"
        and problem.mask in ("all", "causal")
        and problem.bias == "none"
        and problem.dtype in (torch.float32, torch.float64)
        and problem.mode == "eager"
        and not (problem.state and problem.gradient)
    )
    return flash.refuses_mechanism(problem) if served else "a sink is served without other masks, biases and types"


def run(problem: Problem, call: Call, facts: Facts = None) -> Result:
    """Attend without the sink, then take its share away; in tiles where the kernel gets non-finite numbers wrong."""
    assert isinstance(call.normalizer, Softmax)
    assert call.normalizer.sink is not None
    given = products_of(call)
    with as_it_is(given.query):
        inputs = flash.kernel_inputs(problem, call, given)
        with torch.no_grad():
            output, lse = flash_operators.forward(*inputs)
        if not flash.trusted(problem, inputs, lse):
            return blocked.run(problem, call)
        sink = _by_head(call.normalizer.sink, problem)
        output, lse = attend(*inputs[:3], sink, (output, lse), inputs.causal, inputs.scale)
        return flash.finish(problem, call, output, lse)


def _by_head(sink: float | Tensor, problem: Problem) -> float | Tensor:
    """Reshape a sink as the leading dimensions are reshaped to two."""
    if not isinstance(sink, Tensor) or sink.ndim < 2 or len(problem.leading) == 2:
        return sink
    return sink.expand(problem.leading).reshape(-1, problem.leading[-1])


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
        plain: output and row state without it, as `flash_operators.forward` gives them where no gradient is recorded.
        causal: whether query i sees the keys j ≤ i alone.
        scale: multiplies the products.

    Returns:
        The output (B, H, Q, F), differentiable once; and the row state (B, H, Q), without a gradient.

    Example:
        >>> zeros, ones = torch.zeros(1, 1, 2, 4), torch.ones(1, 1, 3, 4)
        >>> plain = flash_operators.forward(zeros, ones, ones, None, False, 1.0)
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
    @once_differentiable("sdpa")
    def backward(ctx: Any, g: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, sink, output, state = ctx.saved_tensors
        found = flash_operators.backward(g, query, key, value, output, state, ctx.causal, ctx.scale)
        of_sink = None
        if ctx.needs_input_grad[3]:
            weight = torch.exp(finite(sink) - finite(state))
            of_sink = -(weight * (g * output).sum(-1)).sum_to_size(sink.shape)
        return (*found, of_sink, None, None, None)


SINK = Algorithm(
    "sdpa.softmax_sink", "sdpa", "PyTorch's fused kernel, each row rescaled by its sink", refuses, flash.work, run
)
