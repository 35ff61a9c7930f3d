"""Durable writes to disk, and reads that are confined to one folder.

Every function turns an `OSError` into a `CheckpointError` that names the path and how to fix it.
"""

import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, cast, final

from qkv.errors import CheckpointError, ConfigError
from qkv.files import absolute
from qkv.system import (
    HeldFolder,
    create,
    expect_held,
    flush,
    flush_folder,
    is_file_name,
    is_read_only,
    make,
    open_for_appending,
    remove_file,
    remove_tree,
    rename,
)

SAVING = ".saving-"
REMOVING = ".removing-"
REPLACED = ".replaced"
_LONGEST_STEM = 200
_CHUNK = 1 << 20
_LARGEST_READ = 1 << 30  # in one call, so that a file is in memory only once

_HINTS = {
    errno.ENOSPC: "Free some space on this disk, or choose a folder on another disk.",
    errno.EDQUOT: "Your quota is used up: free some space, or choose a folder on another disk.",
    errno.EFBIG: "The system limits the size of files here (`ulimit -f`): raise it, or choose another folder.",
    errno.EACCES: "Choose a folder with write permission, or change its permissions.",
    errno.EPERM: "Choose a folder with write permission, or change its permissions.",
    errno.EROFS: "This disk is read-only: choose a folder on another disk.",
    errno.ENOTDIR: "A part of this path is a file: choose another folder.",
    errno.EEXIST: "It exists as a file: choose another folder.",
    errno.ENOENT: "Check the path: a part of it is misspelled or was removed.",
    errno.ELOOP: "It is a symbolic link: give the real folder, or replace the link by the real file.",
    errno.ENAMETOOLONG: "Choose a shorter name.",
    errno.EINVAL: "Replace it by the real file.",
    errno.ENOTSUP: "Only files are replaced: choose another name.",
    errno.EOVERFLOW: "The file was altered: restore it from its source.",
    errno.ESTALE: "Nothing was written to the present one. If the folder was moved, give its new name to resume.",
    errno.EIO: "The disk reports a hardware fault: copy important files to another disk.",
}


@contextmanager
def typed(path: Path, expected: str) -> Iterator[None]:
    """Turn errors of the operating system into a `CheckpointError` with a hint.

    Args:
        path: the path in use.
        expected: what was expected, as in "a writable folder".

    Raises:
        CheckpointError: for every `OSError` raised inside.

    Example:
        >>> with typed(Path("/dev/null/run"), "a writable folder"):
        ...     os.mkdir("/dev/null/run")
        Traceback (most recent call last):
        qkv.errors.CheckpointError: /dev/null/run: expected a writable folder; got "Not a directory". ...
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        hint = _HINTS.get(error.errno or 0, "Check the disk and the path.")
        raise CheckpointError(str(path), expected, f'"{reason}"', hint) from error


def write_file(path: Path, data: bytes) -> None:
    """Write a file of a new folder, see `new_folder`, which flushes it to disk.

    Args:
        path: a name that does not exist yet.
        data: its contents.
    """
    handle = create(path)
    try:
        write_all(handle, data)
    finally:
        os.close(handle)


def write_all(handle: int, data: bytes) -> None:
    """Write every byte: a call of the system may write fewer.

    Args:
        handle: an open file.
        data: what to write.
    """
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(handle, rest[: 64 * _CHUNK]) :]


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file atomically: readers see the old file or the new one, never a part.

    Args:
        path: the file; its folder exists.
        data: its contents.

    Raises:
        CheckpointError: the folder is not writable, or the disk is full.
    """
    with replacing(path) as write:
        write(data)


def save_file(path: Path, data: bytes) -> None:
    """Replace a file that the user named, such as a picture: what is wrong with it is no fault of a checkpoint.

    Args:
        path, data: as for `replace_file`.

    Raises:
        ConfigError: the folder is not writable, or the disk is full.
    """
    try:
        replace_file(path, data)
    except CheckpointError as error:
        raise error.as_kind(ConfigError) from error


@contextmanager
def replacing(path: Path) -> Iterator[Callable[[bytes], None]]:
    """Replace a file atomically by what is written piece by piece; an exception inside leaves the old file unchanged.

    Args:
        path: the file; its folder exists.

    Returns:
        A context manager that yields the function that writes a piece.

    Raises:
        CheckpointError: the folder is not writable, or the disk is full.
    """
    temporary = name_beside(path, SAVING)
    with typed(path, "a writable file"):
        try:
            handle = create(temporary)
            try:
                yield lambda data: write_all(handle, data)
                flush(handle)
            finally:
                os.close(handle)
            rename(temporary, path)
            flush_folder(path.parent)
        finally:
            remove_file(temporary)


