"""How the page shows a step of a computation, with formatted numbers."""

from dataclasses import dataclass
from typing import Any, final

from torch import Tensor

from qkv.values.steps import Filled, Part, Product, Step
from qkv.view.answers.answer import as_numbers

TERMS = 3
"""How many terms of a sum are written out."""


def as_json(step: Step, keys: "DisplayedKeys") -> dict[str, Any]:
    """Convert a step to JSON."""
    description: dict[str, Any] = {
        "name": step.name,
        "symbol": step.symbol,
        "equation": step.equation,
        "kind": step.kind,
    }
    description |= {"values": as_numbers(step.values.flatten()), "note": step.note}
    if step.of_weights:
        description["scale"] = "weight"
    if step.kind == "matrix":
        description["shape"] = list(step.values.shape)
    if step.kind in ("row", "matrix"):
        labeled = step.labels is not None
        description["labels"] = list(step.labels or keys.labels)
        description |= {} if labeled else {"places": keys.indices.tolist(), "length": keys.length}
    else:
        description["labels"] = (
            [str(index + 1) for index in range(step.values.numel())] if step.kind == "vector" else [""]
        )
    if step.kind in ("row", "matrix") and step.labels is None and len(keys.indices) < keys.length:
        description["note"] = f"{step.note} {keys.note}".strip()
    return description


def line(step: Step, at: int) -> dict[str, Any]:
    """Return the step of one key as a line: equation, numbers filled in, and the result if it is a number.

    Example:
        >>> import torch
        >>> halves = Step("half", "y", "y = x/2", "row", torch.tensor([0.5]), filled=lambda i: ("{}/2", (1.0,)))
        >>> line(halves, 0)["filled"]
        '1/2'
    """
    filled = "" if step.filled is None else filled_in(step.filled(at))
    of_key = step.values if step.kind in ("vector", "number") else step.values[at]
    value = as_numbers(of_key)[0] if of_key.numel() == 1 else None
    return {"equation": step.equation, "filled": filled or vector(of_key), "value": value}


def filled_in(filled: Filled | str) -> str:
    """Write the numbers into the right side of an equation, unless it is a text already.

    Example:
        >>> import torch
        >>> filled_in(("tanh({} + {})", (torch.tensor([1.0, 2.0]), -0.5)))
        'tanh([1, 2] + −0.5)'
    """
    if isinstance(filled, str):
        return filled
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
