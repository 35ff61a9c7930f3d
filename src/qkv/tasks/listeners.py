"""Listeners of a training: the caller's callbacks, and JSON events on standard output for other programs."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import final

from qkv.tasks.notes import as_json
from qkv.tasks.streams import write_json
from qkv.training.events import Event, Listener, as_row

_CALLBACKS: ContextVar[tuple[Callable[[Event], object], ...]] = ContextVar("callbacks", default=())


@contextmanager
def listening(callbacks: Sequence[Callable[[Event], object]]) -> Iterator[None]:
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


def listeners() -> list[Listener]:
    """Return the functions as listeners of a training, and `write_event` if results are wanted as JSON."""
    return [*map(FunctionListener, _CALLBACKS.get()), *([FunctionListener(write_event)] if as_json() else [])]


@final
class FunctionListener:
    """A function as a listener.

    Args:
        callback: gets every event.
    """

    def __init__(self, callback: Callable[[Event], object]) -> None:
        """Start."""
        self._callback = callback

    def __call__(self, event: Event) -> None:
        """Call the function."""
        self._callback(event)

    def close(self) -> None:
        """Do nothing: a function needs no cleanup."""


def write_event(event: Event) -> None:
    """Write a line of the log, a validation or a checkpoint to standard output, as an object of JSON."""
    row = as_row(event)
    if row is not None:
        write_json([row])
