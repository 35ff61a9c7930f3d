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
        self._activity = threading.Event()
        self._running, self._lock = True, threading.Lock()
        # Not a `Thread`, whose `start` waits forever if the new thread has no memory to begin.
        _thread.start_new_thread(self._run, ())

    def restart(self) -> None:
        """Start a new period, after some activity."""
        self._activity.set()

    def close(self) -> None:
        """End; the function is not called again."""
        with self._lock:
            self._running = False
        self._activity.set()

    def _run(self) -> None:
        while self._running:
            active = self._activity.wait(self._seconds)
            self._activity.clear()
            with self._lock:
                if self._running and not active:
                    self._beat()
