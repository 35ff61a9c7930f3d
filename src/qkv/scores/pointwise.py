"""Elementwise functions after a core: soft caps and the shapes of kernels."""

from dataclasses import dataclass
from typing import final, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.values.execution import has_plain_memory


@final
@dataclass(frozen=True)
class Linear:
    """s = x."""

    def __str__(self) -> str:
        """Name the scores, for messages."""
        return "plain"

    def __call__(self, x: Tensor) -> Tensor:
        """Return x unchanged."""
        return x


@final
@dataclass(frozen=True)
class Softcap:
    """s = c·tanh(x/c)."""

    cap: float

    def __str__(self) -> str:
        """Name the scores, for messages."""
        return f"soft-capped at {self.cap:g}"

    def __call__(self, x: Tensor) -> Tensor:
        """Bound the score to ±c."""
        return self.cap * torch.tanh(x / self.cap)


@final
@dataclass(frozen=True)
class Leaky:
    """s = x for x > 0, slope·x below; slope 0 is the rectifier."""

    slope: float

    def __str__(self) -> str:
        """Name the scores, for messages."""
        return "leaky rectified" if self.slope else "rectified"

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the rectifier."""
        return F.leaky_relu(x, self.slope) if self.slope else F.relu(x)


@final
@dataclass(frozen=True)
class NegativeHalf:
    """s = −x/2, for x = ‖q−k‖²/h²."""

    def __str__(self) -> str:
        """Name the scores, for messages."""
        return "squared distances"

    def __call__(self, x: Tensor) -> Tensor:
        """Return −x/2."""
        return x * -0.5


@final
@dataclass(frozen=True)
class GaussianShape:
    """s = exp(−x/2), for x = ‖q−k‖²/h²."""

    def __str__(self) -> str:
        """Name the scores, for messages."""
        return "Gaussian"

    def __call__(self, x: Tensor) -> Tensor:
        """Return exp(−x/2)."""
        return torch.exp(x * -0.5)


@final
@dataclass(frozen=True)
class BoxcarShape:
    """s = 1 for x ≤ 1, else 0, for x = ‖q−k‖²/h²."""

    def __str__(self) -> str:
        """Name the scores, for messages."""
        return "boxcar"

    def __call__(self, x: Tensor) -> Tensor:
        """Return the indicator, with gradient 0; NaN stays NaN."""
        return torch.where(x <= 1, 1.0, x.clamp(max=0))


@final
@dataclass(frozen=True)
class EpanechnikovShape:
    """s = max(0, 1 − x^(power/2)), for x = ‖q−k‖²/h²."""

    power: float

    def __str__(self) -> str:
        """Name the scores, for messages."""
        return f"Epanechnikov of power {self.power:g}"

    def __call__(self, x: Tensor) -> Tensor:
        """Return the bump, which is 0 beyond distance h."""
        # Outside, where the bump is 0, the slope of a power above 2 overflows, and times 0 it would be NaN.
        return F.relu(1 - root_power(x.clamp(max=1) if self.power > 2 else x, self.power))


def root_power(x: Tensor, power: float) -> Tensor:
    """x^(power/2) for x ≥ 0, with gradient 0 (not NaN) at x = 0.

    Example:
        >>> root_power(torch.tensor([0.0, 4.0]), 1)
        tensor([0., 2.])
    """
    if power == 2:
        return x
    if has_plain_memory(x) and not x.requires_grad:
        return _raised(x, power)
    zero = x == 0
    raised = _raised(torch.where(zero, torch.ones_like(x), x), power)
    return torch.where(zero, torch.zeros_like(x), raised)


def _raised(x: Tensor, power: float) -> Tensor:
    return x.sqrt() if power == 1 else x.pow(power / 2)


def rooted(pointwise: "Pointwise") -> bool:
    """Return whether the shape takes a root of the squared distance, which magnifies errors near 0.

    Example:
        >>> rooted(EpanechnikovShape(1)), rooted(EpanechnikovShape(2)), rooted(GaussianShape())
        (True, False, False)
    """
    return isinstance(pointwise, EpanechnikovShape) and pointwise.power < 2


def steepness(pointwise: "Pointwise") -> float:
    """Return the largest slope of a kernel in x = ‖q−k‖²/h², at least 1, ignoring roots at 0.

    That of 1 − x^(p/2) is p/2, at x = 1.

    Example:
        >>> steepness(EpanechnikovShape(8)), steepness(EpanechnikovShape(1)), steepness(GaussianShape())
        (4.0, 1.0, 1.0)
    """
    return max(1.0, pointwise.power / 2) if isinstance(pointwise, EpanechnikovShape) else 1.0


Pointwise = Linear | Softcap | Leaky | NegativeHalf | GaussianShape | BoxcarShape | EpanechnikovShape
POINTWISE: dict[str, type[Pointwise]] = {kind.__name__: kind for kind in get_args(Pointwise)}
"""The functions by name; each has one number at most."""
KERNEL_SHAPES = (GaussianShape, BoxcarShape, EpanechnikovShape)
"""The functions between 0 and 1."""


def number_of(pointwise: Pointwise) -> float:
    """Return the number that a function has, 0 if it has none.

    Example:
        >>> number_of(Softcap(30.0)), number_of(Linear())
        (30.0, 0.0)
    """
    if isinstance(pointwise, Softcap):
        return float(pointwise.cap)
    if isinstance(pointwise, Leaky):
        return pointwise.slope
    return float(pointwise.power) if isinstance(pointwise, EpanechnikovShape) else 0.0
