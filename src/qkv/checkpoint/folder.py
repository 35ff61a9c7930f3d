"""One checkpoint: a folder that is written and replaced atomically."""

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

from torch import Tensor

from qkv.checkpoint import manifest as manifests
from qkv.checkpoint.contents import Contents, StoredWeights, pack_contents, unpack_contents
from qkv.checkpoint.disk import REPLACED, FolderReader, make_folder, new_folder, remove_folder, typed, write_file
from qkv.checkpoint.manifest import COPY_AGAIN, MODEL, TRAINER_NUMBERS, TRAINER_TENSORS, Manifest, StoredFile
from qkv.checkpoint.tensors import read_header, read_tensors, with_tied
from qkv.errors import CheckpointError
from qkv.files import absolute
from qkv.system import flush_folder, rename


def save(folder: Path, contents: Contents, *, replace: bool = False) -> Manifest:
    """Write a checkpoint atomically: the folder exists completely or not at all, whatever happens.

    The files go into a temporary folder next to the target. Each file and then the folder is flushed to disk, and the
    folder is renamed. Only one process at a time may save to the same target.

    Args:
        folder: the target, which does not exist yet or is empty; missing parents are created.
        contents: what to write.
        replace: whether to replace an existing checkpoint, once the new one is complete.

    Returns:
        The manifest; its `digest` covers every byte.

    Raises:
        CheckpointError: the target contains something else or is not writable, or the disk is full. The target is then
            left unchanged.

    Example:
        >>> import tempfile, torch
        >>> with tempfile.TemporaryDirectory() as parent:
        ...     _ = save(Path(parent, "model"), Contents({"weight": torch.ones(2)}, {"width": 2}))
        ...     load(Path(parent, "model")).config
        {'width': 2}
    """
    folder = absolute(folder)
    files, manifest = pack_contents(contents)
    make_folder(folder.parent)
    recover(folder)
    occupied = _occupied(folder, replace)
    try:
        with new_folder(folder, _replaced(folder) if occupied else None) as temporary:
            for name, data in (files | {manifests.NAME: manifest.to_bytes()}).items():
                write_file(temporary / name, data)
    except BaseException:
        with suppress(CheckpointError):  # the first error is reported; the next save finds others again
            recover(folder)
        raise
    if occupied:
        remove_folder(_replaced(folder))
    return manifest


def load(folder: Path, *, trainer: bool = True) -> Contents:
    """Read a checkpoint after verifying every byte of it.

    Args:
        folder: a folder that `save` wrote.
        trainer: whether to read the trainer's state too; its files are verified in any case.

    Returns:
        Its contents, tensors on the CPU.

    Raises:
        CheckpointError: a file is missing or altered; the message names it.
    """
    folder = current_folder(folder)
    with FolderReader(folder) as reader:
        manifest = _manifest(reader)
        skipped = set() if trainer else {TRAINER_TENSORS, TRAINER_NUMBERS}
        files = _read_texts(reader, manifest, skipped)
        for name in skipped & manifest.files.keys():
            _expect_unaltered(reader, name, manifest)
        tensors = {
            name: _read_tensors(reader, name, manifest)
            for name in (MODEL, TRAINER_TENSORS)
            if name in manifest.files and name not in skipped
        }
    return unpack_contents(folder, files, tensors)


def load_weights_later(folder: Path) -> Contents:
    """Read a checkpoint without the trainer's state; the weights are read when they are first needed.

    The names and shapes of the weights are known at once. Before the weights are read, every other byte of the
    checkpoint is verified.

    Args:
        folder: a folder that `save` wrote.

    Returns:
        Its contents; its model is a `StoredWeights`.

    Raises:
        CheckpointError: a file is missing or altered, as far as it was read.
    """
    folder, trainers = current_folder(folder), {TRAINER_TENSORS, TRAINER_NUMBERS}
    with FolderReader(folder) as reader:
        manifest = _manifest(reader)
        files = _read_texts(reader, manifest, trainers)
        with _opened(reader, MODEL, manifest) as stream:
            slots = read_header(stream, manifest.files[MODEL].bytes, str(folder / MODEL)).slots
    shapes = {name: slot.shape for name, slot in slots.items()}
    tied = manifest.tied.get(MODEL, {})
    shapes |= {name: shapes[home] for name, home in tied.items() if home in shapes}

    def read() -> dict[str, Tensor]:
        with FolderReader(folder) as reader:
            for name in trainers & manifest.files.keys():
                _expect_unaltered(reader, name, manifest)
            return _read_tensors(reader, MODEL, manifest)

    return unpack_contents(folder, files, {MODEL: StoredWeights(shapes, read)})


def verify(folder: Path) -> Manifest:
    """Check that a checkpoint is complete and unaltered, without loading it into memory.

    Args:
        folder: a folder that `save` wrote.

    Returns:
        Its manifest.

    Raises:
        CheckpointError: a file is missing or altered; the message names it.
    """
    folder = current_folder(folder)
    with FolderReader(folder) as reader:
        manifest = _manifest(reader)
        for name in manifest.files:
            _expect_unaltered(reader, name, manifest)
    return manifest


