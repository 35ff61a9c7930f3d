"""One number that measures a system, with everything needed to compare it."""

import math
from collections.abc import Mapping, Sized
from dataclasses import dataclass
from types import MappingProxyType
from typing import Self

from qkv.errors import DataError

_PERCENT = (
    *("accuracy", "macro_f1", "span_f1", "exact_match", "exact", "positions"),
    *("word_error_rate", "character_error_rate", "token_error_rate"),
    "cut",
    *("alignment_error_rate", "alignment_precision", "alignment_recall", "alignment_agreement"),
)
UNITS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(_PERCENT, "%"),
        "loss": "nats",
        "bits_per_character": "bits",
        "rmse": "units of y",
        "mae": "units of y",
        "r2": "of 1",
    }
)
"""The unit of each figure that has one; BLEU and chrF count from 0 to 100."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured value.

    Args:
        name: what was measured, for example "bleu".
        value: the number, in its `unit`; rates are in percent.
        signature: how it was measured; only figures with equal signatures are comparable.
        higher_is_better: whether larger values are better.

    Example:
        >>> print(Figure("bleu", 28.3, "case:lc"))
        bleu 28.30 (case:lc)
    """

    name: str
    value: float
    signature: str
    higher_is_better: bool = True

    def better_than(self, other: Self | None) -> bool:
        """Compare with an earlier figure of the same name.

        Args:
            other: the earlier figure; None if there is none.

        Returns:
            Whether this one is finite, and strictly better.

        Example:
            >>> Figure("perplexity", 4.0, "", False).better_than(Figure("perplexity", 5.0, "", False))
            True
        """
        if not math.isfinite(self.value):
            return False
        if other is None:
            return True
        return self.value > other.value if self.higher_is_better else self.value < other.value

    @property
    def unit(self) -> str:
        """The unit of the value; empty for a number without one.

        Example:
            >>> Figure("accuracy", 75.0, "unit:label").unit
            '%'
        """
        return UNITS.get(self.name, "")

    def __str__(self) -> str:
        return f"{self.name} {self.value:.2f} ({self.signature})"


def require_same_length(hypotheses: Sized, references: Sized) -> int:
    """Check that two lists have the same length.

    Args:
        hypotheses: the system's outputs.
        references: the correct outputs.

    Returns:
        Their length, at least one.

    Raises:
        DataError: the lengths differ, or the lists are empty.

    Example:
        >>> require_same_length(["a"], ["b"])
        1
    """
    if len(hypotheses) != len(references):
        expected = f"one for each of the {len(references):,} references"
        hint = "Give one hypothesis per reference, in the same order."
        raise DataError("hypotheses", expected, f"{len(hypotheses):,}", hint)
    if not len(references):
        raise DataError("references", "at least one", "none", "There is nothing to measure.")
    return len(references)
