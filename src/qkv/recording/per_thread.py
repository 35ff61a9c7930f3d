"""State of which each thread has its own."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar, final

State = TypeVar("State")


@final
class PerThread(Generic[State]):
    """A value for each thread, made when the thread first asks for it.

    Hooks are on a module, which several threads may run at once: what a hook remembers must be that of its thread.

    Args:
        make: makes the value of a thread.

    Example:
        >>> counts = PerThread(list)
        >>> counts.get().append(1)
        >>> counts.get()
        [1]
    """

    def __init__(self, make: Callable[[], State]) -> None:
        self._make = make
        self._local = threading.local()

    def get(self) -> State:
        """Return the value of the running thread."""
        try:
            state: State = self._local.state
        except AttributeError:
            state = self._local.state = self._make()
        return state
