"""A number that says how good a system is, and how it was measured."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """A measured number.

    Args:
        name: what was measured, as in "bleu".
        value: the number.
        signature: how it was measured, to the last option.
        higher_is_better: which direction is up.

    Example:
        >>> Figure("bleu", 34.1).higher_is_better
        True
    """

    name: str
    value: float
    signature: str = ""
    higher_is_better: bool = True
