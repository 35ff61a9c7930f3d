"""While Python waits for the compiler: one line on standard error, once in each process, and a shorter wait."""

import gc
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE = 1.0
"""Seconds of compiling, all of a process together, before the line appears."""
QUIET = "QKV_QUIET"
_logger = logging.getLogger(__name__)
_lock = threading.Lock()
_waited = 0.0
_told = False
_paused: list[bool] = []
"""One entry for each compilation in progress: whether the garbage collector was on when it began."""


@contextmanager
def uncollected() -> Iterator[None]:
    """Pause Python's garbage collector, which takes a fifth of the time in which Numba makes millions of objects.

    Example:
        >>> with uncollected():
        ...     gc.isenabled()
        False
    """
    with _lock:
        _paused.append(gc.isenabled())
        gc.disable()
    try:
        yield
    finally:
        with _lock:
            was_on = _paused.pop()
            if _paused:
                _paused[0] |= was_on
            elif was_on:
                gc.enable()


@contextmanager
def announced(name: str) -> Iterator[None]:
    """Say what is compiled, if compiling takes long: a warning of the logger `qkv.compiled.waiting`.

    Python prints warnings of loggers on standard error unless the application handles them. The environment variable
    `QKV_QUIET` and `logging.getLogger("qkv").setLevel("ERROR")` silence this one.

    Args:
        name: the function that is compiled within the context.

    Example:
        >>> with announced("qkv.linalg.packed_kernel.product"):
        ...     pass
    """
    global _waited  # noqa: PLW0603 - of the process
    remaining, start = PATIENCE - _waited, time.monotonic()
    timer = threading.Timer(remaining, _tell, (name,))
    timer.daemon = True
    if not (_told or os.environ.get(QUIET)):
        _tell(name) if remaining <= 0.0 else timer.start()
    try:
        yield
    finally:
        timer.cancel()
        with _lock:
            _waited += time.monotonic() - start


def _tell(name: str) -> None:
    global _told  # noqa: PLW0603 - of the process
    with _lock:
        if _told:
            return
        _told = True
    _logger.warning(
        "qkv: compiling kernels for this processor (%s, ...); later runs load them from disk. "
        '"qkv warm" compiles all of them ahead; %s=1 hides this line.',
        name.removeprefix("qkv."),
        QUIET,
    )
