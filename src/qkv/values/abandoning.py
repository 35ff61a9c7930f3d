"""Ending a computation whose result nobody waits for any more."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import final

_IS_ABANDONED: ContextVar[Callable[[], bool] | None] = ContextVar("is_abandoned", default=None)


@final
class AbandonedError(Exception):
    """Nobody waits for the result."""


@contextmanager
def abandoned_if(is_abandoned: Callable[[], bool]) -> Iterator[None]:
    """End what this thread decodes within the block, at its next step, as soon as it is abandoned.

    Args:
        is_abandoned: called at each step.

    Raises:
        AbandonedError: it returned True.

    Example:
        >>> with abandoned_if(lambda: False):
        ...     expect_wanted()
    """
    token = _IS_ABANDONED.set(is_abandoned)
    try:
        yield
    finally:
        _IS_ABANDONED.reset(token)


def expect_wanted() -> None:
    """Raise if the computation of this thread is abandoned.

    Raises:
        AbandonedError: see `abandoned_if`.
    """
    is_abandoned = _IS_ABANDONED.get()
    if is_abandoned is not None and is_abandoned():
        raise AbandonedError
