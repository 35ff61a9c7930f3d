"""Tensors that `vmap` maps, and backward passes of kernels for several output gradients at once.

PyTorch maps its own operators only.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

Backward = Callable[..., Any]
_functorch = torch._C._functorch


def by_sample(backward: Backward) -> Backward:
    """Decorate the `backward` of an autograd function so that it runs once for each of several output gradients.

    PyTorch asks for several at once under `autograd.grad(..., is_grads_batched=True)`, which
    `autograd.functional.jacobian(..., vectorize=True)` uses too, and in `torch.func.vmap` of `autograd.grad`. It then
    passes tensors without memory, which kernels cannot read and many operators in place refuse.

    Example:
        >>> class Double(torch.autograd.Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         return 2 * x
        ...
        ...     @staticmethod
        ...     @by_sample
        ...     def backward(ctx, grad):
        ...         return torch.from_numpy(2 * grad.numpy())
        >>> x = torch.ones(2, requires_grad=True)
        >>> torch.autograd.grad(Double.apply(x), x, torch.eye(2), is_grads_batched=True)
        (tensor([[2., 0.],
                [0., 2.]]),)
    """

    @wraps(backward)
    def run(ctx: Any, *grads: Any) -> Any:
        level = _nesting()
        if level and any(isinstance(x, Tensor) and torch._C._dispatch_keys(x).has("Batched") for x in grads):
            physical = [torch._remove_batch_dim(x, level, 1, 0) if isinstance(x, Tensor) else x for x in grads]
            return _joined(_samples(run, ctx, physical), lambda x: torch._add_batch_dim(x, 0, level))
        if _functorch.peek_interpreter_stack() is None or torch.is_grad_enabled():
            return backward(ctx, *grads)
        level = max((_functorch.maybe_get_level(x) for x in grads if _is_mapped(x)), default=0)
        if not level:
            return backward(ctx, *grads)
        physical = [_first_dimension(x, level) if isinstance(x, Tensor) else x for x in grads]
        return _joined(_samples(run, ctx, physical), lambda x: _functorch._add_batch_dim(x, 0, level))

    return run


def _nesting() -> int:
    """Return how many mappings of `is_grads_batched` the running code is in."""
    level: int = torch._C._vmapmode_increment_nesting() - 1
    torch._C._vmapmode_decrement_nesting()
    return level


def _is_mapped(x: Any) -> bool:
    return isinstance(x, Tensor) and _functorch.is_batchedtensor(x)


def is_mapped_inside(x: Tensor) -> bool:
    """Return whether `torch.func.vmap` maps a tensor, also under `torch.func.grad`.

    Example:
        >>> is_mapped_inside(torch.ones(2)), torch.func.vmap(lambda x: x + is_mapped_inside(x))(torch.zeros(2))
        (False, tensor([1., 1.]))
    """
    while _functorch.is_functorch_wrapped_tensor(x):
        if _functorch.is_batchedtensor(x):
            return True
        x = _functorch.get_unwrapped(x)
    return False


def _first_dimension(x: Tensor, level: int) -> Tensor:
    """Return the memory of a tensor with the mapped dimension first, of size 1 where it is not mapped."""
    if not _is_mapped(x) or _functorch.maybe_get_level(x) != level:
        return x[None]
    memory, dimension = _functorch._unwrap_batched(x, level)
    return memory[None] if dimension is None else memory.movedim(dimension, 0)


def _samples(run: Backward, ctx: Any, physical: list[Any]) -> list[Any]:
    """Return the gradients of each sample."""
    count = max(len(x) for x in physical if isinstance(x, Tensor))
    samples = ([x if x is None else x[at if len(x) > 1 else 0] for x in physical] for at in range(count))
    return [run(ctx, *sample) for sample in samples]


def _joined(samples: list[Any], wrap: Callable[[Tensor], Tensor]) -> Any:
    """Stack the gradients of all samples, and make a mapped tensor of each."""
    if isinstance(samples[0], Tensor):
        return wrap(torch.stack(samples))
    return tuple(
        wrap(torch.stack(parts)) if isinstance(parts[0], Tensor) else None for parts in zip(*samples, strict=True)
    )
