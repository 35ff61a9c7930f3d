"""Dropout with random bits that are cheap on a CPU."""

from typing import final

import torch
from torch import Tensor, nn

from qkv.nn.inputs import expect_fraction
from qkv.values.checked import checked
from qkv.values.parameters import expect_floats

_LEVELS = 1 << 16
_DRAWS = 4


@checked
@final
class Dropout(nn.Module):
    """In training, sets a fraction p of the entries to zero and divides the others by 1 − p.

    PyTorch's dropout draws 64 random bits per entry on one thread: on two cores, a third of a small Transformer's
    training time. Here each entry takes 16 of the 64, so p is rounded to a multiple of 1/65536, and the division uses
    the rounded value. Other devices and traced graphs use PyTorch's dropout.

    Args:
        share: p, in [0, 1).

    Raises:
        ConfigError: the share is outside its range.

    Source: Srivastava et al. 2014, "Dropout: A Simple Way to Prevent Neural Networks from Overfitting", section 10.

    Example:
        >>> drop = Dropout(0.25)
        >>> sorted({round(float(x), 2) for x in drop(torch.ones(1000))}), drop.eval()(torch.ones(2))
        ([0.0, 1.33], tensor([1., 1.]))
    """

    def __init__(self, share: float = 0.0) -> None:
        super().__init__()
        expect_fraction("dropout", share)
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        """Apply dropout to x, of any shape."""
        dropped = round(self.share * _LEVELS) if self.training else 0
        if dropped == 0:
            return x
        expect_floats("x", x, 0)
        if x.device.type != "cpu" or torch.compiler.is_compiling():
            return nn.functional.dropout(x, self.share)
        count = x.numel()
        draws = torch.empty(-(-count // _DRAWS), dtype=torch.int64, device="cpu").random_(-(1 << 63), None)
        bits = draws.view(torch.int16)
        bits = (bits[:count] if count % _DRAWS else bits).view(x.shape)
        factor = _LEVELS / max(_LEVELS - dropped, 1)
        return x * (bits >= dropped - _LEVELS // 2).to(x.dtype).mul_(factor)

    def extra_repr(self) -> str:
        """Show the fraction."""
        return f"{self.share}"