def make_folder(folder: Path) -> None:
    """Create a folder and its parents, and flush their names to disk.

    Args:
        folder: the folder, which can exist already.

    Raises:
        CheckpointError: it cannot be created, or is a file.
    """
    with typed(folder, "a folder that can be created"):
        expect_held(folder)
        missing = []
        while not folder.is_dir():
            missing.append(folder)
            folder = folder.parent
        for path in reversed(missing):
            try:
                make(path)
            except FileExistsError:
                if not path.is_dir():
                    raise
            flush_folder(path.parent)


def expect_writable(folder: Path) -> None:
    """Check that a folder is writable, or can be created, without creating it.

    Args:
        folder: existing or not.

    Raises:
        CheckpointError: it or a parent is a file, or the folder in which to write or create it is not writable.

    Example:
        >>> expect_writable(Path("/dev/null/run"))
        Traceback (most recent call last):
        qkv.errors.CheckpointError: /dev/null/run: expected a writable folder; got "Not a directory". ...
    """
    with typed(folder, "a writable folder"):
        ancestor = absolute(folder)
        while not _exists(ancestor):
            ancestor = ancestor.parent
        if not stat.S_ISDIR(os.stat(ancestor).st_mode):
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if not os.access(ancestor, os.W_OK | os.X_OK):
            code = errno.EROFS if is_read_only(ancestor) else errno.EACCES
            raise OSError(code, os.strerror(code))


def _exists(path: Path) -> bool:
    try:
        os.lstat(path)
    except FileNotFoundError:
        return False
    return True


def expect_inside(folder: Path) -> None:
    """Refuse a folder that a file names, if it is a link that leads out of the folder in which the file lies.

    Args:
        folder: existing or not.

    Raises:
        CheckpointError: it leads elsewhere.
    """
    real = Path(os.path.realpath(folder))
    if real.parent != Path(os.path.realpath(folder.parent)):
        hint = "Replace the link by the folder itself."
        raise CheckpointError(str(folder), "a folder in this one", f"a link to {real}", hint)


def remove_folder(folder: Path) -> None:
    """Remove a folder atomically: it is never partly present under its own name.

    Args:
        folder: the folder; nothing happens if it does not exist.

    Raises:
        CheckpointError: it cannot be removed.
    """
    with typed(folder, "a folder that can be removed"):
        renamed_folder = name_beside(folder, REMOVING)
        try:
            rename(folder, renamed_folder)
        except FileNotFoundError:
            return
        flush_folder(folder.parent)
        remove_tree(renamed_folder)


def remove_leftovers(parent: Path, name: str = "") -> list[Path]:
    """Remove the leftovers of an interrupted save or removal.

    Args:
        parent: the folder that contains them.
        name: only leftovers of this target; all if empty.

    Returns:
        The removed paths.

    Raises:
        CheckpointError: a leftover cannot be removed.
    """
    with typed(parent, "a writable folder"):
        entries = [parent / entry.name for entry in os.scandir(parent) if _is_leftover(entry.name, name)]
        for path in entries:
            if path.is_dir() and not path.is_symlink():
                remove_tree(path)
            else:
                remove_file(path)
    return sorted(entries)


def _is_leftover(entry: str, name: str) -> bool:
    for mark in (SAVING, REMOVING):
        head, separator, tail = entry.rpartition(mark)
        if separator and head.startswith(".") and (not name or head == f".{_stem(name)}"):
            return len(tail) == 12 and set(tail) <= set("0123456789abcdef")
    return False


def name_beside(path: Path, mark: str) -> Path:
    """Return a new name in the folder of a path, under which something is written or removed.

    Args:
        path: the path, by which `remove_leftovers` knows whose it is.
        mark: `SAVING` or `REMOVING`.
    """
    return path.with_name(f".{_stem(path.name)}{mark}{secrets.token_hex(6)}")


def _stem(name: str) -> str:
    """Return a name, or its digest if a suffix would exceed the 255 bytes that file systems allow."""
    encoded = os.fsencode(name)
    return name if len(encoded) <= _LONGEST_STEM else sha256(encoded).hexdigest()


