"""Biases that follow from positions: ALiBi, and learned relative biases. For long sequences they never become a matrix.

A bias of this kind is made tile by tile, from the positions of the tile's queries and keys; memory stays linear in the
sequence. A bias that no function of positions gives is a tensor: pass it as `bias=` itself.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from qkv.errors import ConfigError
from qkv.shapes import Shape
from qkv.values.checked import checked
from qkv.values.parameters import Parameter, expect_real, item, pick, spread
from qkv.values.pytree import value

_FARTHEST = 1 << 62
__all__ = ["Alibi", "Bias", "BiasRows", "Relative", "alibi", "relative"]


def __dir__() -> list[str]:
    return __all__


class Bias(ABC):
    """What is added to the score of query i and key j, as a function of their positions.

    Attributes:
        parameters: the fields that may be tensors; per-head ones align from the right. Other tensors get gradients too,
            but through tiles that PyTorch records, which takes longer.
        name: the bias in a word, for people.
        relative: whether it is a function of j − i alone: then a vector of Q + K − 1 numbers holds all of it, and
            attention takes hardly longer than without a bias.
    """

    name: str = "bias"
    parameters: ClassVar[tuple[Parameter, ...]] = ()
    relative: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        if "name" not in vars(cls):
            cls.name = cls.__name__.lower()

    @abstractmethod
    def tile(self, rows_Q1: Tensor, columns_K: Tensor) -> Tensor:
        """Return the bias of a tile; whether it needs a gradient is the same for every tile.

        Args:
            rows_Q1: positions of its queries, int64, (Q, 1).
            columns_K: positions of its keys, int64, (K,); of a relative bias also negative ones.

        Returns:
            A tensor that broadcasts to (..., Q, K).
        """

    def item(self, index: int, leading: Shape) -> "Bias":
        """Return the bias of one index of the first leading dimension: one item of a batch, or one head.

        Args:
            index: of the first leading dimension.
            leading: the leading shape that this bias applies to.
        """
        if self.parameters:
            return item(self, self.parameters, index, leading)
        return _BiasItem(self, index, len(leading), self.name)


@final
@dataclass(frozen=True, eq=False)
class _BiasItem(Bias):
    """One index of the first leading dimension of a bias that can only be evaluated for all indices."""

    inner: Bias
    index: int
    rank: int
    name: str

    def tile(self, rows_Q1: Tensor, columns_K: Tensor) -> Tensor:
        """Evaluate the whole bias for all indices."""
        return pick(self.inner.tile(rows_Q1, columns_K), self.index, self.rank + 2)


@final
@dataclass(frozen=True, eq=False)
class BiasRows(Bias):
    """The bias of some queries.

    Args:
        inner: the bias of all queries.
        positions: those of the queries, int64, in any order.

    Example:
        >>> BiasRows(Alibi(torch.tensor(1.0)), torch.tensor([2])).tile(torch.tensor([[0]]), torch.arange(3))
        tensor([[-2., -1., -0.]])
    """

    inner: Bias
    positions: Tensor

    def tile(self, rows_Q1: Tensor, columns_K: Tensor) -> Tensor:
        """Evaluate the whole bias at the positions of the queries."""
        return self.inner.tile(self.positions[rows_Q1[:, 0]][:, None], columns_K)


@final
@value
@dataclass(frozen=True, eq=False)
class Alibi(Bias):
    """−m·|i + offset − j|; made by `alibi`."""

    slopes: float | Tensor
    offset: int = 0
    parameters: ClassVar[tuple[Parameter, ...]] = (Parameter("slopes", 0),)
    relative: ClassVar[bool] = True

    def tile(self, rows_Q1: Tensor, columns_K: Tensor) -> Tensor:
        """Return a penalty that grows with the distance."""
        distance = (rows_Q1 + self.offset - columns_K).abs()
        slopes = spread(self.slopes)
        if not isinstance(slopes, Tensor):
            # A number has no dtype, and that of the scores is not known here: adding to them rounds the product once.
            return distance.to(torch.float64) * -slopes
        # Half precision holds neither every distance nor its product.
        wide = torch.promote_types(slopes.dtype, torch.float32)
        return -slopes.to(wide) * distance.to(wide)


@final
@value
@dataclass(frozen=True, eq=False)
class Relative(Bias):
    """table[clip(j − i − offset, −W, W) + W]; made by `relative`."""

    table: Tensor
    offset: int = 0
    parameters: ClassVar[tuple[Parameter, ...]] = (Parameter("table", 1),)
    relative: ClassVar[bool] = True

    def tile(self, rows_Q1: Tensor, columns_K: Tensor) -> Tensor:
        """Return the entries for these distances."""
        reach = self.table.shape[-1] // 2
        distance_QK = (columns_K - rows_Q1 - self.offset).clamp(-reach, reach) + reach
        read = self.table.index_select(-1, distance_QK.flatten())
        return read.reshape(*self.table.shape[:-1], *distance_QK.shape)


@checked
def alibi(slopes: float | Tensor, *, offset: int = 0) -> Alibi:
    """Penalize distance: −m·|i − j|, so that near keys weigh more and no other positions are needed.

    Args:
        slopes: m, a number, or a tensor (H,) per head.
        offset: the position of the first query among the keys: with a cache, the number of keys already there.

    Returns:
        The bias, for `qkv.attention(..., bias=...)`.

    Raises:
        ConfigError: the offset is not an integer.

    Source: Press et al. 2022, "Train Short, Test Long: Attention with Linear Biases", section 3.

    Example:
        >>> alibi(0.5).tile(torch.tensor([[2]]), torch.arange(4))
        tensor([[-1.0000, -0.5000, -0.0000, -0.5000]], dtype=torch.float64)
    """
    _expect_integer("alibi(offset)", offset)
    return Alibi(slopes, offset)


@checked
def relative(table: Tensor, *, offset: int = 0) -> Relative:
    """Add a learned number for each distance j − i from −W to W; farther ones share those at the ends.

    Args:
        table: (2W + 1,), or (H, 2W + 1) per head; gradients reach it.
        offset: the position of the first query among the keys.

    Returns:
        The bias, for `qkv.attention(..., bias=...)`.

    Raises:
        ConfigError: a table whose last dimension is even or empty, or an offset that is not an integer.
        DtypeError: the table is not a dense tensor of real numbers.

    Source: Shaw et al. 2018, "Self-Attention with Relative Position Representations", section 3.2 (clipping); Raffel
        et al. 2020, "T5", section 2.1 (scalars added to the scores).

    Example:
        >>> relative(torch.tensor([-1.0, 0.0, 1.0])).tile(torch.tensor([[1]]), torch.arange(4))
        tensor([[-1.,  0.,  1.,  1.]])
    """
    if isinstance(table, Tensor):
        expect_real("relative(table)", table)
    if not isinstance(table, Tensor) or table.ndim == 0 or table.shape[-1] % 2 == 0:
        got = f"shape {tuple(table.shape)}" if isinstance(table, Tensor) else repr(table)
        hint = "One number for each distance from -W to W: 2W + 1 of them."
        raise ConfigError("relative(table)", "an odd last dimension, 2W + 1", got, hint)
    _expect_integer("relative(offset)", offset)
    return Relative(table, offset)


def _expect_integer(argument: str, offset: object) -> None:
    if isinstance(offset, Tensor):
        integer = not (offset.ndim or offset.is_floating_point() or offset.is_complex() or offset.dtype == torch.bool)
    else:
        integer = isinstance(offset, torch.SymInt) or (isinstance(offset, int) and not isinstance(offset, bool))
    if not integer or (isinstance(offset, int) and abs(offset) > _FARTHEST):
        expected = f"an integer, at most {_FARTHEST:,} from 0"
        raise ConfigError(argument, expected, repr(offset), "Positions are whole numbers.")
