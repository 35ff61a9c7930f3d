"""Reporting answers that were cut at their length limit."""

import warnings
from collections.abc import Sequence


class CutWarning(UserWarning):
    """A translation was unfinished when it reached its length limit."""


def tell_cut(finished: Sequence[bool], more: str = "max_tokens") -> str | None:
    """Report which answers were cut.

    Args:
        finished: whether the model ended each answer itself.
        more: the name of the setting that allows longer ones.

    Returns:
        One sentence; None if none was cut.

    Example:
        >>> tell_cut([True, False, False])
        '2 of 3 translations were cut at the length limit, the first in line 2. Increase max_tokens.'
        >>> tell_cut([True]) is None
        True
    """
    cut = [line for line, ended in enumerate(finished, start=1) if not ended]
    if not cut:
        return None
    if len(finished) == 1:
        return f"the translation was cut at the length limit. Increase {more}."
    many = f"{len(cut):,} of {len(finished):,} translations were cut at the length limit"
    return f"{many}, the first in line {cut[0]:,}. Increase {more}."


def warn_cut(finished: Sequence[bool]) -> None:
    """Issue a warning about answers that were cut, if any, at the caller's caller."""
    told = tell_cut(finished)
    if told is not None:
        warnings.warn(told, CutWarning, stacklevel=3)
