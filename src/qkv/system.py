"""What differs between operating systems, each difference once: opening, flushing, renaming and locking files.

POSIX opens a file without following a link and without waiting, and holds a folder open while its files are opened.
Windows does none of these. There, a name is looked up before it is opened, and what was opened is compared with what
was looked up, by the numbers of its device and its file; SECURITY.md says what that leaves open. Whether a system has
a function is decided by its name in `os`, not by the system's name, so that a system between the two is served too.
"""

import errno
import io
import mmap
import os
import shutil
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO, cast, final

_NOFOLLOW: int = getattr(os, "O_NOFOLLOW", 0)
_NONBLOCK: int = getattr(os, "O_NONBLOCK", 0)
_DIRECTORY: int = getattr(os, "O_DIRECTORY", 0)
_BINARY: int = getattr(os, "O_BINARY", 0)
"""Without it, Windows writes a carriage return before each line feed."""
_GUARDS = bool(_NOFOLLOW and _NONBLOCK)
"""Whether opening itself refuses links and never waits."""
_HOLDS = bool(_DIRECTORY) and {os.open, os.mkdir, os.rename, os.unlink} <= os.supports_dir_fd
"""Whether a folder can be held open, and its files opened and changed relative to it."""
_PATIENCE = 2.0
"""Seconds for which renaming and removing are repeated on Windows, which refuses both while a process has a file open:
virus scanners and indexers do, for a moment, and so does a process that reads a checkpoint."""
_SAFE_PATH = "PYTHONSAFEPATH"
"""Keeps Python from finding modules in the working folder."""
_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def open_for_reading(path: str | Path, *, links: bool) -> int:
    """Open a regular file for reading, without waiting.

    Args:
        path: the file.
        links: whether the last part of the path may be a symbolic link.

    Returns:
        Its handle, which the caller closes. No child process inherits it.

    Raises:
        OSError: it cannot be opened, or is not a regular file: `strerror` says what it is.
    """
    return _open(path, os.O_RDONLY, links=links)


def open_for_appending(path: str | Path) -> int:
    """Open an existing regular file that is no link, to write at its end.

    Args:
        path: the file.

    Returns:
        Its handle, which the caller closes.

    Raises:
        OSError: as for `open_for_reading`.
    """
    return _open(path, os.O_WRONLY | os.O_APPEND, links=False, within=_within(path))


def create(path: str | Path) -> int:
    """Create a file for writing.

    Args:
        path: a name that does not exist yet.

    Returns:
        Its handle, which the caller closes.

    Raises:
        OSError: it exists, or cannot be created.
    """
    name, home = _within(path)
    return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, 0o666, dir_fd=home)


def make(folder: Path) -> None:
    """Make a folder.

    Args:
        folder: a name that does not exist yet, in a folder that does.

    Raises:
        OSError: it exists, or cannot be made.
    """
    name, home = _within(folder)
    os.mkdir(name, dir_fd=home)


@final
class HeldFolder:
    """A folder whose files are opened by plain name, even if the folder is renamed or another one takes its name.

    Where a system cannot hold a folder open, the folder with that name must still be the same one after each opening.

    Args:
        path: the folder.

    Raises:
        OSError: there is no such folder, or it cannot be read.

    Example:
        >>> folder = HeldFolder(Path("/"))
        >>> folder.open("tmp")
        Traceback (most recent call last):
        IsADirectoryError: [Errno 21] Is a directory: '/tmp'
        >>> folder.close()
    """

    def __init__(self, path: Path) -> None:
        """Open the folder, or look it up."""
        self.path = path
        self.handle = os.open(path, os.O_RDONLY | _DIRECTORY) if _HOLDS else None
        self._status = os.stat(path) if self.handle is None else os.fstat(self.handle)
        if not stat.S_ISDIR(self._status.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))

    def open(self, name: str) -> int:
        """Open a regular file for reading, without waiting and without following a link.

        Args:
            name: its plain name.

        Returns:
            Its handle, which the caller closes.

        Raises:
            OSError: as for `open_for_reading`, or the folder is no longer the same.
        """
        if self.handle is not None:
            return _open(self.path / name, os.O_RDONLY, links=False, within=(name, self.handle))
        handle = _open(self.path / name, os.O_RDONLY, links=False)
        with _closed_on_error(handle):
            self.expect_same()
        return handle

    def expect_same(self) -> None:
        """Check that the folder's path still leads to it.

        Raises:
            OSError: it was removed, renamed or replaced.
        """
        try:
            same = os.path.samestat(os.stat(self.path), self._status)
        except (FileNotFoundError, NotADirectoryError):
            same = False
        if not same:
            raise OSError(errno.ESTALE, "a folder that was removed, moved or replaced meanwhile", str(self.path))

    def close(self) -> None:
        """Close the folder."""
        if self.handle is not None:
            os.close(self.handle)


