"""One step of a computation as the page shows it, with formatted numbers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from torch import Tensor

from qkv.values.steps import Filled, Kind, Part, Product, Step
from qkv.view.answers.answer import as_numbers

TERMS = 3
"""How many terms of a sum are written out."""


@final
@dataclass(frozen=True, eq=False)
class Stage:
    """A step.

    Args:
        name: name of the step.
        symbol: symbol of the result.
        equation: equation of the result.
        kind: `vector` (width), `row` (keys), `matrix` (keys, width) or `number` ().
        values: the numbers.
        note: a note for the reader; can be empty.
        filled: returns the right side of the equation with the numbers of one key; None for none.
        of_weights: whether the numbers are weights rather than signed numbers.
        labels: one per row of a matrix or number of a row; None for those of the keys.
    """

    name: str
    symbol: str
    equation: str
    kind: Kind
    values: Tensor
    note: str = ""
    filled: Callable[[int], str] | None = None
    of_weights: bool = False
    labels: tuple[str, ...] | None = None

    def as_json(self, keys: "DisplayedKeys") -> dict[str, Any]:
        """Convert the stage to JSON."""
        description: dict[str, Any] = {
            "name": self.name,
            "symbol": self.symbol,
            "equation": self.equation,
            "kind": self.kind,
        }
        description |= {"values": as_numbers(self.values.flatten()), "note": self.note}
        if self.of_weights:
            description["scale"] = "weight"
        if self.kind == "matrix":
            description["shape"] = list(self.values.shape)
        if self.kind in ("row", "matrix"):
            labeled = self.labels is not None
            description["labels"] = list(self.labels or keys.labels)
            description |= {} if labeled else {"places": keys.indices.tolist(), "length": keys.length}
        else:
            description["labels"] = (
                [str(index + 1) for index in range(self.values.numel())] if self.kind == "vector" else [""]
            )
        if self.kind in ("row", "matrix") and self.labels is None and len(keys.indices) < keys.length:
            description["note"] = f"{self.note} {keys.note}".strip()
        return description

    def line(self, at: int) -> dict[str, Any]:
        """Return the stage of one key as a line: equation, numbers filled in, and the result if it is a number."""
        filled = "" if self.filled is None else self.filled(at)
        of_key = self.values if self.kind in ("vector", "number") else self.values[at]
        value = as_numbers(of_key)[0] if of_key.numel() == 1 else None
        return {"equation": self.equation, "filled": filled or vector(of_key), "value": value}


def stage_of(step: Step) -> Stage:
    """Format the numbers of a step.

    Example:
        >>> import torch
        >>> halves = Step("half", "y", "y = x/2", "row", torch.tensor([0.5]), filled=lambda i: ("{}/2", (1.0,)))
        >>> stage_of(halves).line(0)["filled"]
        '1/2'
    """
    filled = step.filled
    text = None if filled is None else lambda i: filled_in(filled(i))
    return Stage(step.name, step.symbol, step.equation, step.kind, step.values, step.note, text)


def filled_in(filled: Filled) -> str:
    """Write the numbers into the right side of an equation.

    Example:
        >>> import torch
        >>> filled_in(("tanh({} + {})", (torch.tensor([1.0, 2.0]), -0.5)))
        'tanh([1, 2] + −0.5)'
    """
    text, parts = filled
    return text.format(*map(_part, parts))


def _part(part: Part) -> str:
    if isinstance(part, Product):
        return product(*part)
    return vector(part) if isinstance(part, Tensor) and part.ndim else number(part)


@final
@dataclass(frozen=True, eq=False)
class DisplayedKeys:
    """The displayed keys.

    Args:
        indices: their positions, ascending.
        labels: their tokens.
        length: total number of keys.
    """

    indices: Tensor
    labels: tuple[str, ...]
    length: int

    @property
    def note(self) -> str:
        """The note about keys that are not displayed."""
        return f"The {len(self.indices)} keys with the largest weights, of {self.length:,}."


def number(value: float | Tensor) -> str:
    """Format a number.

    Example:
        >>> number(-0.123456), number(0.0), number(1234567.0)
        ('−0.1235', '0', '1.235e+06')
    """
    plain_one = float(value)
    return f"{plain_one:.4g}".replace("-", "−", 1) if plain_one else "0"


def vector(values: Tensor) -> str:
    """Format the first numbers of a vector.

    Example:
        >>> import torch
        >>> vector(torch.tensor([1.0, -2.0, 3.0, 4.0]))
        '[1, −2, 3, …]'
    """
    few = [number(value) for value in values.flatten()[:TERMS]]
    return f"[{', '.join(few)}{', …' if values.numel() > TERMS else ''}]"


def product(left: Tensor, right: Tensor) -> str:
    """Format the first terms of a sum of products.

    Example:
        >>> import torch
        >>> product(torch.tensor([1.0, 2.0]), torch.tensor([3.0, -4.0]))
        '1·3 + 2·(−4)'
    """
    pairs = zip(left.flatten()[:TERMS].tolist(), right.flatten()[:TERMS].tolist(), strict=True)
    terms = [f"{number(a)}·{_in_brackets(b)}" for a, b in pairs]
    more = left.numel() - TERMS
    return " + ".join(terms) + (f" + … ({more} more)" if more > 0 else "")


def _in_brackets(value: float) -> str:
    return f"({number(value)})" if value < 0 else number(value)
