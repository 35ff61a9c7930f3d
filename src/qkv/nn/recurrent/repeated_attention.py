"""Attention over the same keys and values in every step of a loop, planned once for all steps.

In training, the gradients of each step are as large as keys and values, and adding them to the sum reads and writes
that much again. But steps over the same keys are queries of one attention: with Q = [q_1; …; q_T] and the gradients of
the outputs side by side, one backward pass of attention(Q, K, V) computes both sums. So the backward pass of a step
computes the gradient of its query alone, and one call at the end those of keys and values.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, final

import torch
from torch import Tensor

from qkv.engine.autograd import second_derivative_error
from qkv.functional import decoder_for
from qkv.masks.base import Mask
from qkv.nn.attention import Attention
from qkv.nn.recurrent.repeated import Marks
from qkv.scores.base import Score
from qkv.values.execution import transformed
from qkv.values.plain_modules import has_hooks
from qkv.values.pytree import tensors_in

_Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
_Loop = Callable[[Tensor], Tensor]
_MIN_ELEMENTS = 1 << 17
"""Elements of keys and values below which adding up their gradients takes less time than the work of this module."""


@final
class RepeatedAttention:
    """attention(q_t, K, V) in every step of one loop.

    Gradients are summed in one call on a CPU, if `attention` has the backend "auto" and neither dropout nor hooks.
    Otherwise each step computes its own.

    Args:
        attention: the module.
        score: the score of queries and keys.
        mask: where queries may attend, the same in all steps.
        key: K (B, S, D).
        value: V (B, S, V).
        steps: the largest number of steps.

    Example:
        >>> from qkv.scores import ScaledDot
        >>> query, (key, value) = torch.randn(3, 1, 8), torch.randn(2, 3, 5, 8)
        >>> step = RepeatedAttention(Attention(), ScaledDot(), None, key, value, steps=4)
        >>> torch.equal(step(query), Attention()(query, key, value))
        True
    """

    def __init__(
        self, attention: Attention, score: Score, mask: Mask | None, key: Tensor, value: Tensor, steps: int
    ) -> None:
        self._attend = partial(attention, score=score, mask=mask)
        self._loop: _Loop | None = None
        self._plan: Callable[[Tensor], _Loop | None] | None = None
        self._key, self._value, self._marks, self._step, self._saved = key, value, None, 0, Marks(steps)
        large = steps > 1 and key.numel() + value.numel() >= _MIN_ELEMENTS
        learns = torch.is_grad_enabled() and (key.requires_grad or value.requires_grad)
        # A hook may change what a step returns, and so its gradient: then each step computes its own.
        if large and learns and _is_replaceable(attention, key) and not has_hooks(attention):
            full = partial(attention.forward, score=score, mask=mask)
            marks = torch.zeros(steps, dtype=key.dtype, device="cpu")  # the backward pass reads them
            masks = tensors_in(mask)
            self._marks = _Memory.apply(key, value, marks, full, self._saved, *masks)  # type: ignore[no-untyped-call]
            self._key, self._value = key.detach(), value.detach()
            memory = self._key, self._value
            self._plan = lambda query: decoder_for(query, *memory, *attention.mechanism(score, None), mask)

    def __call__(self, query: Tensor) -> Tensor:
        """Take the next step.

        Args:
            query: (B, Q, D), Q the same in all steps.

        Returns:
            (B, Q, V).
        """
        if self._plan is not None and torch.is_grad_enabled():
            self._loop, self._plan = self._plan(query), None
        if self._loop is None:
            output: Tensor = self._attend(query, self._key, self._value)
        else:
            output = self._loop(query)
        if self._marks is None:
            return output
        marked: Tensor = _StepOutput.apply(output, query, self._marks, self._saved, self._step)  # type: ignore[no-untyped-call]
        self._step += 1
        return marked


@final
class PlannedAttention:
    """attention(q_t, K, V) in the steps of a decoding, planned once for all steps over the same keys, by a session.

    The module itself runs if it has hooks, or if no plan saves time.

    Example:
        >>> from qkv.scores import Additive
        >>> attention, planned, score = Attention(), PlannedAttention(), Additive(torch.randn(8))
        >>> query, (key, value) = torch.randn(3, 2, 1, 8), torch.randn(2, 2, 5, 8)
        >>> steps = [planned.attend(attention, score, None, key, value, q) for q in query]
        >>> torch.allclose(torch.stack(steps), attention(query, key, value, score=score), atol=1e-6)
        True
    """

    def __init__(self) -> None:
        # Of the last call: what must stay the same for its loop to be reused, its tensors, and the loop.
        self._last: tuple[Any, list[Tensor], _Loop | None] | None = None

    def attend(
        self, attention: Attention, score: Score, mask: Mask | None, key: Tensor, value: Tensor, query: Tensor
    ) -> Tensor:
        """Take a step, without gradients.

        Args:
            attention: the module.
            score: the score of queries and keys.
            mask: where queries may attend.
            key: K (B, S, D).
            value: V (B, S, V).
            query: (B, Q, D).

        Returns:
            (B, Q, V).
        """
        replaceable = attention.also is None and _is_replaceable(attention, key) and not has_hooks(attention)
        loop = self._loop(attention, score, mask, key, value, query) if replaceable else None
        if loop is not None:
            return loop(query)
        output: Tensor = attention(query, key, value, score=score, mask=mask)
        return output

    def _loop(
        self, attention: Attention, score: Score, mask: Mask | None, key: Tensor, value: Tensor, query: Tensor
    ) -> _Loop | None:
        tensors = [key, value, *tensors_in(mask), *tensors_in(score)]
        inputs = (query.shape, type(score), [_version_of(x) for x in tensors])
        last = self._last
        if last is None or last[0] != inputs:
            # The tensors are held, so that no other tensors get their ids.
            last = self._last = inputs, tensors, decoder_for(query, key, value, *attention.mechanism(score, None), mask)
        return last[2]


def _version_of(x: Tensor) -> tuple[int, int, int]:
    """Return what changes if another tensor, or a tensor with other numbers, takes its place."""
    # A tensor from inference mode has no version, and cannot be changed outside of it.
    return id(x), x.data_ptr(), 0 if x.is_inference() else x._version


def _is_replaceable(attention: Attention, key: Tensor) -> bool:
    """Return whether a plan for all steps, or a gradient for all, may take the place of the module's call in each."""
    plain = attention.backend == "auto" and not attention.dropout and key.device.type == "cpu"
    return plain and not (torch.compiler.is_compiling() or transformed())