@contextmanager
def new_folder(folder: Path, replaced: Path | None = None) -> Iterator[Path]:
    """Write a folder that exists completely or not at all.

    Args:
        folder: a folder that does not exist yet, or is empty; missing parents are created.
        replaced: the name that an existing folder gets just before the new one takes its place; None if none may exist.

    Returns:
        A context manager that yields another folder, which takes the name at the end. If the process is killed
        meanwhile, the next one to write a folder of this name removes it.

    Raises:
        CheckpointError: the folder has other contents, or cannot be written.
    """
    make_folder(folder.parent)
    with typed(folder, "a writable folder"):
        is_new = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
        if replaced is None and (folder.is_symlink() or not is_new):
            hint = "Choose another folder: nothing in this one was changed."
            raise CheckpointError(str(folder), "a new or empty folder", "one with contents", hint)
        remove_leftovers(folder.parent, folder.name)
        temporary = name_beside(folder, SAVING)
        try:
            make(temporary)
            yield temporary
            for path in temporary.iterdir():
                handle = open_for_appending(path)
                try:
                    flush(handle)
                finally:
                    os.close(handle)
            flush_folder(temporary)
            if replaced is not None:
                rename(folder, replaced)
            rename(temporary, folder)
            flush_folder(folder.parent)
        except BaseException:
            with suppress(CheckpointError):
                remove_leftovers(folder.parent, folder.name)
            raise


@final
class FolderReader:
    """Reads files of one folder by plain name: nothing outside it, no links, no pipes, nothing above a given size.

    Args:
        folder: the folder; the reader stays on it even if it is renamed.

    Raises:
        CheckpointError: there is no such folder, or it cannot be read.

    Example:
        >>> with FolderReader(Path("/")) as reader:
        ...     reader.read("../etc/passwd", 10)
        Traceback (most recent call last):
        qkv.errors.CheckpointError: /../etc/passwd: expected a plain file name; ...
    """

    def __init__(self, folder: Path) -> None:
        """Open the folder."""
        self.folder = folder
        with typed(folder, "a readable checkpoint folder"):
            self._held = HeldFolder(folder)

    def __enter__(self) -> "FolderReader":
        """Return the reader itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the folder."""
        self._held.close()

    def read(self, name: str, limit: int) -> bytes:
        """Read a whole file.

        Args:
            name: its plain name.
            limit: maximum size in bytes.

        Returns:
            Its bytes.

        Raises:
            CheckpointError: missing, not a plain file, or larger than `limit`.
        """
        return b"".join(self._chunks(name, limit, _LARGEST_READ))

    def digest(self, name: str, limit: int) -> tuple[int, str]:
        """Compute size and sha256 of a file without loading it into memory.

        Args:
            name: its plain name.
            limit: maximum size in bytes.

        Returns:
            Its size in bytes and its sha256 in hexadecimal.

        Raises:
            CheckpointError: as for `read`.
        """
        size, total = 0, sha256()
        for chunk in self._chunks(name, limit, _CHUNK):
            size += len(chunk)
            total.update(chunk)
        return size, total.hexdigest()

    @contextmanager
    def stream(self, name: str) -> Iterator[BinaryIO]:
        """Open a file to read it piece by piece.

        Args:
            name: its plain name.

        Returns:
            A context manager that yields the stream.

        Raises:
            CheckpointError: missing, or not a plain file.
        """
        with self._open(name) as handle, open(handle, "rb", buffering=0, closefd=False) as stream:
            yield cast("BinaryIO", stream)

    def _chunks(self, name: str, limit: int, chunk: int) -> Iterator[bytes]:
        with self._open(name) as handle:
            yield from _bounded(handle, self.folder / name, limit, chunk)

    @contextmanager
    def _open(self, name: str) -> Iterator[int]:
        path = self.folder / name
        if not is_file_name(name):
            hint = "A checkpoint only reads files in its own folder: copy it again from its source."
            raise CheckpointError(str(path), "a plain file name", f"{name!r}", hint)
        with typed(path, "a readable file of the checkpoint"):
            handle = self._held.open(name)
            try:
                yield handle
            finally:
                os.close(handle)


def _bounded(handle: int, path: Path, limit: int, size: int) -> Iterator[bytes]:
    present, remaining = os.fstat(handle).st_size, limit
    # The limit also applies to a file that grows while it is read.
    while chunk := os.read(handle, min(size, remaining + 1, present + 1)):
        remaining -= len(chunk)
        if remaining < 0:
            hint = "The file was altered: copy the checkpoint again from its source."
            raise CheckpointError(str(path), f"at most {limit:,} bytes", "more", hint)
        yield chunk