def current_folder(folder: Path) -> Path:
    """Locate a checkpoint even if its replacement was interrupted between two renames.

    Args:
        folder: its name.

    Returns:
        The folder itself, or the one that was about to be replaced.
    """
    folder = absolute(folder)
    old = _replaced(folder)
    return old if os.path.isdir(old) and not os.path.lexists(folder) else folder


def recover(folder: Path) -> None:
    """Finish or undo an interrupted replacement.

    Args:
        folder: the name of the checkpoint.

    Raises:
        CheckpointError: the folder is not writable.
    """
    old = _replaced(folder)
    if not os.path.isdir(old):
        return
    if os.path.lexists(folder):
        remove_folder(old)
        return
    with typed(folder, "a writable folder"):
        rename(old, folder)
        flush_folder(folder.parent)


def is_checkpoint(folder: Path) -> bool:
    """Return whether a folder looks like a checkpoint, complete or not.

    Args:
        folder: any path.

    Returns:
        Whether it is a folder with a manifest.
    """
    return os.path.isfile(current_folder(folder) / manifests.NAME)


def _replaced(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}{REPLACED}") if folder.name else folder


def _occupied(folder: Path, replace: bool) -> bool:
    with typed(folder, "a writable folder"):
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            hint = "Choose another folder."
            raise CheckpointError(str(folder), "a new folder", "a file or link", hint)
        entries = sorted(os.listdir(folder)) if folder.exists() else []
    if not entries:
        return False
    if manifests.NAME not in entries:
        got, hint = f"a folder that contains {entries[0]!r}", "Choose another folder: nothing in this one was changed."
        raise CheckpointError(str(folder), "a new or empty folder", got, hint)
    if not replace:
        hint = "Choose another folder, or remove this one if it is no longer needed."
        raise CheckpointError(str(folder), "a new folder", "a folder that already contains a checkpoint", hint)
    return True


def _manifest(reader: FolderReader) -> Manifest:
    path = reader.folder / manifests.NAME
    try:
        data = reader.read(manifests.NAME, manifests.LIMIT)
    except CheckpointError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        hint = "It is not a checkpoint, or is an incomplete copy: give a folder saved by qkv, or copy it again."
        raise CheckpointError(str(path), "the list of the checkpoint's files", "no such file", hint) from None
    return manifests.parse(data, str(path))


def _read(reader: FolderReader, name: str, limit: int) -> bytes:
    try:
        return reader.read(name, limit)
    except CheckpointError as error:
        raise _missing(reader.folder / name, error) from error


def _expect_unaltered(reader: FolderReader, name: str, manifest: Manifest) -> None:
    """Verify a file without loading it into memory."""
    path, entry = reader.folder / name, manifest.files[name]
    try:
        actual = StoredFile(*reader.digest(name, entry.bytes))
    except CheckpointError as error:
        raise _missing(path, error) from error
    _compare(path, entry, actual)


def _read_texts(reader: FolderReader, manifest: Manifest, skipped: Collection[str]) -> dict[str, bytes]:
    """Read and verify the files that are not tensors."""
    files = {}
    for name, entry in manifest.files.items():
        if name not in (MODEL, TRAINER_TENSORS) and name not in skipped:
            files[name] = _read(reader, name, entry.bytes)
            _compare(reader.folder / name, entry, StoredFile.of(files[name]))
    return files


def _read_tensors(reader: FolderReader, name: str, manifest: Manifest) -> dict[str, Tensor]:
    """Read and verify a file of tensors, in one pass and each byte into its tensor."""
    path, entry, total = reader.folder / name, manifest.files[name], sha256()
    with _opened(reader, name, manifest) as stream:
        tensors = read_tensors(stream, entry.bytes, str(path), total.update)
    _compare(path, entry, StoredFile(entry.bytes, total.hexdigest()))
    return with_tied(tensors, manifest.tied.get(name, {}), str(path))


@contextmanager
def _opened(reader: FolderReader, name: str, manifest: Manifest) -> Iterator[BinaryIO]:
    """Open a file of the size in the manifest; if reading it fails and its sha256 differs, report the alteration."""
    path, entry = reader.folder / name, manifest.files[name]
    try:
        with reader.stream(name) as stream:
            _expect_size(stream, entry, path)
            yield stream
    except CheckpointError as error:
        _expect_unaltered(reader, name, manifest)
        raise _missing(path, error) from error


def _expect_size(stream: BinaryIO, entry: StoredFile, path: Path) -> None:
    size = os.fstat(stream.fileno()).st_size
    if size != entry.bytes:
        raise CheckpointError(str(path), f"{entry.bytes:,} bytes", f"{size:,}", COPY_AGAIN)


def _missing(path: Path, error: CheckpointError) -> CheckpointError:
    if isinstance(error.__cause__, FileNotFoundError):
        return CheckpointError(str(path), "a file of this checkpoint", "no such file", COPY_AGAIN)
    return error


def _compare(path: Path, stored: StoredFile, actual: StoredFile) -> None:
    if stored != actual:
        expected = f"{stored.bytes:,} bytes with sha256 {stored.sha256[:16]}…, as saved"
        got = f"an altered file ({actual.bytes:,} bytes, sha256 {actual.sha256[:16]}…)"
        raise CheckpointError(str(path), expected, got, COPY_AGAIN)
