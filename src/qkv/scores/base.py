"""What a score is: an equation on pairs, and its fast form as a core on prepared operands.

A score says how well a key answers a query. Every score is

    s_ij = pointwise(scale · core(a_i, b_j))        with (a, b) = prepare(query, key),

where `prepare` is plain PyTorch of linear size (projections, norms) and `core` is one of five functions on pairs.
Backends know cores, never scores.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from qkv.errors import ShapeError, error_message
from qkv.scores.pointwise import Linear, Pointwise
from qkv.shapes import Shape, show
from qkv.values.parameters import Parameter

Core = Literal["dot", "tanh_sum", "relu_sum", "distance", "tile"]


class Operands(NamedTuple):
    """What a core works on; F is the width that both sides share.

    Attributes:
        query: a, (..., Q, F).
        key: b, (..., K, F).
        scale: multiplies the core's result; a number, or a tensor (..., 1, 1).
        vector: the hidden weights of `tanh_sum`, (..., F).
    """

    query: Tensor
    key: Tensor
    scale: float | Tensor = 1.0
    vector: Tensor | None = None

    def with_number(self) -> tuple[Tensor, Tensor, float]:
        """Query, key and a number that scales their products: a scale that is a tensor goes with the queries."""
        if isinstance(self.scale, Tensor):
            # Half precision would round the products of queries and scale, which the core keeps.
            wide = torch.promote_types(self.query.dtype, torch.float32)
            return self.query.to(wide) * self.scale.to(wide), self.key.to(wide), 1.0
        return self.query, self.key, self.scale


class Score(ABC):
    """How well a key answers a query: a small frozen value.

    Attributes:
        core: the function on pairs that backends compute.
        non_negative: whether no score is ever below 0, so that `Sum` may normalize it (a kernel).
        parameters: the fields that may be tensors, per head aligned from the right.
    """

    core: ClassVar[Core]
    non_negative: ClassVar[bool] = False
    parameters: ClassVar[tuple[Parameter, ...]] = ()

    @abstractmethod
    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        """The equation, literally.

        Args:
            query: (..., Q, D).
            key: (..., K, E).

        Returns:
            The scores s, (..., Q, K).
        """

    @abstractmethod
    def prepare(self, query: Tensor, key: Tensor) -> Operands:
        """Bring query and key into the form of the core; takes linear time and memory.

        Operands that are computed are float32 at least: half precision would round them once more than the equation.
        """

    @property
    def pointwise(self) -> Pointwise:
        """What follows the core, element by element."""
        return Linear()

    def check(self, query: Shape, key: Shape) -> None:
        """Raise ShapeError where the widths do not fit this score."""
        same_width(query, key)


def same_width(query: Shape, key: Shape) -> None:
    """Raise ShapeError where query and key differ in width."""
    if query[-1] != key[-1]:
        raise ShapeError(
            error_message(
                "key",
                f"width {query[-1]}, that of query",
                f"width {key[-1]} in shape {show(key)}",
                "Widths that differ need a score that translates: qkv.scores.Bilinear or qkv.scores.Additive.",
            )
        )


def expect_width(argument: str, expected: int, got: int, of: str) -> None:
    """Raise ShapeError where a width is not the expected one."""
    if expected != got:
        raise ShapeError(
            error_message(argument, f"width {expected}, that of {of}", f"width {got}", "Make the two widths equal.")
        )
