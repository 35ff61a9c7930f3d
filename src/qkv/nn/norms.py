"""Norms by name, LayerNorm and the RMSNorm of Llama, T5 and Gemma, and where a block has them."""

from dataclasses import dataclass
from typing import Literal, final, get_args

import torch
from torch import Tensor, nn

from qkv.errors import ConfigError, expect_name, nearest
from qkv.nn.inputs import expect_input, expect_number, expect_sizes
from qkv.values.checked import checked

Norm = Literal["layer", "rms", "rms_plus_one"]
Place = Literal["before", "after", "both", "parallel"]
NORMS: tuple[Norm, ...] = ("layer", "rms", "rms_plus_one")


@checked
@final
class RMSNorm(nn.Module):
    """g·x/√(mean(x²) + ε): a layer norm that subtracts no mean and adds no bias, computed in at least float32.

    Args:
        width: M.
        eps: ε.
        shift: added to the learned gain; 1 stores g − 1, as Gemma does.

    Source: Zhang and Sennrich 2019, "Root Mean Square Layer Normalization", eq. 4.

    Example:
        >>> RMSNorm(2)(torch.tensor([3.0, 4.0])).square().mean()
        tensor(1.0000, grad_fn=<MeanBackward0>)
    """

    def __init__(self, width: int, eps: float = 1e-6, *, shift: float = 0.0) -> None:
        super().__init__()
        expect_sizes(width=width)
        expect_number("eps", eps, least=0)
        expect_number("shift", shift)
        self.weight = nn.Parameter(torch.full((width,), 1.0 - shift))
        self.eps, self.shift = eps, shift

    def reset_parameters(self) -> None:
        """Set all gains to 1."""
        nn.init.constant_(self.weight, 1.0 - self.shift)

    def forward(self, x: Tensor) -> Tensor:
        """(..., M) to (..., M), in x's dtype."""
        expect_input("x", x, self, self.weight.shape[-1], rank=1)
        wide = x if x.dtype == torch.float64 else x.float()
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (normed * (self.weight + self.shift)).to(x.dtype)

    def extra_repr(self) -> str:
        """Show the width and what differs from the defaults."""
        return f"{self.weight.numel()}, eps={self.eps:g}" + (f", shift={self.shift:g}" if self.shift else "")


def build_norm(name: str, width: int, eps: float, *, bias: bool = True) -> nn.Module:
    """Create a norm by name.

    Args:
        name: "layer", "rms", or "rms_plus_one" for a gain that is stored less one.
        width: M.
        eps: ε.
        bias: whether a layer norm has one; the others have none.

    Raises:
        ConfigError: the name is unknown.

    Example:
        >>> build_norm("rms", 8, 1e-6)
        RMSNorm(8, eps=1e-06)
    """
    match name:
        case "layer":
            return nn.LayerNorm(width, eps, bias=bias)
        case "rms":
            return RMSNorm(width, eps)
        case "rms_plus_one":
            return RMSNorm(width, eps, shift=1.0)
        case _:
            raise ConfigError("norm", "the name of a norm", f'"{name}"', nearest(name, NORMS))


@checked
@final
@dataclass(frozen=True)
class NormParts:
    """Where norms are, and which.

    Args:
        kind: "layer", "rms", or "rms_plus_one" for a gain that is stored less one.
        eps: ε.
        place: "before" or "after" each sublayer, or "both"; "parallel" is before both sublayers of a block, which then
            read the same input.
        final: whether a norm ends the stack.
        heads: whether each head's queries and keys are normed.
        embedding: whether a norm follows the embeddings.
        first: whether the first block begins with a norm, of norms before each sublayer.
        bias: whether layer norms have biases.

    Raises:
        ConfigError: a name is unknown.

    Source: Xiong et al. 2020, "On Layer Normalization in the Transformer Architecture" (before, after); Ding et al.
        2021, "CogView", section 2.4 (both: "sandwich"); Wang and Komatsuzaki 2021, "GPT-J" (parallel); Henry et al.
        2020, "Query-Key Normalization for Transformers" (heads).
    """

    kind: Norm = "layer"
    eps: float = 1e-5
    place: Place = "before"
    final: bool = True
    heads: bool = False
    embedding: bool = False
    first: bool = True
    bias: bool = True

    def __post_init__(self) -> None:
        expect_name("NormParts(kind)", self.kind, NORMS)
        expect_number("NormParts(eps)", self.eps, least=0)
        expect_name("NormParts(place)", self.place, get_args(Place))

    def build(self, width: int) -> nn.Module:
        """Create one of these norms."""
        return build_norm(self.kind, width, self.eps, bias=self.bias)


PRE_NORM, POST_NORM = NormParts(), NormParts(place="after")
"""LayerNorm before each sublayer, or after."""
