"""How bytes reach the disk for certain, and how they come back from one folder only.

Every function turns an `OSError` into a `CheckpointError` that names the path and the hint.
"""

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import final

from qkv.errors import CheckpointError, error_message

SAVING = ".saving-"
REMOVING = ".removing-"
REPLACED = ".replaced"
_CHUNK = 1 << 20
_WHOLE = 1 << 30  # at one go, so that a file is in memory once
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# A name is never followed out of the folder, and a pipe in the place of a file never blocks.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_MENDS = {
    errno.ENOSPC: "Free some space on this disk, or choose a folder on another one.",
    errno.EDQUOT: "Your quota is used up: free some space, or choose a folder on another disk.",
    errno.EFBIG: "The system limits the size of files here (`ulimit -f`): raise it, or choose another folder.",
    errno.EACCES: "Choose a folder that you may write to, or change its permissions.",
    errno.EPERM: "Choose a folder that you may write to, or change its permissions.",
    errno.EROFS: "This disk cannot be written to: choose a folder on another one.",
    errno.ENOTDIR: "A part of this path is a file: choose another folder.",
    errno.EEXIST: "A file stands in its place: choose another folder.",
    errno.ENOENT: "Check the path for a misspelled or removed part.",
    errno.ELOOP: "A symbolic link stands here: give the real folder, or copy the real file into its place.",
    errno.ENAMETOOLONG: "Choose a shorter name.",
    errno.EIO: "The disk reports a fault: copy what matters to another one.",
}


@contextmanager
def typed(path: Path, wish: str) -> Iterator[None]:
    """Turn what the operating system refuses into a `CheckpointError` with the hint.

    Args:
        path: what is worked on.
        wish: what should have been possible, as in "a folder that can be written to".

    Raises:
        CheckpointError: for every `OSError` raised inside.

    Example:
        >>> with typed(Path("/dev/null/run"), "a folder that can be written to"):
        ...     os.mkdir("/dev/null/run")
        Traceback (most recent call last):
        qkv.errors.CheckpointError: /dev/null/run: expected a folder that can be written to; got "Not a directory". ...
    """
    try:
        yield
    except OSError as error:
        said = error.strerror or str(error)
        hint = _MENDS.get(error.errno or 0, "Check the disk and the path.")
        raise CheckpointError(error_message(str(path), wish, f'"{said}"', hint)) from error


