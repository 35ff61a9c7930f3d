"""A lock that allows one training at a time in a run folder, and lets it write to no other folder of that name."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from qkv import system
from qkv.checkpoint.disk import typed
from qkv.errors import CheckpointError, setting

NAME = ".lock"


@contextmanager
def locked(folder: Path, expected: str = "a run folder that no other training uses") -> Iterator[None]:
    """Lock a folder for one process, and hold it open; the lock is released when the process ends, however it ends.

    Args:
        folder: the absolute path of an existing folder.
        expected: what it should be, for the message.

    Raises:
        CheckpointError: another process holds the lock, or the folder is not writable.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as run, locked(Path(run)), locked(Path(run)):
        ...     pass
        Traceback (most recent call last):
        qkv.errors.CheckpointError: ...: expected a run folder that no other training uses; got one in use. ...
    """
    with ExitStack() as lock:
        try:
            with typed(folder, "a writable folder"):
                lock.enter_context(system.holding(folder))
                lock.enter_context(system.locked(folder / NAME))
        except CheckpointError as error:
            if not isinstance(error.__cause__, BlockingIOError):
                raise
            hint = f"Wait until it ends, or give another {setting('out')}."
            raise CheckpointError(str(folder), expected, "one in use", hint) from None
        yield
