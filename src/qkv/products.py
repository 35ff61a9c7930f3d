"""Products with weight matrices, by the fastest library that PyTorch brings for this processor.

PyTorch hands float32 products to MKL, which takes its wide registers on Intel's processors alone: on others oneDNN,
which PyTorch brings too, needs about half the time for the same sums. It is reached by one private operator, wrapped
here and nowhere else; where it cannot serve, the product is PyTorch's own.
"""

from functools import lru_cache
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.parameters import readable

_LEAST = 2**20
"""Multiplications below which the call itself takes too much of the time."""
_PROCESSOR = Path("/proc/cpuinfo")


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x·Wᵀ + b, as `torch.nn.functional.linear`, differentiable.

    Args:
        x: (..., M).
        weight: W (N, M).
        bias: b (N,), or None.

    Returns:
        (..., N).

    Example:
        >>> linear(torch.ones(2, 3), torch.ones(4, 3), torch.ones(4))
        tensor([[4., 4., 4., 4.],
                [4., 4., 4., 4.]])
    """
    if not served(x, weight) or (bias is not None and bias.dtype != torch.float32):
        return F.linear(x, weight, bias)
    given = (x, weight) if bias is None else (x, weight, bias)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given):
        found: Tensor = _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
        return found
    return _product(x, weight, bias)


def product(left: Tensor, right: Tensor) -> Tensor:
    """A product of two matrices (R, M) and (M, N), as `left @ right`, without a gradient."""
    if not served(left, right.mT):
        return left @ right
    # oneDNN takes its first operand by rows and copies it where it lies by columns: the smaller one then comes first.
    if not left.is_contiguous() and right.numel() < left.numel():
        return _product(right.mT, left, None).mT
    return _product(left, right.mT, None)


def served(x: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN takes a product: large ones in float32, called eagerly on a processor that MKL does not favor.

    `torch.backends.mkldnn.set_flags(False)` leaves all of them to PyTorch.
    """
    return (
        x.dtype == weight.dtype == torch.float32
        and weight.ndim == 2
        and x.ndim > 1
        and x.numel() * weight.shape[0] >= _LEAST
        and readable(x)
        and readable(weight)
        and _favored()
        and torch._C._get_mkldnn_enabled()
        and not torch.is_autocast_enabled("cpu")
        and torch._C._functorch.peek_interpreter_stack() is None
    )


@lru_cache
def _favored() -> bool:
    """Whether oneDNN answers, and the processor is none that MKL was made for."""
    one = torch.ones(1, 1)
    try:
        with torch.no_grad():
            answers = bool(_product(one, one, None) == 1)
    except (AttributeError, NotImplementedError, RuntimeError, TypeError):
        # A private operator: another version of PyTorch may have it in another form, or not at all.
        return False
    try:
        vendors = {line.split(":")[-1].strip() for line in _PROCESSOR.read_text().splitlines() if "vendor_id" in line}
    except OSError:
        return False
    return answers and bool(vendors) and "GenuineIntel" not in vendors


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    rows = x if x.ndim == 2 else x.flatten(0, -2)
    found: Tensor = torch.ops.mkldnn._linear_pointwise.default(rows, weight, bias, "none", [], "")
    # No view, as of PyTorch's own product: what follows may write over it.
    return found if x.ndim == 2 else torch.ops.aten._unsafe_view.default(found, (*x.shape[:-1], weight.shape[0]))


@final
class _Linear(torch.autograd.Function):
    """The product with its gradients, which are two more."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        rows, given = grad.flatten(0, -2), x.flatten(0, -2)
        to_x, to_weight, to_bias = ctx.needs_input_grad
        # Products of tensors that record their own gradients are PyTorch's: second derivatives follow.
        times = torch.matmul if torch.is_grad_enabled() else product
        return (
            times(rows, weight).view_as(x) if to_x else None,
            times(rows.mT, given) if to_weight else None,
            rows.sum(0) if to_bias else None,
        )


@final
class Linear(nn.Linear):
    """PyTorch's layer, by `linear`.

    Example:
        >>> Linear(3, 4)(torch.zeros(2, 3)).shape
        torch.Size([2, 4])
    """

    def forward(self, input: Tensor) -> Tensor:
        """(..., M) to (..., N)."""
        return linear(input, self.weight, self.bias)