_HELD: dict[Path, HeldFolder] = {}
"""The folders that this process holds for writing, by their paths."""


@contextmanager
def holding(path: Path) -> Iterator[None]:
    """Change what lies in a folder only while its path leads to it.

    Inside, every function of this module that opens for writing, creates, renames or removes something in the folder
    acts on the folder that was opened first, and refuses once its path leads to another one or nowhere. Where a system
    cannot hold a folder open, the path is compared just before.

    Args:
        path: the absolute path of a folder.

    Raises:
        BlockingIOError: this process holds a folder of this path already.
        OSError: there is no such folder.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as home:
        ...     Path(home, "run").mkdir()
        ...     with holding(Path(home, "run")):
        ...         Path(home, "run").rename(Path(home, "moved")).joinpath("../run").mkdir()
        ...         create(Path(home, "run", "best"))
        Traceback (most recent call last):
        OSError: [Errno 116] a folder that was removed, moved or replaced meanwhile: '...run'
    """
    if path in _HELD:
        raise BlockingIOError(errno.EAGAIN, "in use", str(path))
    _HELD[path] = HeldFolder(path)
    try:
        yield
    finally:
        _HELD.pop(path).close()


def expect_held(path: Path) -> None:
    """Check that a path in a folder that this process holds still leads into it; before another library writes there.

    Args:
        path: any path.

    Raises:
        OSError: the folder was removed, renamed or replaced.
    """
    _within(path)


def _within(path: str | Path) -> tuple[str, int | None]:
    """Return how a function of `os` names a path: relative to the handle of the held folder in which it lies, if so."""
    path = Path(path)
    for folder, held in _HELD.items():
        if path.is_relative_to(folder):
            held.expect_same()
            if held.handle is not None:
                return str(path.relative_to(folder)), held.handle
    return str(path), None


def is_file_name(name: str) -> bool:
    """Return whether a name stays in its folder on every system.

    Windows also separates folders with backslashes, and a colon is the end of a drive or begins a file's other stream.

    Args:
        name: of a file.

    Example:
        >>> [is_file_name(name) for name in ("model.safetensors", "..", "a/b", "C:x", "a\\\\b", "")]
        [True, False, False, False, False, False]
    """
    return name not in {"", ".", ".."} and not set(name) & set("/\\:\0")


def flush(handle: int) -> None:
    """Write a file's bytes to the disk, so that they outlast a loss of power.

    Args:
        handle: of a file that is open for writing.

    Raises:
        OSError: the disk refuses.
    """
    if sys.platform == "darwin":
        # There, fsync leaves the bytes in the drive's cache. Not every file system has this request.
        import fcntl

        with suppress(OSError, AttributeError):
            fcntl.fcntl(handle, fcntl.F_FULLFSYNC)
            return
    os.fsync(handle)


def flush_folder(folder: Path) -> None:
    """Write the names in a folder to the disk; Windows has no such request, its file system's journal keeps names.

    Args:
        folder: the folder.

    Raises:
        OSError: there is no such folder, or the disk refuses.
    """
    if _HOLDS:
        name, home = _within(folder)
        handle = os.open(name, os.O_RDONLY | _DIRECTORY, dir_fd=home)
        try:
            flush(handle)
        finally:
            os.close(handle)


