"""A softmax with a sink by PyTorch's fused kernels, forward and backward.

On a GPU the sink is a first key that every row sees: its value is 0, and one more feature, which is 1 in every query
and 0 in every other key, makes its score. PyTorch chooses the kernel and differentiates it.

On the CPU no score is computed for the sink. With ℓ = log Σ_j e^{s_j} of a row and ℓ' = log(e^ℓ + e^sink), the weights
are w_j = e^{s_j − ℓ'}: those of a softmax without the sink, times e^{ℓ − ℓ'}, and so is the output. The kernel's
backward pass recomputes the weights from scores and row state, and returns w_j(g·v_j − g·out) as the gradient of s_j.
Given ℓ' and the rescaled output, these are the gradients with the sink. The gradient of the sink is −w_sink (g·out),
summed over rows.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.algorithms.matrix.reference import with_matrix
from qkv.algorithms.sdpa import flash, flash_operators, row_state
from qkv.algorithms.sdpa.flash import KernelInputs
from qkv.algorithms.sdpa.operands import Products, by_head, products_of
from qkv.algorithms.tiled import blocked
from qkv.engine.algorithm import Algorithm, Facts, Result
from qkv.engine.autograd import differentiable_by
from qkv.engine.derivatives import Terms, causal_bounds, differentiable_gradients, visibility_of
from qkv.engine.mechanism import Mechanism, full_rank
from qkv.engine.problem import Call, Problem
from qkv.normalizers.dense import Softmax
from qkv.scores.pointwise import Linear
from qkv.values.parameters import finite, logaddexp, spread

LARGEST = 1e30
"""The largest sink as a score: fused kernels multiply scores by log₂e."""


def refuses_key(problem: Problem) -> str | None:
    """Return why a sink cannot be a key, or None. Half precision would round it."""
    if not problem.sink:
        return "the softmax has no sink"
    if problem.device != "cuda" or problem.dtype != torch.float32:
        return "a sink is a key in float32 on a GPU alone"
    return flash.refuses(problem._replace(sink=False))


def run_with_key(problem: Problem, call: Call, facts: Facts = None) -> Result:
    """Attend to the sink as to one more key."""
    assert isinstance(call.normalizer, Softmax)
    sink = call.normalizer.sink
    assert sink is not None
    call = with_matrix(call)
    query, key, value, scale = products_of(call)
    width = query.shape[-1]
    products = Products(F.pad(query * scale, (0, 1), value=1.0), F.pad(key, (0, 1)), value, 1.0)
    inputs = flash.kernel_inputs(problem, call, products)
    score = sink.to(query.dtype) if isinstance(sink, Tensor) else query.new_full((), sink)
    sinks = by_head(score.clamp(-LARGEST, LARGEST)[..., None, None], problem.leading)
    row = F.pad(sinks, (width, inputs.key.shape[-1] - width - 1)).expand(*inputs.key.shape[:2], -1, -1)
    return flash.finish(problem, call, flash.by_pytorch(problem, inputs, row), None)


def refuses(problem: Problem) -> str | None:
    """Return why a softmax with a sink cannot be computed here, or None."""
    if not problem.sink:
        return "the softmax has no sink"
    is_supported = (
        flash_operators.KERNELS
        and problem.device == "cpu"
        and problem.mask in ("all", "causal")
        and problem.bias == "none"
        and problem.mode == "eager"
        and not (problem.state and problem.gradient)
    )
    if not is_supported:
        return "a sink is served in eager CPU calls without a bias, and with a causal mask at most"
    return flash.refuses_mechanism(problem)


def run(problem: Problem, call: Call, facts: Facts = None) -> Result:
    """Attend without the sink, then rescale the output; in tiles if the kernel gets non-finite numbers wrong."""
    assert isinstance(call.normalizer, Softmax)
    assert call.normalizer.sink is not None
    products = flash.operands(problem, call)
    inputs = flash.kernel_inputs(problem, call, products)
    with torch.no_grad():
        output, lse = flash_operators.forward(*inputs[:6])
    if not flash.trusted(problem, call, inputs, lse):
        return blocked.run(problem, call)
    sink = _by_head(call.normalizer.sink, problem)
    output, lse = attend(inputs, sink, (output, lse))
    result = flash.finish(problem, call, output, lse)
    if result.state is None or not row_state.is_rounded(problem):
        return result
    sinks = torch.as_tensor(spread(call.normalizer.sink, by=1), device=products.query.device)
    return result._replace(state=row_state.unrounded(problem, call, products, result.state, sinks))


def _by_head(sink: float | Tensor, problem: Problem) -> float | Tensor:
    """Reshape a sink as the leading dimensions are reshaped to two."""
    if not isinstance(sink, Tensor) or sink.ndim < 2 or len(problem.leading) == 2:
        return sink
    return sink.expand(problem.leading).reshape(-1, problem.leading[-1])


def attend(inputs: KernelInputs, sink: float | Tensor, plain: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Compute attention with a sink.

    Args:
        inputs: the arguments of PyTorch's kernel.
        sink: a number, or a tensor that broadcasts to (B, H).
        plain: output and row state without the sink, as `flash_operators.forward` returns them without gradients; the
            output is overwritten.

    Returns:
        The output (B, H, Q, F), differentiable once, and the row state (B, H, Q), without a gradient.

    Example:
        >>> zeros, ones = torch.zeros(1, 1, 2, 4), torch.ones(1, 1, 3, 4)
        >>> inputs = KernelInputs(zeros, ones, ones, None, False, 1.0)
        >>> attend(inputs, 0.0, flash_operators.forward(*inputs[:6]))[0][0, 0, 0]
        tensor([0.7500, 0.7500, 0.7500, 0.7500])
    """
    sink = torch.as_tensor(spread(sink, by=1), dtype=inputs.query.dtype, device=inputs.query.device)
    settings = plain, inputs.causal, inputs.scale
    output, state = _SoftmaxWithSink.apply(*settings, *inputs[:3], sink)  # type: ignore[no-untyped-call]
    return output, state