def fsync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk.

    Args:
        folder: the folder.
    """
    handle = os.open(folder, _FOLDER)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_file(path: Path, data: bytes) -> None:
    """Write a new file and wait until its bytes are on the disk.

    Args:
        path: a name that does not exist yet.
        data: what it will hold.
    """
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(handle, rest[: 64 * _CHUNK]) :]
        os.fsync(handle)
    finally:
        os.close(handle)


def replace_file(path: Path, data: bytes) -> None:
    """Put a file in place as a whole: readers see the old one or the new one, never a part.

    Args:
        path: the file; its folder exists.
        data: what it will hold.

    Raises:
        CheckpointError: the folder cannot be written to, or the disk is full.
    """
    temporary = path.with_name(f".{path.name}{SAVING}{secrets.token_hex(6)}")
    with typed(path, "a file that can be written"):
        try:
            write_file(temporary, data)
            os.replace(temporary, path)
            fsync_folder(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def make_folder(folder: Path) -> None:
    """Make a folder and its parents, and wait until their names are on the disk.

    Args:
        folder: the folder, which may exist already.

    Raises:
        CheckpointError: it cannot be made, or a file stands in its place.
    """
    with typed(folder, "a folder that can be made"):
        missing = []
        while not folder.is_dir():
            missing.append(folder)
            folder = folder.parent
        for path in reversed(missing):
            path.mkdir(exist_ok=True)
            fsync_folder(path.parent)


def expect_writable(folder: Path) -> None:
    """Look whether a folder can be written to, or made; nothing is made.

    Args:
        folder: there or not.

    Raises:
        CheckpointError: a file stands in its place or above it, or the folder, or the one to make it in, cannot be
            written to.

    Example:
        >>> expect_writable(Path("/dev/null/run"))
        Traceback (most recent call last):
        qkv.errors.CheckpointError: /dev/null/run: expected a folder that can be written to; got "Not a directory". ...
    """
    with typed(folder, "a folder that can be written to"):
        place = Path(os.path.abspath(folder))
        while not _stands(place):
            place = place.parent
        if not stat.S_ISDIR(os.stat(place).st_mode):
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if not os.access(place, os.W_OK | os.X_OK):
            code = errno.EROFS if os.statvfs(place).f_flag & os.ST_RDONLY else errno.EACCES
            raise OSError(code, os.strerror(code))


def _stands(path: Path) -> bool:
    try:
        os.lstat(path)
    except FileNotFoundError:
        return False
    return True


def remove_folder(folder: Path) -> None:
    """Remove a folder so that no half of it ever stands under its own name.

    Args:
        folder: what to remove; nothing happens where it does not exist.

    Raises:
        CheckpointError: it cannot be removed.
    """
    with typed(folder, "a folder that can be removed"):
        doomed = folder.with_name(f".{folder.name}{REMOVING}{secrets.token_hex(6)}")
        try:
            os.rename(folder, doomed)
        except FileNotFoundError:
            return
        fsync_folder(folder.parent)
        shutil.rmtree(doomed)


def remove_leftovers(parent: Path, name: str = "") -> list[Path]:
    """Remove what an interrupted save or removal left beside its target.

    Args:
        parent: the folder to look into.
        name: only leftovers of this target; all where empty.

    Returns:
        What was removed.

    Raises:
        CheckpointError: a leftover cannot be removed.
    """
    with typed(parent, "a folder that can be written to"):
        entries = [parent / entry.name for entry in os.scandir(parent) if _is_leftover(entry.name, name)]
        for path in entries:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    return sorted(entries)


def _is_leftover(entry: str, name: str) -> bool:
    for mark in (SAVING, REMOVING):
        head, found, tail = entry.rpartition(mark)
        if found and head.startswith("." + name) and (not name or head == "." + name):
            return len(tail) == 12 and set(tail) <= set("0123456789abcdef")
    return False


@final
class Reader:
    """Reads files of one folder by plain name: nothing outside it, no link, no pipe, nothing above a stated size.

    Args:
        folder: the folder; it stays the same one even if it is renamed meanwhile.

    Raises:
        CheckpointError: there is no such folder, or it cannot be read.

    Example:
        >>> with Reader(Path("/")) as reader:
        ...     reader.read("../etc/passwd", 10)
        Traceback (most recent call last):
        qkv.errors.CheckpointError: /../etc/passwd: expected a plain file name; ...
    """

    def __init__(self, folder: Path) -> None:
        """Open the folder."""
        self.folder = folder
        with typed(folder, "a checkpoint folder that can be read"):
            self._handle = os.open(folder, _FOLDER)

    def __enter__(self) -> "Reader":
        """Give the reader itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the folder."""
        os.close(self._handle)

    def read(self, name: str, limit: int) -> bytes:
        """Read a whole file.

        Args:
            name: its plain name.
            limit: the largest size in bytes that is accepted.

        Returns:
            Its bytes.

        Raises:
            CheckpointError: missing, not a plain file, or larger than `limit`.
        """
        return b"".join(self._chunks(name, limit, _WHOLE))

    def digest(self, name: str, limit: int) -> tuple[int, str]:
        """Measure a file without holding it in memory.

        Args:
            name: its plain name.
            limit: the largest size in bytes that is accepted.

        Returns:
            Its size in bytes and its sha256 in hexadecimal.

        Raises:
            CheckpointError: as `read`.
        """
        size, total = 0, sha256()
        for chunk in self._chunks(name, limit, _CHUNK):
            size += len(chunk)
            total.update(chunk)
        return size, total.hexdigest()

    def _chunks(self, name: str, limit: int, chunk: int) -> Iterator[bytes]:
        path = self.folder / name
        if name in {"", ".", ".."} or "/" in name or "\0" in name:
            hint = "A checkpoint reads nothing outside its own folder: get it again from where it came."
            raise CheckpointError(error_message(str(path), "a plain file name", f"{name!r}", hint))
        with typed(path, "a file of the checkpoint that can be read"):
            handle = os.open(name, _FILE, dir_fd=self._handle)
            try:
                yield from _bounded(handle, path, limit, chunk)
            finally:
                os.close(handle)


def _bounded(handle: int, path: Path, limit: int, size: int) -> Iterator[bytes]:
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        hint = "Put the real file in its place."
        raise CheckpointError(error_message(str(path), "a plain file", "something else by this name", hint))
    left = limit
    # A file that grows while it is read is still held to the limit.
    while chunk := os.read(handle, min(size, left + 1, status.st_size + 1)):
        left -= len(chunk)
        if left < 0:
            hint = "It is not what was saved: get the checkpoint again from where it came."
            raise CheckpointError(error_message(str(path), f"at most {limit:,} bytes", "more", hint))
        yield chunk
