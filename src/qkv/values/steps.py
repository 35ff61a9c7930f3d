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
        filled: returns the right side of the equation with the numbers of one key; None for none.
    """

    name: str
    symbol: str
    equation: str
    kind: Kind
    values: Tensor
    note: str = ""
    filled: Callable[[int], Filled] | None = None
