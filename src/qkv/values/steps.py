"""The steps of a computation with their numbers, as someone who checks it by hand would write them down."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, final

from torch import Tensor

Kind = Literal["vector", "row", "matrix", "number"]


class Product(NamedTuple):
    """The sum of the products of two vectors, which is written out: a₁·b₁ + a₂·b₂ + …"""

    left: Tensor
    right: Tensor


Part = Tensor | float | Product
Filled = tuple[str, tuple[Part, ...]]
"""The right side of an equation with numbers: a text with `{}` for each of some numbers, vectors and products."""


@final
@dataclass(frozen=True, eq=False)
class Step:
    """A step.

    Args:
        name: name of the step.
        symbol: symbol of the result.
        equation: equation of the result.
        kind: `vector` (width), `row` (keys), `matrix` (keys, width) or `number` ().
        values: the numbers.
        note: a note for the reader; can be empty.
        filled: returns the right side of the equation with the numbers of one key, or as text; None for none.
        of_weights: whether the numbers are weights rather than signed numbers.
        labels: one per row of a matrix or number of a row; None for those of the keys.
    """

    name: str
    symbol: str
    equation: str
    kind: Kind
    values: Tensor
    note: str = ""
    filled: Callable[[int], Filled | str] | None = None
    of_weights: bool = False
    labels: tuple[str, ...] | None = None
