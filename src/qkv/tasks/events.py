"""Listeners of a training: functions of the caller, and other programs, which read events as JSON."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict
from typing import final

from qkv.tasks.notes import as_json
from qkv.tasks.streams import write_json
from qkv.training.events import Event, Listener, Logged, Saved, Validated

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
    """Return the functions as listeners of a training, and `Written` if results are wanted as JSON."""
    return [*map(Called, _CALLBACKS.get()), *([Written()] if as_json() else [])]


@final
class Called:
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
        """Do nothing: a function needs no end."""


@final
class Written:
    """Writes each line of the log, each validation and each checkpoint to standard output, as an object of JSON.

    Example:
        >>> from pathlib import Path
        >>> as_object(Saved(500, Path("runs/one/step-00000500")))["step"]
        500
    """

    def __call__(self, event: Event) -> None:
        """Write the event if it is one of these."""
        row = as_object(event)
        if row is not None:
            write_json([row])

    def close(self) -> None:
        """Leave standard output open."""


def as_object(event: Event) -> dict[str, object] | None:
    """Return an event as in `metrics.jsonl`; None for one that is not written.

    Example:
        >>> as_object(Validated(500, (), better=True))
        {'kind': 'validation', 'step': 500, 'better': True}
    """
    match event:
        case Logged():
            return {"kind": "train", **asdict(event)}
        case Validated(step, figures, better):
            return {"kind": "validation", "step": step, **{each.name: each.value for each in figures}, "better": better}
        case Saved(step, folder):
            return {"kind": "checkpoint", "step": step, "folder": folder}
        case _:
            return None
