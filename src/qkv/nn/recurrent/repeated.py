"""A product with the same weight at every step of a loop over time, whose gradient is one product at the end.

A step's share of the weight's gradient is a product of few rows, as large as the weight itself, and adding it to the
others' reads and writes that much again. With T steps of B rows the shares are summed by one product of T·B rows here,
which takes a fraction of the time: Σ_t g_tᵀ x_t = [g_1; …; g_T]ᵀ [x_1; …; x_T].
"""

from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

from qkv.linalg.matmul import KeptWeight, few, linear, packed_weight, product
from qkv.nn.recurrent.marks import Marks
from qkv.values.parameters import numbers, transformed

if TYPE_CHECKING:
    from qkv.linalg.packed import PackedWeight


@final
class Repeated:
    """x·Wᵀ + b in every step of one loop.

    Args:
        weight: W (N, M).
        bias: b (N,), or None.
        steps: how many there may be.
        kept: where a session keeps the weight packed from loop to loop, used if no gradient is recorded.

    Example:
        >>> layer, x = torch.nn.Linear(2, 2), torch.ones(1, 2)
        >>> step = Repeated(layer.weight, layer.bias, steps=3)
        >>> torch.equal(step(step(step(x))), layer(layer(layer(x))))
        True
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, steps: int, kept: KeptWeight | None = None) -> None:
        device = weight.device.type
        if torch.is_autocast_enabled(device):
            # Once for all steps: autocast itself does so for parameters, which the weight of the steps is not.
            weight = weight.to(torch.get_autocast_dtype(device))
        self._weight, self._bias, self._kept, self._marks, self._step = weight, bias, kept, None, 0
        self._left = Marks(steps)
        # The way back has one of its own, and `_Gathered` is the last to go it: a result that is kept keeps no panels.
        self._laid, self._back = _Laid(steps), _Laid(steps)
        traced = torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None
        rewritten = traced or transformed()
        if steps > 1 and torch.is_grad_enabled() and weight.requires_grad and not rewritten:
            marks = weight.new_zeros(steps)
            gathered = _Gathered.apply(weight, bias, marks, self._left, self._back)  # type: ignore[no-untyped-call]
            self._weight, self._marks = gathered

    def __call__(self, x: Tensor) -> Tensor:
        """Take the next step.

        Args:
            x: (..., M).

        Returns:
            (..., N).
        """
        if self._marks is None:
            if torch.is_grad_enabled() or self._kept is not None:
                return linear(x, self._weight, self._bias, self._kept)
            return self._laid.times(x, self._weight, self._bias)
        x = x.to(self._weight.dtype)
        given = self._bias, self._marks, self._left, self._laid, self._back, self._step
        found: Tensor = _Step.apply(x, self._weight, *given)  # type: ignore[no-untyped-call]
        self._step += 1
        return found


class _Gathered(torch.autograd.Function):
    """The weight as the steps see it; its backward comes after theirs, and takes what they have left (`Marks`)."""

    @staticmethod
    def forward(
        ctx: Any, weight: Tensor, bias: Tensor | None, marks: Tensor, left: Marks, back: "_Laid"
    ) -> tuple[Tensor, Tensor]:
        ctx.left, ctx.back, ctx.learns = left, back, bias is not None and bias.requires_grad
        ctx.set_materialize_grads(False)
        return weight.view_as(weight), marks.view_as(marks)

    @staticmethod
    def backward(ctx: Any, whole: Tensor | None, marks: Tensor | None) -> Any:
        ctx.back.forget()
        # Steps give the weight itself a gradient where their own gradients are differentiated.
        if marks is None:
            return whole, None, None, None, None
        given, grads = map(torch.cat, ctx.left.take(marks))
        # Products of tensors that record their own gradients are PyTorch's: second derivatives follow.
        times = torch.matmul if torch.is_grad_enabled() else product
        share = times(grads.mT, given)
        return share if whole is None else whole + share, grads.sum(0) if ctx.learns else None, None, None, None


@final
class _Laid:
    """The weight of one loop, laid out for steps of few rows by the first of them, in one direction.

    Args:
        steps: how many there may be.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._found: tuple[tuple[int, int], PackedWeight | None] | None = None

    def times(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """x·Wᵀ + b without a gradient, by panels where they serve."""
        laid = self.of(x, weight, bias)
        return linear(x, weight, bias) if laid is None else laid.times(x, bias)

    def of(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> "PackedWeight | None":
        """The panels for such a product, or None where they do not serve."""
        if not _fits(x, weight, bias):
            return None
        rows = x.numel() // max(x.shape[-1], 1)
        if not few(rows):
            return None
        which = weight._version, weight.data_ptr()
        if self._found is None or self._found[0] != which:
            self._found = which, packed_weight(weight, self._steps, rows)
        return self._found[1]

    def forget(self) -> None:
        """Give the memory back; another pass lays the weight out again."""
        self._found = None


def _fits(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether panels may read what is given; what does not fit is left to PyTorch, which says so."""
    if not numbers(x) or torch.is_autocast_enabled("cpu") or weight.is_inference():
        return False
    fits = x.dtype == torch.float32 and x.shape[-1] == weight.shape[1]
    return fits and (bias is None or (bias.dtype == torch.float32 and bias.shape == weight.shape[:1] and numbers(bias)))


class _Step(torch.autograd.Function):
    """The product of one step and its input's gradient; those of weight and bias are left to `_Gathered`."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        marks: Tensor,
        left: Marks,
        laid: _Laid,
        back: _Laid,
        step: int,
    ) -> Tensor:
        ctx.left, ctx.back, ctx.step = left, back, step
        ctx.save_for_backward(x, weight)
        return laid.times(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        rows = grad.flatten(0, -2)
        mark = ctx.left.leave(ctx.step, x.flatten(0, -2), rows)
        if not ctx.needs_input_grad[0]:
            return None, None, None, mark, None, None, None, None
        return _pulled(ctx.back, rows, weight).view_as(x), None, None, mark, None, None, None, None


def _pulled(back: _Laid, rows: Tensor, weight: Tensor) -> Tensor:
    """The gradients of a step's inputs from those of its results."""
    if torch.is_grad_enabled():
        # Products of tensors that record their own gradients are PyTorch's: second derivatives follow.
        return rows @ weight
    laid = back.of(rows, weight.mT, None)
    return product(rows, weight) if laid is None else laid.times(rows, None)