class _Memory(torch.autograd.Function):
    """The keys and values that the steps use. Its backward runs after theirs, on what they have left in `Marks`."""

    @staticmethod
    def forward(
        ctx: Any, key: Tensor, value: Tensor, marks: Tensor, attend: _Attend, saved: Marks, *masks: Tensor
    ) -> Tensor:
        ctx.attend, ctx.step_tensors = attend, saved
        kind = key.device.type
        ctx.precision = partial(torch.autocast, kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
        # The tensors of the mask are saved only so that PyTorch checks their versions: `attend` holds them itself.
        ctx.save_for_backward(key, value, *masks)
        return marks.view_as(marks)

    @staticmethod
    def backward(ctx: Any, marks: Tensor) -> Any:
        query, grad = (torch.cat(rows, 1) for rows in ctx.step_tensors.take(marks))
        # Queries are detached: they depend on these keys and values too, but through the graph of earlier steps.
        key, value, *masks = ctx.saved_tensors
        leaves = [tensor.detach().requires_grad_() for tensor in (key, value)]
        # The backward pass runs outside of the autocast that the steps ran in.
        with torch.enable_grad(), ctx.precision():
            output = ctx.attend(query.detach(), *leaves)
        # Average pooling does not depend on the keys: their gradient is zero.
        gradients = torch.autograd.grad(output, leaves, grad.detach(), materialize_grads=True)
        once = [_DifferentiableOnce.apply(gradient, grad) for gradient in gradients]  # type: ignore[no-untyped-call]
        return *once, None, None, None, *(None for _ in masks)


class _DifferentiableOnce(torch.autograd.Function):
    """A gradient that cannot be differentiated again, because the steps detach keys and values."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, _: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise second_derivative_error("auto")


class _StepOutput(torch.autograd.Function):
    """The output of a step, unchanged. Its backward leaves the query and the gradient to `_Memory`."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, query: Tensor, marks: Tensor, saved: Marks, step: int) -> Tensor:
        ctx.step_tensors, ctx.step = saved, step
        ctx.save_for_backward(query)
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (query,) = ctx.saved_tensors
        return grad, None, ctx.step_tensors.leave(ctx.step, query, grad), None, None
