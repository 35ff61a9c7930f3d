"""Let the graph of an output pass through the weights that are returned beside it.

A loss on the output then has a gradient with respect to these weights, dL/dW = dL/dO · Vᵀ, as in the equation O = W V,
although a kernel computed the output without them. Relevance maps are built from it (Chefer et al. 2021, "Generic
Attention-Model Explainability for Interpreting Bi-Modal and Encoder-Decoder Transformers", eq. 5).
"""

from typing import Any, final

import torch
from torch import Tensor

from qkv.scores.base import wide, without_autocast


def through_weights(output: Tensor, weights: Tensor, value: Tensor) -> Tensor:
    """Return the same output, with a graph that passes through the weights, for eager calls.

    Every other gradient stays that of the algorithm that computed the output, bit for bit, and is counted once: of what
    reaches the weights in a backward pass only the part that does not come from this output goes on to query and key.

    Args:
        output: (..., Q, V), with the graph of its algorithm, which does not pass through the weights.
        weights: (..., Q, K), the result of a differentiable operation.
        value: (..., K, V), with as many leading indices; grouped heads may be laid out as (G, H/G).

    Example:
        >>> x = torch.ones(2, requires_grad=True)
        >>> weights, value = x.expand(1, 2), torch.tensor([[3.0], [4.0]])
        >>> output = through_weights(x.expand(1, 2) @ value, weights, value)
        >>> torch.autograd.grad(output.sum(), (weights, x))
        (tensor([[3., 4.]]), tensor([3., 4.]))
    """
    if not (torch.is_grad_enabled() and weights.requires_grad):
        return output
    sent = _SentGradients()
    assert weights.grad_fn is not None
    weights.grad_fn.register_prehook(sent.remove)
    return _ThroughWeights.apply(sent, output, weights, value)  # type: ignore[no-any-return, no-untyped-call]


def product_of_weights(output: Tensor, weights: Tensor, value: Tensor) -> Tensor:
    """Return the same output, with the gradients of weights @ value alone, for calls that are traced or transformed.

    What `through_weights` passes from one node of a graph to another, a traced graph cannot.

    Args:
        output, weights, value: as `through_weights` takes them.

    Example:
        >>> weights = torch.ones(1, 2)
        >>> output = lambda x: product_of_weights(7 * torch.ones(1, 1), weights, x).sum()
        >>> torch.func.grad_and_value(output)(torch.ones(2, 1))
        (tensor([[1.],
                [1.]]), tensor(7.))
    """
    if not torch.is_grad_enabled() or torch.compiler.is_exporting():
        return output
    product = _Product if torch.compiler.is_compiling() else _ProductWithTangents
    return product.apply(output.detach(), weights, value)  # type: ignore[no-any-return, no-untyped-call]


def _of_weights(g_output: Tensor, value: Tensor, dtype: torch.dtype) -> Tensor:
    """Return dL/dW = dL/dO · Vᵀ, (..., Q, K)."""
    g, v = wide(g_output), wide(value).reshape(*g_output.shape[:-2], *value.shape[-2:])
    with without_autocast(g):
        return (g @ v.mT).to(dtype)


@final
class _SentGradients:
    """What each backward pass in progress has sent from an output to its weights."""

    def __init__(self) -> None:
        self._sent: dict[int, Tensor] = {}

    def send(self, gradient: Tensor) -> None:
        """Remember what the output sends, until this pass has ended."""
        task = torch._C._current_graph_task_id()
        self._sent[task] = gradient

        def forget() -> None:
            self._sent.pop(task, None)

        torch.autograd.Variable._execution_engine.queue_callback(forget)

    def remove(self, gradients: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...] | None:
        """Return what the weights pass on: their gradient without that of the output."""
        sent = self._sent.get(torch._C._current_graph_task_id())
        (gradient,) = gradients
        if sent is None or gradient is None:
            return None
        if gradient is sent:
            return (None,)
        # An infinity that both hold is not passed on either.
        return (torch.where(gradient == sent, 0.0, gradient - sent),)


class _ThroughWeights(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, sent: _SentGradients, output: Tensor, weights: Tensor, value: Tensor) -> Tensor:
        ctx.sent, ctx.dtype = sent, weights.dtype
        ctx.save_for_backward(value)
        # A view could not be changed in place.
        return output.clone()

    @staticmethod
    def backward(ctx: Any, g_output: Tensor) -> tuple[Tensor | None, ...]:
        g_weights = _of_weights(g_output, ctx.saved_tensors[0], ctx.dtype)
        ctx.sent.send(g_weights)
        return None, g_output, g_weights, None


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(output: Tensor, weights: Tensor, value: Tensor) -> Tensor:
        return output.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, g_output: Tensor) -> tuple[Tensor | None, ...]:
        weights, value = ctx.saved_tensors
        g, w = wide(g_output), wide(weights)
        with without_autocast(g):
            g_value = (w.mT @ g).to(value.dtype).reshape(value.shape)
        return None, _of_weights(g_output, value, weights.dtype), g_value


class _ProductWithTangents(_Product):
    """The same under `torch.func`; PyTorch's compiler does not take the forward-mode derivative."""

    generate_vmap_rule = True

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        _Product.setup_context(ctx, inputs, output)
        ctx.save_for_forward(*inputs[1:])

    @staticmethod
    def jvp(ctx: Any, _: Any, d_weights: Tensor | None, d_value: Tensor | None) -> Tensor | None:
        weights, value = (wide(x) for x in ctx.saved_tensors)
        value = value.reshape(*weights.shape[:-2], *value.shape[-2:])
        parts = []
        if d_weights is not None:
            parts.append(wide(d_weights) @ value)
        if d_value is not None:
            parts.append(weights @ wide(d_value).reshape(value.shape))
        return sum(parts).to(ctx.saved_tensors[1].dtype) if parts else None  # type: ignore[union-attr]
