"""Scores that are products: dot, scaled dot, cosine, bilinear."""

from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from qkv.linalg.matmul import CachedWeight, linear
from qkv.scores.base import HALVES, Core, Maps, Operands, Score, expect_width, prepared_wide
from qkv.scores.pointwise import Linear, Pointwise, Softcap
from qkv.shapes import Shape
from qkv.values.execution import readable, transformed
from qkv.values.mapped import by_sample
from qkv.values.parameters import Parameter, above_as_one, spread
from qkv.values.pytree import value


@final
@value
@dataclass(frozen=True)
class Dot(Score):
    """s = q·k, the dot product.

    Under softmax this is also the "Gaussian" e^{q·k} of Non-local Networks.

    Source: Luong et al. 2015, "Effective Approaches to Attention-based Neural Machine Translation", eq. 8 (dot).

    Example:
        >>> Dot()(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0], [1.0, 0.0]]))
        tensor([[11.,  1.]])
    """

    core: ClassVar[Core] = "dot"

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        """q·k."""
        return query @ key.mT

    def prepare(self, query: Tensor, key: Tensor) -> Operands:
        """Nothing to prepare."""
        return Operands(query, key)


@final
@value
@dataclass(frozen=True, eq=False)
class ScaledDot(Score):
    """s = q·k/√D, the scaled dot product; with `softcap` c: c·tanh(s/c).

    Args:
        scale: used instead of 1/√D; a number, or a tensor (H,) per head.
        softcap: smooth bound ±softcap on the scores; None for no bound.

    Raises:
        ConfigError: the softcap is not above zero.

    Source: Vaswani et al. 2017, "Attention Is All You Need", eq. 1; softcap: Gemma Team 2024, "Gemma 2", section 2.

    Example:
        >>> ScaledDot()(torch.ones(1, 4), torch.ones(2, 4))
        tensor([[2., 2.]])
    """

    core: ClassVar[Core] = "dot"
    parameters: ClassVar[tuple[Parameter, ...]] = (Parameter("scale", 0),)
    scale: float | Tensor | None = None
    softcap: float | None = None

    def __post_init__(self) -> None:
        if self.softcap is not None:
            above_as_one("ScaledDot(softcap)", self.softcap, 0, "None means no bound.")

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        """q·k/√D."""
        s_QK = query @ key.mT * self._factor(query)
        return s_QK if self.softcap is None else self.pointwise(s_QK)

    def prepare(self, query: Tensor, key: Tensor) -> Operands:
        """Scale the products."""
        return Operands(query, key, self._factor(query))

    @property
    def pointwise(self) -> Pointwise:
        """The soft cap, if any."""
        return Linear() if self.softcap is None else Softcap(self.softcap)

    def _factor(self, query: Tensor) -> float | Tensor:
        return max(query.shape[-1], 1) ** -0.5 if self.scale is None else spread(self.scale)


SCALED_DOT = ScaledDot()
"""The score of a call that names none."""


@final
@value
@dataclass(frozen=True, eq=False)
class Cosine(Score):
    """s = scale · q·k/(‖q‖‖k‖), the cosine of the angle; 0 where a vector is zero.

    Args:
        scale: multiplies the cosine (an inverse temperature); a number, or a tensor (H,) per head.

    Source: Graves et al. 2014, "Neural Turing Machines", eq. 6.

    Example:
        >>> Cosine()(torch.tensor([[3.0, 4.0]]), torch.tensor([[6.0, 8.0], [0.0, 0.0]]))
        tensor([[1., 0.]])
    """

    core: ClassVar[Core] = "dot"
    parameters: ClassVar[tuple[Parameter, ...]] = (Parameter("scale", 0),)
    scale: float | Tensor = 1.0

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        """q·k/(‖q‖‖k‖)."""
        return unit(query) @ unit(key).mT * spread(self.scale)

    def prepare(self, query: Tensor, key: Tensor) -> Operands:
        """Normalize to unit vectors."""
        if query.dtype in HALVES:
            return prepared_wide(self, query, key)
        return Operands(unit(query), unit(key), spread(self.scale))

    @property
    def maps(self) -> Maps:
        """The division by norms."""
        return Maps(None, None, spread(self.scale), unit=True)


def unit(x: Tensor) -> Tensor:
    """Return x/‖x‖ over the last dimension, at any magnitude; 0 with zero gradient where x is 0.

    Example:
        >>> unit(torch.tensor([[3e30, 4e30], [0.0, 0.0]]))
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]])
    """
    if x.shape[-1] == 0:
        return x
    if x.numel() == 0 or x.dtype.itemsize < 4 or not readable(x) or transformed():
        return _literal(x)
    if torch.is_grad_enabled() and x.requires_grad:
        result: Tensor = _Unit.apply(x)  # type: ignore[no-untyped-call]
        return result
    return _divided(x)[0]


