"""Background work: computes pyramids exactly, the most recently requested one first."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, final

from qkv.view.answers.pyramid import Pyramid

State = Literal["sampled", "running", "exact", "cancelled", "failed"]


@final
class Background:
    """One thread that computes pyramids exactly, and pauses while a request is being answered.

    Args:
        on_error: called with the error if a pyramid could not be computed.
    """

    def __init__(self, on_error: Callable[[Exception], None]) -> None:
        self._on_error = on_error
        self._change = threading.Condition()
        self._waiting: list[Pyramid] = []
        self._cancelled: list[Pyramid] = []
        self._failed: list[Pyramid] = []
        self._urgent = 0
        self._closed = False
        self._thread: threading.Thread | None = None

    def ask(self, pyramid: Pyramid) -> None:
        """Compute a pyramid before the others, unless it was cancelled."""
        with self._change:
            if self._closed or pyramid.exact or self._has(self._cancelled, pyramid) or self._has(self._failed, pyramid):
                return
            if self._waiting and self._waiting[0] is pyramid:
                return
            self._waiting = [pyramid, *(other for other in self._waiting if other is not pyramid)]
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="qkv-view-background", daemon=True)
                self._thread.start()
            self._change.notify_all()

    def cancel(self, pyramid: Pyramid) -> None:
        """Stop computing a pyramid; finished rows are kept."""
        with self._change:
            self._waiting = [other for other in self._waiting if other is not pyramid]
            if not pyramid.exact and not self._has(self._cancelled, pyramid):
                self._cancelled.append(pyramid)
            self._change.notify_all()

    def resume(self, pyramid: Pyramid) -> None:
        """Resume a cancelled pyramid, or start a new one."""
        self.drop(pyramid)
        self.ask(pyramid)

    def drop(self, pyramid: Pyramid) -> None:
        """Drop a pyramid in any state."""
        with self._change:
            for name in ("_waiting", "_cancelled", "_failed"):
                setattr(self, name, [other for other in getattr(self, name) if other is not pyramid])
            self._change.notify_all()

    def state(self, pyramid: Pyramid) -> State:
        """Return the progress of a pyramid."""
        with self._change:
            if pyramid.exact:
                return "exact"
            if self._has(self._failed, pyramid):
                return "failed"
            if self._has(self._cancelled, pyramid):
                return "cancelled"
            return "running" if self._has(self._waiting, pyramid) else "sampled"

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pause background work while inside the context."""
        with self._change:
            self._urgent += 1
        try:
            yield
        finally:
            with self._change:
                self._urgent -= 1
                self._change.notify_all()

    def close(self) -> None:
        """End the thread."""
        with self._change:
            self._closed = True
            self._waiting = []
            self._change.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._closed or self._waiting)
                if self._closed:
                    return
                pyramid = self._waiting[0]
            try:
                pyramid.advance(lambda pyramid=pyramid: self._may_continue(pyramid))  # type: ignore[misc]
            except Exception as error:  # a thread has no caller to report to
                with self._change:
                    self._failed.append(pyramid)
                self._on_error(error)
            with self._change:
                if pyramid.exact or self._has(self._failed, pyramid):
                    self._waiting = [other for other in self._waiting if other is not pyramid]

    def _may_continue(self, pyramid: Pyramid) -> bool:
        with self._change:
            self._change.wait_for(lambda: self._urgent == 0 or self._closed)
            return bool(self._waiting) and self._waiting[0] is pyramid

    @staticmethod
    def _has(pyramids: list[Pyramid], pyramid: Pyramid) -> bool:
        return any(other is pyramid for other in pyramids)
