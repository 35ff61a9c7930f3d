"""Call a function after each period without activity."""

import _thread
import threading
from collections.abc import Callable
from typing import final


@final
class Heartbeat:
    """Calls a function from a separate thread after each period without activity.

    Args:
        beat: what to call.
        seconds: the length of the period.

    Example:
        >>> heartbeat = Heartbeat(lambda: None, seconds=3600.0)
        >>> heartbeat.restart()
        >>> heartbeat.close()
    """

    def __init__(self, beat: Callable[[], object], seconds: float) -> None:
        """Start the first period."""
        self._beat, self._seconds = beat, seconds
        self._something = threading.Event()
        self._open, self._turn = True, threading.Lock()
        # Not a `Thread`, whose `start` waits forever if the new thread has no memory to begin.
        _thread.start_new_thread(self._run, ())

    def restart(self) -> None:
        """Start a new period, after some activity."""
        self._something.set()

    def close(self) -> None:
        """End; the function is not called again."""
        with self._turn:
            self._open = False
        self._something.set()

    def _run(self) -> None:
        while self._open:
            happened = self._something.wait(self._seconds)
            self._something.clear()
            with self._turn:
                if self._open and not happened:
                    self._beat()
