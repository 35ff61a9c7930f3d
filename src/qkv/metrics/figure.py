"""One number that says how good a system is, with all that is needed to compare it."""

import math
from collections.abc import Sized
from dataclasses import dataclass
from typing import Self

from qkv.errors import ConfigError, DataError, error_message


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured value.

    Args:
        name: what was measured, for example "bleu".
        value: the number; rates are in percent.
        signature: how it was measured; figures compare only where signatures are equal.
        higher_is_better: which way is up.

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
            other: the earlier figure; None where there is none.

        Returns:
            Whether this one is strictly better; anything that is a number is better than none or NaN, NaN never is.

        Raises:
            ConfigError: figures of different names, signatures or directions.

        Example:
            >>> Figure("perplexity", 4.0, "", False).better_than(Figure("perplexity", 5.0, "", False))
            True
        """
        if math.isnan(self.value):
            return False
        if other is None or math.isnan(other.value):
            return True
        measured = (self.name, self.signature, self.higher_is_better)
        if measured != (other.name, other.signature, other.higher_is_better):
            hint = "Measure both in the same way."
            expected = f"{self.name} ({self.signature})"
            raise ConfigError(error_message("other", expected, f"{other.name} ({other.signature})", hint))
        return self.value > other.value if self.higher_is_better else self.value < other.value

    def __str__(self) -> str:
        return f"{self.name} {self.value:.2f} ({self.signature})"


def require_same_length(hypotheses: Sized, references: Sized) -> int:
    """Refuse lists that do not belong together.

    Args:
        hypotheses: what the system gave.
        references: what is right.

    Returns:
        How many there are, at least one.

    Raises:
        DataError: unequal numbers, or none.

    Example:
        >>> require_same_length(["a"], ["b"])
        1
    """
    if len(hypotheses) != len(references):
        expected = f"one for each of the {len(references):,} references"
        hint = "Give them in the same order, none left out."
        raise DataError(error_message("hypotheses", expected, f"{len(hypotheses):,}", hint))
    if not len(references):
        raise DataError(error_message("references", "at least one", "none", "There is nothing to measure."))
    return len(references)