def _literal(x: Tensor) -> Tensor:
    # Divide by the largest magnitude first, so that neither squares nor their sum overflow or underflow.
    largest = x.detach().abs().amax(-1, keepdim=True)
    zero = largest == 0
    y = x / torch.where(zero, torch.ones_like(largest), largest)
    return y / torch.where(zero, torch.inf, y.square().sum(-1, keepdim=True)).sqrt()


_SAFE = 1e-12, 1e15
"""Norms whose squares are far from the limits of float32."""


def _divided(x: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return x/‖x‖, norm and first divisor; rows whose squares overflow or underflow are divided twice."""
    x = x if x.stride(-1) == 1 else x.contiguous()  # PyTorch adds squares in an order that depends on the stride
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    least, most = norm.aminmax()
    if _SAFE[0] < least and most < _SAFE[1]:
        return x / norm, norm, None
    # One row must not change another row's bits: rows in range are divided by 1.
    largest = x.abs().amax(-1, keepdim=True)
    first = largest.masked_fill_(((norm > _SAFE[0]) & (norm < _SAFE[1])) | (largest == 0), 1)
    y = x / first
    norm = torch.linalg.vector_norm(y, dim=-1, keepdim=True)
    norm.masked_fill_(norm == 0, torch.inf)
    return y / norm, norm, first


@final
class _Unit(torch.autograd.Function):
    """With u = x/‖x‖ and g its gradient, that of x is (g − u(u·g))/‖x‖."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        unit, norm, first = _divided(x)
        ctx.save_for_backward(x, unit, norm, first)
        return unit

    @staticmethod
    @by_sample
    def backward(ctx: Any, g: Tensor) -> Tensor:
        x, unit, norm, first = ctx.saved_tensors
        if torch.is_grad_enabled():
            # Create a graph, for second derivatives.
            slope: Tensor = torch.autograd.grad(_literal(x), x, g, create_graph=True)[0]
            return slope
        along = g * unit
        gradient: Tensor = torch.addcmul(g, unit, along.sum(-1, keepdim=True), value=-1, out=along).div_(norm)
        return gradient if first is None else gradient.div_(first)


@final
@value
@dataclass(frozen=True, eq=False)
class Bilinear(Score):
    """s = scale · qᵀMk, the bilinear score, also "multiplicative" or "general"; M = I is the dot product.

    Args:
        weight: M, of shape (D, E), or (H, D, E) per head; query and key can have different widths.
        scale: multiplies the score; 1/√D normalizes its variance, as for the dot product.

    Source: Luong et al. 2015, eq. 8 (general).

    Example:
        >>> Bilinear(torch.eye(2))(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]]))
        tensor([[11.]])
    """

    core: ClassVar[Core] = "dot"
    parameters: ClassVar[tuple[Parameter, ...]] = (Parameter("weight", 2), Parameter("scale", 0))
    weight: Tensor
    scale: float | Tensor = 1.0

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        """qᵀMk."""
        return query @ self.weight.to(query.dtype) @ key.mT * spread(self.scale)

    def prepare(self, query: Tensor, key: Tensor) -> Operands:
        """Map the query to the key's space once; then (qᵀM)k."""
        if query.dtype in HALVES:
            return prepared_wide(self, query, key)
        return Operands(project(query, self.weight.mT), key, spread(self.scale))

    @property
    def maps(self) -> Maps:
        """The transposed matrix, which maps the query."""
        return Maps(self.weight.mT, None, spread(self.scale))

    def check(self, query: Shape, key: Shape) -> None:
        """Check that M is (D, E)."""
        expect_width("Bilinear(weight)", query[-1], self.weight.shape[-2], "query")
        expect_width("Bilinear(weight)", key[-1], self.weight.shape[-1], "key")


def project(x: Tensor, weight: Tensor, packed: CachedWeight | None = None) -> Tensor:
    """Return W x for rows x (..., N, D) and W (A, D), or (H, A, D) per head; `packed` as for `linear`.

    Example:
        >>> project(torch.ones(1, 5, 3), torch.ones(2, 4, 3)).shape
        torch.Size([2, 5, 4])
    """
    weight = weight.to(x.dtype)
    return linear(x, weight, None, packed) if weight.ndim == 2 else x @ weight.mT