def rename(source: Path, target: Path) -> None:
    """Rename a file or folder at once; it takes the place of a file or of an empty folder.

    Args:
        source: what to rename.
        target: its new name, in the same file system.

    Raises:
        OSError: the target is a folder with contents or a device, or one of the two cannot be changed.
    """
    if sys.platform == "win32" and source.is_dir() and target.is_dir():
        _repeat_while_in_use(target.rmdir)  # POSIX replaces an empty folder
    (old, home), (new, other) = _within(source), _within(target)
    # Root could replace a device by this file, even /dev/null.
    with suppress(FileNotFoundError):
        kind = _KINDS.get(stat.S_IFMT(os.lstat(new, dir_fd=other).st_mode))
        if kind is not None:
            raise OSError(errno.ENOTSUP, kind, str(target))
    _repeat_while_in_use(lambda: os.replace(old, new, src_dir_fd=home, dst_dir_fd=other))


def remove_tree(folder: Path) -> None:
    """Remove a folder with all that it contains; a link is removed, not followed.

    Args:
        folder: the folder.

    Raises:
        OSError: a part of it cannot be removed.
    """
    name, home = _within(folder)
    _repeat_while_in_use(lambda: shutil.rmtree(name, dir_fd=home))


def remove_file(path: Path) -> None:
    """Remove a file or link, if there is one.

    Args:
        path: the file.

    Raises:
        OSError: it cannot be removed.
    """
    name, home = _within(path)

    def remove() -> None:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=home)

    _repeat_while_in_use(remove)


def is_in_use(error: BaseException | None) -> bool:
    """Return whether an operation failed because a process has a file open; only Windows refuses for that.

    Args:
        error: what renaming or removing raised.
    """
    return sys.platform == "win32" and isinstance(error, PermissionError)


def is_closed_pipe(error: OSError) -> bool:
    """Return whether writing failed because the reader of a pipe closed it.

    Args:
        error: what writing raised; on Windows, an invalid argument.

    Example:
        >>> is_closed_pipe(BrokenPipeError())
        True
    """
    return isinstance(error, BrokenPipeError) or (sys.platform == "win32" and error.errno == errno.EINVAL)


@final
class TolerantStream:
    """A stream that may be closed or full: a message that cannot be written must not end a training or its last save.

    Args:
        stream: the output, as long as it is open.
    """

    def __init__(self, stream: TextIO) -> None:
        """Start."""
        self._stream = stream

    def __getattr__(self, name: str) -> object:
        """Delegate to the stream."""
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write, if the stream takes it."""
        with suppress(OSError):
            return self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Write out what is buffered, unless the stream is closed or full."""
        with suppress(OSError):
            self._stream.flush()


