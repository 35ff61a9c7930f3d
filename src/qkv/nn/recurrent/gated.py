"""One step of a gated recurrent unit: one compiled kernel on a CPU, else PyTorch operations."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from qkv.compiled import available
from qkv.values.execution import has_plain_memory

LEAST = 1 << 12
"""Elements of a state below which PyTorch's operations run, so that a small process need not load kernels."""
MICROSECONDS_PER_ELEMENT = 1.4e-3
"""Microseconds of one thread per element of a state."""


def gated(inputs: Tensor, recurrent: Tensor, hidden: Tensor) -> Tensor:
    """h' = (1 − z) n + z h with n = tanh(x_n + r u_n), r = σ(x_r + u_r) and z = σ(x_z + u_z).

    Args:
        inputs: W x + b for r, z, n, the x_r, x_z, x_n above, (B, 3M).
        recurrent: U h + b for the same, the u_r, u_z, u_n above, (B, 3M).
        hidden: h (B, M); the result has its type.

    Returns:
        h' (B, M).

    Source: Cho et al. 2014, eq. 5 to 8, in the form of `torch.nn.GRU`.

    Example:
        >>> gated(torch.zeros(1, 6), torch.zeros(1, 6), torch.ones(1, 2))
        tensor([[0.5000, 0.5000]])
    """
    if not _served(inputs, recurrent, hidden):
        return composed(inputs, recurrent, hidden)
    tensors = (inputs, recurrent, hidden)
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        output: Tensor = _Gated.apply(*tensors)  # type: ignore[no-untyped-call]
        return output
    return _forward(*tensors)[0]


def _served(inputs: Tensor, recurrent: Tensor, hidden: Tensor) -> bool:
    return (
        not torch.compiler.is_compiling()
        and inputs.dtype == recurrent.dtype == hidden.dtype
        and hidden.dtype in (torch.float32, torch.float64)
        and hidden.ndim == 2
        and inputs.shape == recurrent.shape == (len(hidden), 3 * hidden.shape[1])
        and hidden.numel() >= LEAST
        and all(map(has_plain_memory, (inputs, recurrent, hidden)))
        and available.why_unavailable() is None
    )


def composed(inputs: Tensor, recurrent: Tensor, hidden: Tensor) -> Tensor:
    """`gated` by PyTorch operations, which can be differentiated any number of times."""
    width = hidden.shape[-1]
    r, z = torch.sigmoid(inputs[:, : 2 * width] + recurrent[:, : 2 * width]).chunk(2, -1)
    n = torch.tanh(torch.addcmul(inputs[:, 2 * width :], r, recurrent[:, 2 * width :]))
    return torch.lerp(n.to(hidden.dtype), hidden, z.to(hidden.dtype))


def _forward(inputs: Tensor, recurrent: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Return the new state, and r, z and n (B, 3, M)."""
    from qkv.compiled import thread_pool
    from qkv.nn.recurrent import gru_kernel

    states, gates = hidden.new_empty(hidden.shape), hidden.new_empty(len(hidden), 3, hidden.shape[1])
    arrays = [x.detach().contiguous().numpy() for x in (inputs, recurrent, hidden)]
    arrays += [states.numpy(), gates.numpy()]
    thread_pool.run_in_chunks(
        gru_kernel.forward, arrays[0].dtype, len(hidden), MICROSECONDS_PER_ELEMENT * hidden.numel(), arrays
    )
    return states, gates


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, recurrent: Tensor, hidden: Tensor) -> Tensor:
        states, gates = _forward(inputs, recurrent, hidden)
        ctx.save_for_backward(inputs, recurrent, hidden, gates)
        return states

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        inputs, recurrent, hidden, gates = ctx.saved_tensors
        if torch.is_grad_enabled() or not has_plain_memory(grad):
            return differentiable(composed, (inputs, recurrent, hidden), ctx.needs_input_grad, grad)
        return _backward(grad, recurrent, hidden, gates)


def differentiable(
    compute: Callable[..., Tensor], inputs: Sequence[Tensor | None], needed: Sequence[bool], grad: Tensor
) -> tuple[Tensor | None, ...]:
    """Compute gradients that can be differentiated again, by PyTorch.

    Each operand is replaced by a view of its own, because the operands may depend on one another.

    Args:
        compute: the result from the operands, by PyTorch operations.
        inputs: the operands.
        needed: which operands need a gradient.
        grad: the gradient of the result.

    Returns:
        A gradient for each operand that needs one, None for the others.
    """
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        views = [None if x is None else x.view_as(x) for x in inputs]
        learned = [x for x, want in zip(views, needed, strict=True) if want and x is not None]
        grads = iter(torch.autograd.grad(compute(*views), learned, grad, create_graph=create_graph))
    return tuple(next(grads) if want else None for want in needed)


def _backward(grad: Tensor, recurrent: Tensor, hidden: Tensor, gates: Tensor) -> tuple[Tensor, ...]:
    from qkv.compiled import thread_pool
    from qkv.nn.recurrent import gru_kernel

    gradients = (
        recurrent.new_empty(recurrent.shape),
        recurrent.new_empty(recurrent.shape),
        hidden.new_empty(hidden.shape),
    )
    arrays = [x.detach().contiguous().numpy() for x in (grad, recurrent, hidden, gates)]
    arrays += [x.numpy() for x in gradients]
    thread_pool.run_in_chunks(
        gru_kernel.backward, arrays[0].dtype, len(hidden), MICROSECONDS_PER_ELEMENT * hidden.numel(), arrays
    )
    return gradients
