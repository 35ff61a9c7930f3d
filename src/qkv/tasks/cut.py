"""Reporting answers that were cut at their length limit."""

import warnings
from collections.abc import Iterable
from typing import final


class CutWarning(UserWarning):
    """A translation was unfinished when it reached its length limit."""


@final
class CutCounter:
    """Counts the answers that were cut at their length limit, part by part.

    Args:
        finished: of the first part, whether the model ended each answer itself.

    Example:
        >>> counter = CutCounter([True, False])
        >>> counter.add([True])
        >>> counter.message("--max-tokens")
        '1 of 3 translations were cut at the length limit, the first in line 2. Increase --max-tokens.'
    """

    def __init__(self, finished: Iterable[bool] = ()) -> None:
        self._total, self._cut, self._first = 0, 0, 0
        self.add(finished)

    def add(self, finished: Iterable[bool]) -> None:
        """Count more answers, by whether the model ended each itself."""
        for ended in finished:
            self._total += 1
            if not ended:
                self._cut += 1
                self._first = self._first or self._total

    def message(self, more: str) -> str | None:
        """Report which answers were cut.

        Args:
            more: the name of the setting that allows longer ones.

        Returns:
            One sentence; None if none was cut.
        """
        if not self._cut:
            return None
        if self._total == 1:
            return f"the translation was cut at the length limit. Increase {more}."
        many = f"{self._cut:,} of {self._total:,} translations were cut at the length limit"
        return f"{many}, the first in line {self._first:,}. Increase {more}."


def warn_cut(finished: Iterable[bool]) -> None:
    """Issue a warning about answers that were cut, if any, at the caller's caller."""
    message = CutCounter(finished).message("max_tokens")
    if message is not None:
        warnings.warn(message, CutWarning, stacklevel=3)
