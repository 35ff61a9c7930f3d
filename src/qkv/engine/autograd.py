"""Backward passes that can be differentiated again, and typed errors for those that cannot."""

from collections.abc import Callable, Iterable
from typing import Any, get_type_hints

import torch
from torch import Tensor

from qkv.errors import UnsupportedError
from qkv.values.mapped import by_sample

Backward = Callable[..., tuple[Any, ...]]


def second_derivative_error(backend: str) -> UnsupportedError:
    """Return the error for a second derivative through a backend."""
    hint = (
        'Pass backend="reference", which PyTorch differentiates any number of times; '
        'in a layer set layer.attention.backend = "reference".'
    )
    return UnsupportedError("backend", "first derivatives", f"a second derivative through {backend}", hint)


def operator_arguments(tensors: type[tuple[Any, ...]]) -> str:
    """Return the fields of a named tuple of tensors as the arguments of a registered operator, for its schema.

    Example:
        >>> from typing import NamedTuple
        >>> operator_arguments(NamedTuple("Pair", [("first", Tensor), ("second", Tensor | None)]))
        'Tensor first, Tensor? second'
    """
    return ", ".join(f"Tensor{'' if kind is Tensor else '?'} {name}" for name, kind in get_type_hints(tensors).items())


def differentiable_by(with_graph: Backward) -> Callable[[Backward], Backward]:
    """Decorate the `backward` of an autograd function whose gradients have no graph.

    Args:
        with_graph: computes the same gradients with a graph, from the same arguments; called where one is requested.

    Example:
        >>> class Square(torch.autograd.Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         ctx.save_for_backward(x)
        ...         return x * x
        ...
        ...     @staticmethod
        ...     @differentiable_by(lambda ctx, grad: (2 * grad * ctx.saved_tensors[0],))
        ...     def backward(ctx, grad):
        ...         return (2 * grad.detach() * ctx.saved_tensors[0].detach(),)
        >>> x = torch.ones((), requires_grad=True)
        >>> (slope,) = torch.autograd.grad(Square.apply(x), x, create_graph=True)
        >>> torch.autograd.grad(slope, x)
        (tensor(2.),)
    """

    def decorate(backward: Backward) -> Backward:
        @by_sample
        def run(ctx: Any, *grads: Any) -> Any:
            return with_graph(ctx, *grads) if torch.is_grad_enabled() else backward(ctx, *grads)

        return run

    return decorate


def forbid_differentiation(backend: str, gradients: tuple[Any, ...], inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the same gradients, which raise an error when they are differentiated.

    Args:
        backend: the name in the error.
        gradients: tensors, and None where there is none.
        inputs: what the gradients depend on.
    """
    tensors = [x for x in gradients if isinstance(x, Tensor)]
    dependencies = [x for x in inputs if isinstance(x, Tensor) and x.requires_grad]
    linked = iter(_Forbidden.apply(backend, len(tensors), *tensors, *dependencies))  # type: ignore[no-untyped-call]
    return tuple(next(linked) if isinstance(x, Tensor) else x for x in gradients)


class _Forbidden(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, backend: str, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.backend = backend
        return tuple(x.view_as(x) for x in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise second_derivative_error(ctx.backend)


def with_zero_gradients(output: Tensor, inputs: Iterable[object]) -> Tensor:
    """Return the same output, with zero gradients for the inputs that only decide between constants.

    Args:
        output: any tensor.
        inputs: tensors, of which those that need a gradient get one of zeros; anything else is ignored.

    Example:
        >>> x = torch.ones(2, requires_grad=True)
        >>> step = (x.detach() > 0).float()
        >>> torch.autograd.grad(with_zero_gradients(step, (x, 1.0)).sum(), x)
        (tensor([0., 0.]),)
    """
    leaves = [x for x in inputs if isinstance(x, Tensor) and x.requires_grad] if torch.is_grad_enabled() else []
    return _ZeroGradients.apply(output, *leaves) if leaves else output  # type: ignore[no-untyped-call]


class _ZeroGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, output: Tensor, *inputs: Tensor) -> Tensor:
        ctx.save_for_backward(*inputs)
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        return (gradient, *(torch.zeros_like(x) for x in ctx.saved_tensors))
