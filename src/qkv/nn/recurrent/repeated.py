"""A product with the same weight in every step of a loop, whose weight gradient is one product at the end.

The gradient of each step is a product of few rows, as large as the weight, and adding it to the sum reads and writes
that much again. For T steps of B rows, one product of T·B rows computes the sum in a fraction of the time:
Σ_t g_tᵀ x_t = [g_1; …; g_T]ᵀ [x_1; …; x_T].
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor, nn

from qkv.linalg.matmul import CachedWeight, cached_weight, linear, packed_weight, product, suits_panels
from qkv.linalg.session import DecodingSession
from qkv.values.execution import has_plain_memory, transformed
from qkv.values.plain_modules import is_plain

if TYPE_CHECKING:
    from qkv.linalg.packed import PackedWeight


@final
class Repeated:
    """x·Wᵀ + b in every step of one loop.

    Args:
        weight: W (N, M).
        bias: b (N,), or None.
        steps: the largest number of steps.
        packed: the packed weight that a session keeps from loop to loop; used if no gradient is recorded.

    Example:
        >>> layer, x = torch.nn.Linear(2, 2), torch.ones(1, 2)
        >>> step = Repeated(layer.weight, layer.bias, steps=3)
        >>> torch.equal(step(step(step(x))), layer(layer(layer(x))))
        True
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, steps: int, packed: CachedWeight | None = None) -> None:
        device = weight.device.type
        if torch.is_autocast_enabled(device):
            # Cast once for all steps. Autocast caches casts of parameters only, and `_weight` will not be one.
            weight = weight.to(torch.get_autocast_dtype(device))
        self._weight, self._bias, self._stored, self._marks, self._step = weight, bias, packed, None, 0
        self._saved = Marks(steps)
        # `_Gathered` drops that of the backward pass at its end, so that a result that is kept holds no packed weight.
        self._packed, self._back = _LoopWeight(steps), _LoopWeight(steps)
        traced = torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None
        rewritten = traced or transformed()
        if steps > 1 and torch.is_grad_enabled() and weight.requires_grad and not rewritten:
            # On the host, wherever the weight is: the backward pass reads them.
            marks = torch.zeros(steps, dtype=weight.dtype, device="cpu")
            gathered = _Gathered.apply(weight, bias, marks, self._saved, self._back)  # type: ignore[no-untyped-call]
            self._weight, self._marks = gathered

    def __call__(self, x: Tensor) -> Tensor:
        """Take the next step.

        Args:
            x: (..., M).

        Returns:
            (..., N).
        """
        if self._marks is None:
            if torch.is_grad_enabled() or self._stored is not None:
                return linear(x, self._weight, self._bias, self._stored)
            return self._packed.times(x, self._weight, self._bias)
        x = x.to(self._weight.dtype)
        options = self._bias, self._marks, self._saved, self._packed, self._back, self._step
        output: Tensor = _Step.apply(x, self._weight, *options)  # type: ignore[no-untyped-call]
        self._step += 1
        return output


def repeat_layer(layer: nn.Module, steps: int, session: DecodingSession | None = None) -> Callable[[Tensor], Tensor]:
    """Return a function that computes layer(x) in every step of one loop.

    Args:
        layer: a plain `nn.Linear`, computed by `Repeated`; any other module is called in each step.
        steps: the largest number of steps.
        session: keeps the weight packed; None to keep nothing.

    Example:
        >>> layer, x = torch.nn.Linear(2, 2), torch.ones(1, 2)
        >>> step = repeat_layer(layer, steps=2)
        >>> torch.equal(step(step(x)), layer(layer(x)))
        True
    """
    if is_plain(layer, nn.Linear):
        return Repeated(layer.weight, layer.bias, steps, cached_weight(session, layer))  # type: ignore[arg-type]
    return layer


