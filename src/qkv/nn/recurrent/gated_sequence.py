"""All steps of a gated recurrent unit whose inputs are known in advance, as one function with one backward pass.

Step by step, each state would be two nodes of PyTorch's graph, and gradients would be assembled from one piece a step.
This function writes them in place, and the gradient of the weight is one product over all steps.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from qkv.compiled import available
from qkv.linalg.matmul import CachedWeight, linear, packed_weight, product
from qkv.nn.recurrent import gated
from qkv.values.execution import has_plain_memory


def served(inputs: Tensor, weight: Tensor, bias: Tensor | None, first: Tensor) -> bool:
    """Return whether `gated_steps` serves its arguments; otherwise the caller loops over `gated`.

    Args:
        inputs, weight, bias, first: as for `gated_steps`.
    """
    tensors = [x for x in (inputs, weight, bias, first) if x is not None]
    return (
        not torch.compiler.is_compiling()
        and not torch.is_autocast_enabled("cpu")
        and inputs.dtype in (torch.float32, torch.float64)
        and all(x.dtype == inputs.dtype and has_plain_memory(x) for x in tensors)
        and inputs.shape[1:] == (len(first), 3 * first.shape[1])
        and weight.shape == (3 * first.shape[1], first.shape[1])
        and (bias is None or bias.shape == weight.shape[:1])
        and len(inputs) > 1
        and first.numel() >= gated.LEAST
        and available.why_unavailable() is None
    )


def gated_steps(
    inputs: Tensor, weight: Tensor, bias: Tensor | None, first: Tensor, packed: CachedWeight | None = None
) -> Tensor:
    """h_t = gated(x_t, U h_{t−1} + b, h_{t−1}) for all t, for arguments that `served` accepts.

    Args:
        inputs: x_t, the products W·input + b of all steps for r, z, n, (T, B, 3M).
        weight: U (3M, M).
        bias: b (3M,), or None.
        first: h_0 (B, M).
        packed: the packed weight of a session, if there is one.

    Returns:
        h_1 to h_T (T, B, M).

    Source: Cho et al. 2014, eq. 5 to 8, in the form of `torch.nn.GRU`.

    Example:
        >>> x, weight, first = torch.zeros(2, 64, 192), torch.zeros(192, 64), torch.ones(64, 64)
        >>> gated_steps(x, weight, None, first)[:, 0, 0]
        tensor([0.5000, 0.2500])
    """
    tensors = [x for x in (inputs, weight, bias, first) if x is not None]
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        states: Tensor = _Steps.apply(inputs, weight, bias, first)  # type: ignore[no-untyped-call]
        return states
    return _forward(inputs, first, _step_product(weight, bias, len(inputs), len(first), packed))[0][1:]


class _Steps(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, first: Tensor) -> Tensor:
        times = _step_product(weight, bias, len(inputs), len(first))
        states, gates, products = _forward(inputs, first, times, learns=True)
        ctx.save_for_backward(inputs, weight, bias, first, states, gates, *products)
        return states[1:]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight, bias, first, states, gates, *products = ctx.saved_tensors
        needed = ctx.needs_input_grad
        if torch.is_grad_enabled() or not has_plain_memory(grad):
            return gated.differentiable(_composed, (inputs, weight, bias, first), needed, grad)
        return _backward(grad, weight, states, gates, products, needed)


def _forward(
    inputs: Tensor, first: Tensor, times: Callable[[Tensor], Tensor], *, learns: bool = False
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Return all states, h_0 included (T + 1, B, M); r, z and n of each step (T, B, 3, M); and U h + b of each step.

    Without `learns`, r, z and n are those of the last step alone, and there is no U h + b.
    """
    from qkv.compiled import thread_pool
    from qkv.nn.recurrent import gru_kernel

    steps, (rows, width) = len(inputs), first.shape
    states = first.new_empty(steps + 1, rows, width)
    states[0] = first.detach()
    gates = first.new_empty(steps if learns else 1, rows, 3, width)
    x, h, g = (x.detach().contiguous().numpy() for x in (inputs, states, gates))
    products = []
    for t, hidden in enumerate(states[:-1].unbind()):
        recurrent_product = times(hidden)
        arrays = x[t], recurrent_product.numpy(), h[t], h[t + 1], g[t if learns else 0]
        thread_pool.run_in_chunks(
            gru_kernel.forward, x.dtype, rows, gated.MICROSECONDS_PER_ELEMENT * rows * width, arrays
        )
        if learns:
            products.append(recurrent_product)
    return states, gates, products


def _backward(
    grad: Tensor, weight: Tensor, states: Tensor, gates: Tensor, products: list[Tensor], needed: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    from qkv.compiled import thread_pool
    from qkv.nn.recurrent import gru_kernel

    steps, rows, width = grad.shape
    to_inputs, to_products = (grad.new_empty(steps, rows, 3 * width) for _ in range(2))
    h, g, to_x, to_u = (x.detach().numpy() for x in (states, gates, to_inputs, to_products))
    times = _step_product(weight.mT, None, steps, rows)
    carried, total, by_state = (grad.new_zeros(rows, width) for _ in range(3))
    for t in reversed(range(steps)):
        torch.add(grad[t], carried, out=total)
        arrays = total.numpy(), products[t].numpy(), h[t], g[t], to_x[t], to_u[t], by_state.numpy()
        thread_pool.run_in_chunks(
            gru_kernel.backward, h.dtype, rows, gated.MICROSECONDS_PER_ELEMENT * rows * width, arrays
        )
        carried = times(to_products[t]).add_(by_state)
    flat, before = to_products.flatten(0, 1), states[:-1].flatten(0, 1)
    _, weight_learns, bias_learns, _ = needed
    return to_inputs, product(flat.mT, before) if weight_learns else None, flat.sum(0) if bias_learns else None, carried


def _step_product(
    weight: Tensor, bias: Tensor | None, steps: int, rows: int, stored: CachedWeight | None = None
) -> Callable[[Tensor], Tensor]:
    """Return a function x -> x·Wᵀ + b without gradients, for a loop of `steps` products of `rows` rows each."""
    weight, bias = weight.detach(), None if bias is None else bias.detach()
    packed = packed_weight(weight, steps, rows) if stored is None or torch.is_grad_enabled() else None
    if packed is None:
        return lambda x: linear(x, weight, bias, stored)
    return lambda x: packed.times(x, bias)


def _composed(inputs: Tensor, weight: Tensor, bias: Tensor | None, hidden: Tensor) -> Tensor:
    states = []
    for x in inputs.unbind():
        hidden = gated.composed(x, torch.nn.functional.linear(hidden, weight, bias), hidden)
        states.append(hidden)
    return torch.stack(states)
