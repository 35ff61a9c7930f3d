"""Listeners of a training: the caller's callbacks, and JSON events on standard output for other programs."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from qkv.tasks.notes import as_json
from qkv.tasks.streams import write_json
from qkv.training.events import Callback, Event, as_row

_CALLBACKS: ContextVar[tuple[Callback, ...]] = ContextVar("callbacks", default=())


@contextmanager
def listening(callbacks: Sequence[Callback]) -> Iterator[None]:
    """Call functions with each event of every training inside.

    Example:
        >>> with listening([print]):
        ...     len(listeners())
        1
    """
    token = _CALLBACKS.set((*_CALLBACKS.get(), *callbacks))
    try:
        yield
    finally:
        _CALLBACKS.reset(token)


def listeners() -> list[Callback]:
    """Return the functions, and `write_event` if results are wanted as JSON."""
    return [*_CALLBACKS.get(), *([write_event] if as_json() else [])]


def write_event(event: Event) -> None:
    """Write a line of the log, a validation or a checkpoint to standard output, as an object of JSON."""
    row = as_row(event)
    if row is not None:
        write_json([row])