def open_standard_streams() -> None:
    """Make standard streams fit for a command: none is closed, and none but standard output can end it.

    In some services they are closed. The next files that are opened would take their numbers, and what libraries say
    would go into these files, so the null device takes them. Python's own input and output stay missing: commands
    refuse to lose what they read or write.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # the null device takes the lowest free number
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    sys.stderr = standard_error()


def stdin_is_terminal() -> bool:
    """Whether standard input is a terminal."""
    return sys.stdin is not None and sys.stdin.isatty()


def standard_error() -> TextIO:
    """Return where messages go: standard error; nowhere if it is closed, where `print` would choose standard output."""
    stream: object = io.StringIO() if sys.stderr is None else sys.stderr
    return cast(TextIO, stream if isinstance(stream, TolerantStream) else TolerantStream(cast(TextIO, stream)))


def forget_stdout() -> None:
    """Let standard output lead nowhere, or Python would try to write the rest again at exit."""
    if sys.stdout is not None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


@contextmanager
def locked(path: Path, wait: float = 0.0) -> Iterator[None]:
    """Lock a file for this process; the lock ends with the process, however that ends.

    Args:
        path: the file, made if it is missing; it must not be a link. It holds nothing, and may stay.
        wait: seconds for which to wait until it is free.

    Raises:
        BlockingIOError: it is locked, by another process or by this one.
        OSError: it cannot be made.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, locked(Path(folder, "lock")), locked(Path(folder, "lock")):
        ...     pass
        Traceback (most recent call last):
        BlockingIOError: [Errno 11] in use: '...lock'
    """
    from filelock import FileLock, Timeout

    lock = FileLock(path, thread_local=False)
    try:
        lock.acquire(blocking=wait > 0, timeout=wait)
    except Timeout:
        raise BlockingIOError(errno.EAGAIN, "in use", str(path)) from None
    try:
        yield
    finally:
        lock.release()


def is_read_only(folder: Path) -> bool:
    """Return whether a folder lies on a disk that is mounted read-only, where the system says so.

    Args:
        folder: an existing folder.
    """
    if sys.platform == "win32" or not hasattr(os, "statvfs"):
        return False
    return bool(os.statvfs(folder).f_flag & os.ST_RDONLY)


def has_addresses(size: int) -> bool:
    """Return whether the limit of this process's address space (`ulimit -v`) leaves so much of it.

    Args:
        size: bytes; none of them is used.

    Example:
        >>> has_addresses(1 << 20)
        True
    """
    if sys.platform == "win32":
        return True
    import resource

    if resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY:
        return True
    try:
        mmap.mmap(-1, size, access=mmap.ACCESS_READ).close()
    except OSError:
        return False
    return True


def cores() -> int:
    """Return how many processor cores this process may use.

    Example:
        >>> cores() >= 1
        True
    """
    affinity: Callable[[int], set[int]] | None = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


@contextmanager
def spawning() -> Iterator[None]:
    """Let `multiprocessing` start processes that run qkv alone.

    By itself, a started process runs the first one's script again, unless that is guarded; finds modules in the working
    folder before those of Python; and prints a traceback if Ctrl-C comes while it starts.
    """
    script, path = sys.modules["__main__"], os.environ.get(_SAFE_PATH)
    mask = getattr(signal, "pthread_sigmask", lambda *_: ())  # Windows has none
    before = mask(getattr(signal, "SIG_BLOCK", 0), {signal.SIGINT})  # which started processes inherit
    sys.modules["__main__"], os.environ[_SAFE_PATH] = ModuleType("__main__"), "1"
    try:
        yield
    finally:
        sys.modules["__main__"] = script
        if path is None:
            del os.environ[_SAFE_PATH]
        else:
            os.environ[_SAFE_PATH] = path
        mask(getattr(signal, "SIG_SETMASK", 0), before)


def leave_terminal() -> None:
    """Receive SIGINT again in a process started inside `spawning`, but not from Ctrl-C. Does nothing on Windows."""
    getattr(os, "setsid", lambda: None)()
    getattr(signal, "pthread_sigmask", lambda *_: ())(getattr(signal, "SIG_UNBLOCK", 0), {signal.SIGINT})


def _open(path: str | Path, flags: int, *, links: bool, within: tuple[str, int | None] | None = None) -> int:
    """Open a regular file; `within` is its name in an open folder, and that folder's handle."""
    before = None if _GUARDS else _looked_up(path, links)
    flags |= _BINARY | _NONBLOCK | (0 if links else _NOFOLLOW)
    handle = os.open(path, flags) if within is None else os.open(within[0], flags, dir_fd=within[1])
    with _closed_on_error(handle):
        status = os.fstat(handle)
        _expect_regular(status, path)
        if before is not None and not os.path.samestat(before, status):
            raise OSError(errno.ESTALE, "the file was replaced while it was opened", str(path))
    return handle


def _looked_up(path: str | Path, links: bool) -> os.stat_result:
    """Return the status of a regular file by its name, before it is opened: a pipe would wait for its writer."""
    status = os.stat(path) if links else os.lstat(path)
    if stat.S_ISLNK(status.st_mode):
        raise OSError(errno.ELOOP, "a symbolic link", str(path))
    _expect_regular(status, path)
    return status


def _expect_regular(status: os.stat_result, path: str | Path) -> None:
    kind = stat.S_IFMT(status.st_mode)
    if kind == stat.S_IFDIR:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if kind != stat.S_IFREG:
        what = _KINDS.get(kind, "something else")
        raise OSError(errno.EINVAL, f"{what}, not a regular file: save it as one", str(path))


@contextmanager
def _closed_on_error(handle: int) -> Iterator[None]:
    try:
        yield
    except BaseException:
        os.close(handle)
        raise


def _repeat_while_in_use(action: Callable[[], Any]) -> None:
    """Perform an action; on Windows, repeat it for a while if a file is in use."""
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            action()
        except PermissionError as error:
            if not is_in_use(error) or time.monotonic() > until:
                raise
            time.sleep(0.02)
        else:
            return
