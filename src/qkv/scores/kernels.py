"""Scores of the distance between query and key: the squared distance, and the kernels of Nadaraya-Watson regression."""

import math
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from qkv.scores.base import Core, Operands, Score
from qkv.scores.pointwise import BoxcarShape, EpanechnikovShape, GaussianShape, NegativeHalf, Pointwise
from qkv.values.execution import readable
from qkv.values.parameters import Parameter, above, above_as_one, spread
from qkv.values.pytree import value

_BANDWIDTH = (Parameter("bandwidth", 0),)
_LEARNED = "To learn it, make its logarithm the parameter and pass log_bandwidth.exp()."


def squared_distance(query: Tensor, key: Tensor, bandwidth: float | Tensor) -> Tensor:
    """Compute ‖q−k‖²/h² literally, by subtraction: exact where a difference of products would cancel.

    Example:
        >>> import torch
        >>> squared_distance(torch.tensor([[1000.0]]), torch.tensor([[1001.0]]), 2.0)
        tensor([[0.2500]])
    """
    if _ordinary(bandwidth):
        difference = query[..., :, None, :] - key[..., None, :, :]
        return (difference / spread(bandwidth, by=3)).square().sum(-1)
    # In float64, because the result can exceed float32 as well.
    a, b, scale = _in_range(query, key, bandwidth)
    return (a[..., :, None, :] - b[..., None, :, :]).square().sum(-1) * scale


def _operands(query: Tensor, key: Tensor, bandwidth: float | Tensor) -> Operands:
    if not _ordinary(bandwidth):
        return Operands(*_in_range(query, key, bandwidth))
    if isinstance(bandwidth, Tensor):
        # In a type narrower than the operands', h⁻² has too few digits; in half precision it overflows or underflows.
        least = torch.promote_types(query.dtype, torch.float32)
        bandwidth = bandwidth.to(torch.promote_types(bandwidth.dtype, least))
    return Operands(query, key, spread(bandwidth) ** -2)


_ORDINARY = 1e-15, 1e15
"""Bandwidths whose squares and inverse squares are far from the limits of float32."""


def _ordinary(bandwidth: float | Tensor) -> bool:
    """Return whether ‖q−k‖²·h⁻² is as accurate as ‖(q−k)/h‖² in float32; assumed for a tensor that cannot be read."""
    if not isinstance(bandwidth, Tensor):
        return not isinstance(bandwidth, (int, float)) or _ORDINARY[0] <= bandwidth <= _ORDINARY[1]
    if not readable(bandwidth) or bandwidth.numel() == 0:
        return True
    least, most = bandwidth.detach().aminmax()
    return _ORDINARY[0] <= float(least) and float(most) <= _ORDINARY[1]


def _in_range(query: Tensor, key: Tensor, bandwidth: float | Tensor) -> tuple[Tensor, Tensor, float | Tensor]:
    """Return 2⁻ⁿ·query and 2⁻ⁿ·key in float64, and 4ⁿh⁻², with 2ⁿ near h: nothing rounds, overflows or underflows."""
    h = bandwidth.double() if isinstance(bandwidth, Tensor) else bandwidth
    if isinstance(h, Tensor):
        by = spread(torch.ldexp(torch.ones_like(h), -torch.frexp(h.detach()).exponent.clamp(-1000, 1000)))
    else:
        by = math.ldexp(1.0, -min(max(math.frexp(h)[1], -1000), 1000))
    return query.double() * by, key.double() * by, (spread(h) * by) ** -2


@final
@value
@dataclass(frozen=True, eq=False)
class SquaredDistance(Score):
    """s = −‖q−k‖²/(2h²); under softmax the same weights as `Gaussian` under `Sum`, without underflow.

    Args:
        bandwidth: h, a number above 0, or a tensor: (H,) per head, (B, 1) per item, (B, H) for each head of each item.

    Raises:
        ConfigError: the bandwidth is not above zero.

    Source: Zhang et al., "Dive into Deep Learning", eq. 11.3.1.

    Example:
        >>> import torch
        >>> SquaredDistance()(torch.tensor([[0.0]]), torch.tensor([[2.0]]))
        tensor([[-2.]])
    """

    core: ClassVar[Core] = "distance"
    parameters: ClassVar[tuple[Parameter, ...]] = _BANDWIDTH
    bandwidth: float | Tensor = 1.0

    def __post_init__(self) -> None:
        above("SquaredDistance(bandwidth)", self.bandwidth, 0, _LEARNED)

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        """−‖q−k‖²/(2h²)."""
        return -squared_distance(query, key, self.bandwidth) / 2

    def prepare(self, query: Tensor, key: Tensor) -> Operands:
        """The bandwidth scales the core's result: scaling the vectors would lose their difference to rounding."""
        return _operands(query, key, self.bandwidth)

    @property
    def pointwise(self) -> Pointwise:
        """−x/2."""
        return NegativeHalf()


