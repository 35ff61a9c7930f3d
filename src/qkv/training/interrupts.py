"""Handling of Ctrl-C, termination signals and closed terminals without losing progress."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, final

SIGNALS = tuple(signal.Signals[name] for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK") if hasattr(signal, name))
"""The signals that end a training with everything saved."""
# One key press can arrive twice: from the terminal, and forwarded by a program that started this one.
_SAME_PRESS_SECONDS = 1.0


class Interrupted(BaseException):
    """Raised only inside `Interrupts.breakable`, and caught by its caller."""


@contextmanager
def ignoring_signals() -> Iterator[None]:
    """Ignore these signals in a process that does not lead the training: process 0 handles them for all."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@final
class Interrupts:
    """While open, records SIGINT, SIGTERM and SIGHUP instead of ending the process; a second signal ends it at once.

    Windows has no SIGHUP; there it is SIGBREAK, which a closed console sends too.

    Signals that are ignored stay ignored, as `nohup` requires. Outside the main thread nothing is changed, because
    Python allows handlers only there.

    Example:
        >>> with Interrupts() as interrupts:
        ...     signal.raise_signal(signal.SIGTERM)
        ...     interrupts.received
        15
    """

    def __init__(self) -> None:
        """Start with no signal received."""
        self.received: int | None = None
        self._since = 0.0
        self._breakable = False
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Interrupts":
        """Install the handlers."""
        if threading.current_thread() is threading.main_thread():
            handled = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
            self._previous = {number: signal.signal(number, self._handle) for number in handled}
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the previous handlers."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @contextmanager
    def breakable(self) -> Iterator[None]:
        """Let a signal abort the code inside, which must be free to restart.

        Raises:
            Interrupted: a signal came, inside or before.
        """
        self._breakable = True
        try:
            if self.received is not None:
                raise Interrupted
            yield
        finally:
            self._breakable = False

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self.received is None:
            self.received, self._since = number, time.monotonic()
            if self._breakable:
                raise Interrupted
        elif time.monotonic() - self._since > _SAME_PRESS_SECONDS:
            raise KeyboardInterrupt