@final
class Marks:
    """The inputs and gradients of a loop's steps, until a backward pass after theirs computes the gradient of what they
    share: a weight, or keys and values.

    A backward pass may run through some of the steps only, and one for other gradients never reaches what they share:
    its inputs and gradients then remain here. So the backward pass of each step writes a 1 to its element of the
    gradient of a vector with one element per step, and only these steps count.

    Args:
        steps: the largest number of steps.

    Example:
        >>> marks, ones = Marks(3), torch.ones(1, 2)
        >>> mark = marks.leave(2, ones, 5 * ones)
        >>> mark, marks.take(mark)
        (tensor([0., 0., 1.]), ([tensor([[1., 1.]])], [tensor([[5., 5.]])]))
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._saved: dict[int, tuple[Tensor, Tensor]] = {}

    def leave(self, step: int, inputs: Tensor, grad: Tensor) -> Tensor:
        """Leave the input of a step, and the gradient of its result.

        Args:
            step: its number.
            inputs: its input.
            grad: the gradient of its result.

        Returns:
            The mark of the step: its contribution to the gradient of the vector.
        """
        self._saved[step] = inputs, grad
        mark = torch.zeros(self._steps, dtype=grad.dtype, device="cpu")
        mark[step] = 1
        return mark

    def take(self, marks: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Return and forget what the marked steps left, in order: their inputs, and the gradients of their results."""
        saved = [self._saved.pop(step) for step in marks.nonzero()[:, 0].tolist()]
        return [inputs for inputs, _ in saved], [grad for _, grad in saved]


class _Gathered(torch.autograd.Function):
    """The weight that the steps use. Its backward runs after theirs, on what they have left in `Marks`."""

    @staticmethod
    def forward(
        ctx: Any, weight: Tensor, bias: Tensor | None, marks: Tensor, saved: Marks, back: "_LoopWeight"
    ) -> tuple[Tensor, Tensor]:
        ctx.step_tensors, ctx.back, ctx.learns = saved, back, bias is not None and bias.requires_grad
        ctx.set_materialize_grads(False)
        return weight.view_as(weight), marks.view_as(marks)

    @staticmethod
    def backward(ctx: Any, weight: Tensor | None, marks: Tensor | None) -> Any:
        ctx.back.drop()
        # The weight has a gradient of its own only if the gradients of the steps are differentiated again.
        if marks is None:
            return weight, None, None, None, None
        inputs, grads = map(torch.cat, ctx.step_tensors.take(marks))
        # PyTorch's own product if second derivatives may follow.
        times = torch.matmul if torch.is_grad_enabled() else product
        total = times(grads.mT, inputs)
        return total if weight is None else weight + total, grads.sum(0) if ctx.learns else None, None, None, None


@final
class _LoopWeight:
    """The weight of one loop, forward or backward, packed by the first step of few rows.

    Args:
        steps: the largest number of steps.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._packed_for: tuple[tuple[int, int], PackedWeight | None] | None = None

    def times(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Compute x·Wᵀ + b without a gradient."""
        packed = self.packed(x, weight, bias)
        return linear(x, weight, bias) if packed is None else packed.times(x, bias)

    def packed(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> "PackedWeight | None":
        """Return the packed weight, or None if it does not serve this product; pack it again if it has changed."""
        if not _fits(x, weight, bias):
            return None
        rows = x.numel() // max(x.shape[-1], 1)
        if not suits_panels(rows):
            return None
        state = weight._version, weight.data_ptr()
        if self._packed_for is None or self._packed_for[0] != state:
            self._packed_for = state, packed_weight(weight, self._steps, rows)
        return self._packed_for[1]

    def drop(self) -> None:
        """Free the memory; another backward pass packs the weight again."""
        self._packed_for = None


def _fits(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Return whether kernels may read these tensors. PyTorch raises the error for shapes that do not fit."""
    if not has_plain_memory(x) or torch.is_autocast_enabled("cpu") or weight.is_inference():
        return False
    fits = x.dtype == torch.float32 and x.shape[-1] == weight.shape[1]
    return fits and (
        bias is None or (bias.dtype == torch.float32 and bias.shape == weight.shape[:1] and has_plain_memory(bias))
    )


class _Step(torch.autograd.Function):
    """The product of one step. Its backward computes the input's gradient; `_Gathered` those of weight and bias."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        marks: Tensor,
        saved: Marks,
        packed: _LoopWeight,
        back: _LoopWeight,
        step: int,
    ) -> Tensor:
        ctx.step_tensors, ctx.back, ctx.step = saved, back, step
        ctx.save_for_backward(x, weight)
        return packed.times(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        rows = grad.flatten(0, -2)
        mark = ctx.step_tensors.leave(ctx.step, x.flatten(0, -2), rows)
        if not ctx.needs_input_grad[0]:
            return None, None, None, mark, None, None, None, None
        return _input_gradient(ctx.back, rows, weight).view_as(x), None, None, mark, None, None, None, None


def _input_gradient(back: _LoopWeight, rows: Tensor, weight: Tensor) -> Tensor:
    if torch.is_grad_enabled():
        # PyTorch's own product: second derivatives may follow.
        return rows @ weight
    packed = back.packed(rows, weight.mT, None)
    return product(rows, weight) if packed is None else packed.times(rows, None)