@final
@value
@dataclass(frozen=True, eq=False)
class Gaussian(Score):
    """s = exp(−‖q−k‖²/(2h²)), the Gaussian kernel.

    Args:
        bandwidth: h, a number above 0, or a tensor: (H,) per head, (B, 1) per item, (B, H) for each head of each item.

    Raises:
        ConfigError: the bandwidth is not above zero.

    Source: Nadaraya 1964; Watson 1964; Zhang et al., "Dive into Deep Learning", eq. 11.2.1.

    Example:
        >>> import torch
        >>> Gaussian()(torch.tensor([[0.0]]), torch.tensor([[0.0], [2.0]]))
        tensor([[1.0000, 0.1353]])
    """

    core: ClassVar[Core] = "distance"
    non_negative: ClassVar[bool] = True
    parameters: ClassVar[tuple[Parameter, ...]] = _BANDWIDTH
    bandwidth: float | Tensor = 1.0

    def __post_init__(self) -> None:
        above("Gaussian(bandwidth)", self.bandwidth, 0, _LEARNED)

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        """exp(−‖q−k‖²/(2h²))."""
        return GaussianShape()(squared_distance(query, key, self.bandwidth))

    def prepare(self, query: Tensor, key: Tensor) -> Operands:
        """The bandwidth scales the core's result."""
        return _operands(query, key, self.bandwidth)

    @property
    def pointwise(self) -> Pointwise:
        """exp(−x/2)."""
        return GaussianShape()


@final
@value
@dataclass(frozen=True, eq=False)
class Boxcar(Score):
    """s = 1 if ‖q−k‖ ≤ h, else 0: the boxcar kernel.

    It is piecewise constant: query, key and bandwidth get zero gradient; only values are learned.

    Args:
        bandwidth: h, a number above 0, or a tensor: (H,) per head, (B, 1) per item, (B, H) for each head of each item.

    Raises:
        ConfigError: the bandwidth is not above zero.

    Source: Zhang et al., "Dive into Deep Learning", eq. 11.2.1.

    Example:
        >>> import torch
        >>> Boxcar()(torch.tensor([[0.0]]), torch.tensor([[1.0], [1.5]]))
        tensor([[1., 0.]])
    """

    core: ClassVar[Core] = "distance"
    non_negative: ClassVar[bool] = True
    piecewise_constant: ClassVar[bool] = True
    parameters: ClassVar[tuple[Parameter, ...]] = _BANDWIDTH
    bandwidth: float | Tensor = 1.0

    def __post_init__(self) -> None:
        above("Boxcar(bandwidth)", self.bandwidth, 0, _LEARNED)

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        """1 if ‖q−k‖ ≤ h."""
        return BoxcarShape()(squared_distance(query, key, self.bandwidth))

    def prepare(self, query: Tensor, key: Tensor) -> Operands:
        """The bandwidth scales the core's result."""
        return _operands(query, key, self.bandwidth)

    @property
    def pointwise(self) -> Pointwise:
        """1 if x ≤ 1."""
        return BoxcarShape()


@final
@value
@dataclass(frozen=True, eq=False)
class Epanechnikov(Score):
    """s = max(0, 1 − (‖q−k‖/h)^power), the Epanechnikov kernel.

    Statistics uses power 2 (Epanechnikov 1969). The attention lectures use max(0, 1 − ‖q−k‖), which is power 1, called
    the triangular kernel in statistics.

    Args:
        bandwidth: h, a number above 0, or a tensor: (H,) per head, (B, 1) per item, (B, H) for each head of each item.
        power: 2 for the kernel of statistics, 1 for that of the lectures.

    Raises:
        ConfigError: the bandwidth or power is not above zero.

    Source: Epanechnikov 1969; Zhang et al., "Dive into Deep Learning", eq. 11.2.1 (power 1).

    Example:
        >>> import torch
        >>> query, key = torch.tensor([[0.0]]), torch.tensor([[0.5], [2.0]])
        >>> Epanechnikov()(query, key), Epanechnikov(power=1)(query, key)
        (tensor([[0.7500, 0.0000]]), tensor([[0.5000, 0.0000]]))
    """

    core: ClassVar[Core] = "distance"
    non_negative: ClassVar[bool] = True
    parameters: ClassVar[tuple[Parameter, ...]] = _BANDWIDTH
    bandwidth: float | Tensor = 1.0
    power: float = 2

    def __post_init__(self) -> None:
        above("Epanechnikov(bandwidth)", self.bandwidth, 0, _LEARNED)
        above_as_one("Epanechnikov(power)", self.power, 0, "Power 2 is the kernel of statistics.")

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        """max(0, 1 − (‖q−k‖/h)^power)."""
        return self.pointwise(squared_distance(query, key, self.bandwidth))

    def prepare(self, query: Tensor, key: Tensor) -> Operands:
        """The bandwidth scales the core's result."""
        return _operands(query, key, self.bandwidth)

    @property
    def pointwise(self) -> Pointwise:
        """max(0, 1 − x^(power/2))."""
        return EpanechnikovShape(self.power)