def _gradients_with_graph(ctx: Any, g: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    """Return the gradients with a graph."""
    query, key, value, sink, *_ = ctx.saved_tensors
    mechanism = Mechanism("dot", Linear(), "softmax", ctx.scale, 0.0, False, tuple(query.shape[:-2]))
    visible = visibility_of(query, key, causal_bounds(query, key) if ctx.causal else (None, None))
    terms = Terms(query, key, value, parameter=full_rank(sink, 3).unsqueeze(-1))
    needs_grad = [True, True, True, False, False, ctx.needs_input_grad[6]]
    *gradients, _, _, d_sink = differentiable_gradients(mechanism, visible, terms, needs_grad, (g, None))
    return (None, None, None, *gradients, None if d_sink is None else d_sink.reshape(sink.shape))


class _SoftmaxWithSink(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, plain: tuple[Tensor, Tensor], causal: bool, scale: float, *tensors: Tensor
    ) -> tuple[Tensor, Tensor]:
        (output, lse), sink = plain, tensors[3]
        state = logaddexp(lse, sink)
        output *= torch.sigmoid(lse - finite(sink)).unsqueeze(-1)
        ctx.save_for_backward(*tensors, output, state)
        ctx.causal, ctx.scale = causal, scale
        ctx.mark_non_differentiable(state)
        return output, state

    @staticmethod
    @differentiable_by(_gradients_with_graph)
    def backward(ctx: Any, g: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, sink, output, state = ctx.saved_tensors
        gradients = flash_operators.backward(g, query, key, value, output, state, ctx.causal, ctx.scale)
        d_sink = None
        if ctx.needs_input_grad[6]:
            weight = torch.exp(finite(sink) - finite(state))
            d_sink = -(weight * (g * output).sum(-1)).sum_to_size(sink.shape)
        return (None, None, None, *gradients, d_sink)


SINK = Algorithm(
    "sdpa.softmax_sink",
    "sdpa",
    "PyTorch's fused kernel, each row rescaled by its sink",
    refuses,
    flash.work,
    run,
    row_state=lambda problem: row_state.EXPLANATION if row_state.is_rounded(problem) else None,
)
SINK_KEY = Algorithm(
    "sdpa.sink_key",
    "sdpa",
    "PyTorch's fused kernel, with the sink as a key",
    refuses_key,
    flash.work,
    run_with_key,
    preferred=True,
)
