"""A lock that allows one training at a time in a run folder."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qkv.checkpoint.disk import typed
from qkv.errors import CheckpointError, error_message

NAME = ".lock"
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder for one process; the lock is released when the process ends, however it ends.

    Args:
        folder: an existing folder.

    Raises:
        CheckpointError: another process holds the lock, or the folder is not writable.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as run, locked(Path(run)), locked(Path(run)):
        ...     pass
        Traceback (most recent call last):
        qkv.errors.CheckpointError: ...: expected a run folder that no other training uses; got one in use. ...
    """
    with typed(folder, "a writable folder"):
        handle = os.open(folder / NAME, _FLAGS, 0o666)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            hint = "Wait until it ends, or give another --out."
            message = error_message(str(folder), "a run folder that no other training uses", "one in use", hint)
            raise CheckpointError(message) from None
        yield
    finally:
        os.close(handle)
