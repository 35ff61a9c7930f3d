"""Answers that were cut at their limit: said, never passed over."""

import warnings
from collections.abc import Sequence


class CutWarning(UserWarning):
    """A translation was still going on when it reached the most tokens that it may have."""


def tell_cut(finished: Sequence[bool], more: str = "max_tokens") -> str | None:
    """Say in words which answers were cut.

    Args:
        finished: whether the model ended each answer itself.
        more: the name of the setting that allows longer ones.

    Returns:
        One sentence; None where none was cut.

    Example:
        >>> tell_cut([True, False, False])
        '2 of 3 translations were cut at their limit, the first of line 2: a larger max_tokens lets them go on.'
        >>> tell_cut([True]) is None
        True
    """
    cut = [line for line, ended in enumerate(finished, start=1) if not ended]
    if not cut:
        return None
    if len(finished) == 1:
        return f"the translation was cut at its limit: a larger {more} lets it go on."
    many = f"{len(cut):,} of {len(finished):,} translations were cut at their limit"
    return f"{many}, the first of line {cut[0]:,}: a larger {more} lets them go on."


def warn_cut(finished: Sequence[bool]) -> None:
    """Warn the caller's caller of answers that were cut, where there are some."""
    told = tell_cut(finished)
    if told is not None:
        warnings.warn(told, CutWarning, stacklevel=3)
