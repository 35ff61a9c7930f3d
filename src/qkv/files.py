"""The one way in which qkv opens a file that a user names or a folder holds: regular files only, never beyond a size.

Opening never waits (for the writer of a named pipe, for a device), and what was opened is checked, not what had the
name a moment before. Links are followed where the user gave the path, never where a folder holds it.
"""

import errno
import mmap
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from qkv.errors import (
    MEMORY_ERRORS,
    ArgumentError,
    ConfigError,
    OutOfMemoryError,
    brief,
    nearest,
    out_of_memory_text,
    setting,
)
from qkv.system import open_for_reading


def open_file(path: str | Path, *, links: bool = True) -> BinaryIO:
    """Open a regular file as a stream of bytes.

    Args:
        path: the file.
        links: whether the last part of the path may be a symbolic link; no for a file that a folder holds.

    Returns:
        The stream, which the caller closes.

    Raises:
        OSError: it cannot be opened, or is not a regular file: `strerror` says what it is.

    Example:
        >>> open_file("/dev/zero")
        Traceback (most recent call last):
        OSError: [Errno 22] a device, not a regular file: save it as one: '/dev/zero'
    """
    return os.fdopen(open_for_reading(path, links=links), "rb")


def absolute(path: str | Path) -> Path:
    """Make a path absolute.

    Args:
        path: any path.

    Returns:
        The same place, whatever the working folder becomes.

    Raises:
        ConfigError: the path is relative, and the working folder was removed.

    Example:
        >>> absolute("/tmp/../run")
        PosixPath('/run')
    """
    try:
        return Path(os.path.abspath(path))
    except FileNotFoundError:
        hint = "Change to another folder (cd), or give an absolute path."
        got = "a removed working folder"
        raise ConfigError(str(path), "a path in a folder that exists", got, hint) from None


def read_file(path: str | Path, limit: int, *, links: bool = True) -> bytes:
    """Read a whole file of at most a given size.

    Args:
        path: the file.
        limit: maximum size in bytes; it also holds for a file that grows meanwhile.
        links: as for `open_file`.

    Returns:
        Its bytes.

    Raises:
        OSError: as for `open_file`, or it is larger.

    Example:
        >>> read_file("/proc/self/cmdline", 1)
        Traceback (most recent call last):
        OSError: [Errno 75] more than 1 bytes: '/proc/self/cmdline'
    """
    with open_file(path, links=links) as stream:
        size = os.fstat(stream.fileno()).st_size
        # Never more at once than the file claims to hold: a limit of gibibytes allocates nothing.
        data = b"" if size > limit else stream.read(min(limit, size) + 1)
        while size <= limit and len(data) <= limit and (more := stream.read(min(1 << 20, limit - len(data) + 1))):
            data += more
    if size > limit or len(data) > limit:
        raise OSError(errno.EOVERFLOW, f"more than {limit:,} bytes", str(path))
    return data


def map_file(path: str | Path, size: int) -> mmap.mmap | bytes:
    """Map a file that a folder holds: what is read of it is in memory while the map lives.

    Args:
        path: the file.
        size: how many bytes it must have.

    Returns:
        The map, which ends with the last reference to it; no bytes of an empty file.

    Raises:
        OSError: as for `open_file`, or it has another size.

    Example:
        >>> map_file("/proc/self/cmdline", 1)
        Traceback (most recent call last):
        OSError: [Errno 116] 0 bytes in place of 1: '/proc/self/cmdline'
    """
    with open_file(path, links=False) as stream:
        actual = os.fstat(stream.fileno()).st_size
        if actual != size:
            raise OSError(errno.ESTALE, f"{actual:,} bytes in place of {size:,}", str(path))
        return mmap.mmap(stream.fileno(), size, access=mmap.ACCESS_READ) if size else b""


FREE = "Free some memory, or take a machine with more."
"""A hint for `room_for`."""


@contextmanager
def room_for(path: str | Path, hint: str) -> Iterator[None]:
    """Turn an exhausted memory into an error that names the file.

    Args:
        path: what is being read.
        hint: how to need less.

    Raises:
        OutOfMemoryError: for every out-of-memory error raised inside.

    Example:
        >>> with room_for("text.de", "Split the file."):
        ...     raise MemoryError
        Traceback (most recent call last):
        qkv.errors.OutOfMemoryError: text.de: expected enough memory for it; got none left. Split the file.
    """
    try:
        yield
    except MEMORY_ERRORS as error:
        got = out_of_memory_text(error)
        if got is None or isinstance(error, OutOfMemoryError):
            raise
        raise OutOfMemoryError(str(path), "enough memory for it", got, hint) from error


def expect_suffix(argument: str, path: Path, suffixes: Collection[str]) -> str:
    """Return the suffix of a file in lower case if it is one of some.

    Args:
        argument: what names the file, for the message.
        path: the file.
        suffixes: such as ".html".

    Raises:
        ConfigError: it is not; the message suggests the suffix closest to it.

    Example:
        >>> expect_suffix("path", Path("dog.PNG"), (".html", ".svg", ".png"))
        '.png'
    """
    suffix = path.suffix.lower()
    if suffix not in suffixes:
        *others, last = suffixes
        expected = f"a file name that ends in {' or '.join(filter(None, (', '.join(others), last)))}"
        raise ConfigError(argument, expected, f"{suffix or 'no suffix'} in {str(path)!r}", nearest(suffix, suffixes))
    return suffix


def as_path(path: object, name: str) -> Path:
    """Return a path that a caller gave.

    Args:
        path: a text, or what stands for a path.
        name: of the argument.

    Raises:
        ArgumentError: it is neither.

    Example:
        >>> as_path("runs/first", "out").name
        'first'
        >>> as_path(3, "out")
        Traceback (most recent call last):
        qkv.errors.ArgumentError: out: expected a path; got 3. Give a text or a pathlib.Path.
    """
    plain = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(plain, str):
        hint = "Give os.fsdecode of it." if isinstance(plain, bytes) else "Give a text or a pathlib.Path."
        raise ArgumentError(setting(name), "a path", brief(repr(path)), hint)
    return Path(plain)
