"""Guarded reading of a folder from elsewhere: plain files by plain names, of limited size; nothing is executed."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, final

import torch
from torch import Tensor

from qkv.checkpoint.disk import typed
from qkv.checkpoint.json_values import decode_mapping
from qkv.checkpoint.tensors import Header, read_header, read_some
from qkv.errors import CheckpointError
from qkv.files import open_file
from qkv.system import is_file_name

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
ADAPTER = "adapter_config.json"
"""What a folder of PEFT has; see `qkv.hub.families.adapter`."""
_SMALL, _TEXT = 16 << 20, 256 << 20
_CHUNK = 1 << 20
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".h5", ".msgpack")
_COPY_AGAIN = "Copy the folder again from its source."


@final
class Folder:
    """The files of a folder that another library wrote.

    A link may only point into the folder itself, or from a snapshot in the cache of Hugging Face to its blobs.

    Args:
        path: the folder.

    Raises:
        CheckpointError: there is no such folder.

    Example:
        >>> Folder(Path("/")).read("../etc/passwd", 10)
        Traceback (most recent call last):
        qkv.errors.CheckpointError: /../etc/passwd: expected a plain file name; got '../etc/passwd'. ...
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(os.path.abspath(path))
        with typed(self.path, "a readable folder"):
            self._names = frozenset(os.listdir(self.path))

    def has(self, name: str) -> bool:
        """Return whether there is a file of this name."""
        return name in self._names

    def read(self, name: str, limit: int = _SMALL) -> bytes:
        """Return the bytes of a file.

        Raises:
            CheckpointError: it is missing, lies outside the folder, is not a plain file, or is larger than the limit.
        """
        return b"".join(self._chunks(name, limit))

    def text(self, name: str) -> str:
        """Return a text in UTF-8.

        Raises:
            CheckpointError: as for `read`, or it is not UTF-8.
        """
        try:
            return self.read(name, _TEXT).decode()
        except UnicodeDecodeError as error:
            raise CheckpointError(str(self.path / name), "text in UTF-8", str(error), _COPY_AGAIN) from error

    def table(self, name: str) -> dict[str, Any]:
        """Return the table in a JSON file.

        Raises:
            CheckpointError: as for `read`, or it is not a JSON object.
        """
        return dict(decode_mapping(self.read(name), str(self.path / name)))

    def digest(self, names: Iterable[str]) -> str:
        """Return the sha256 over names and bytes of files.

        Args:
            names: those of the files.

        Raises:
            CheckpointError: as for `read`.
        """
        total = sha256()
        for name in sorted(names):
            hash = sha256()
            for chunk in self._chunks(name, 1 << 62):
                hash.update(chunk)
            total.update(f"{name} {hash.hexdigest()}\n".encode())
        return total.hexdigest()

    def weights(self, file: str = WEIGHTS) -> "FolderWeights":
        """Return the tensors that are stored.

        Args:
            file: the file of weights that are not in several.

        Raises:
            CheckpointError: there are none, or only pickled ones.
        """
        if file == WEIGHTS and self.has(INDEX):
            files_of = self.table(INDEX).get("weight_map")
            if not isinstance(files_of, Mapping) or not all(isinstance(file, str) for file in files_of.values()):
                got = "something else"
                raise CheckpointError(str(self.path / INDEX), "a table weight_map of file names", got, _COPY_AGAIN)
            return FolderWeights(self, sorted(set(files_of.values())), files_of)
        if self.has(file):
            return FolderWeights(self, [file], None)
        pickled = sorted(name for name in self._names if name.endswith(_PICKLES))
        got = f"{pickled[0]}, which may hold code" if pickled else "no such file"
        hint = "Nothing is unpickled here: convert it to safetensors where you trust it." if pickled else _COPY_AGAIN
        raise CheckpointError(str(self.path / file), "weights in safetensors", got, hint)

    def locate(self, name: str) -> Path:
        """Return the real path of a file in the folder.

        Raises:
            CheckpointError: the name has a folder in it, or the file lies elsewhere.
        """
        path = self.path / name
        if not is_file_name(name):
            hint = "Only files of the folder itself are read."
            raise CheckpointError(str(path), "a plain file name", ascii(name)[:200], hint)
        real, folder = Path(os.path.realpath(path)), Path(os.path.realpath(self.path))
        snapshot = folder.parent if folder.parent.parent.name == "snapshots" else folder  # of a folder in a snapshot
        blobs = snapshot.parent.parent / "blobs" if snapshot.parent.name == "snapshots" else folder
        if real.parent not in (folder, blobs):
            hint = "Replace the link by the file itself."
            raise CheckpointError(str(path), "a file in this folder", f"a link to {real}", hint)
        return real

    def _chunks(self, name: str, limit: int) -> Any:
        path, remaining = self.locate(name), limit
        with typed(self.path / name, "a readable file"), open_file(path, links=False) as stream:
            while chunk := stream.read(min(_CHUNK, remaining + 1)):
                remaining -= len(chunk)
                if remaining < 0:
                    raise CheckpointError(str(path), f"at most {limit:,} bytes", "more", _COPY_AGAIN)
                yield chunk


@final
class FolderWeights:
    """The tensors in one or several safetensors files; shapes are known before any is read.

    Args:
        folder: where the files are.
        files: their names.
        files_of: the file of each tensor, as an index lists them; None for one file.

    Raises:
        CheckpointError: a file is not in safetensors, or does not hold what the index lists.
    """

    def __init__(self, folder: Folder, files: Sequence[str], files_of: Mapping[str, Any] | None) -> None:
        self._folder = folder
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.dtypes: dict[str, torch.dtype] = {}
        self._files: dict[str, str] = {}
        self._headers: dict[str, Header] = {}
        for file in files:
            with self._open(file) as stream:
                header = read_header(stream, os.fstat(stream.fileno()).st_size, str(self._folder.path / file))
            self._headers[file] = header
            for name, slot in header.slots.items():
                self.shapes[name], self.dtypes[name] = slot.shape, slot.dtype
                if self._files.setdefault(name, file) != file or (files_of and files_of.get(name) != file):
                    self._refuse(file, f"{name} alone in the file of the index")
        if files_of and (missing := set(files_of) - set(self.shapes)):
            self._refuse(f"{files_of[min(missing)]}", f"the tensor {min(missing)}")

    @property
    def files(self) -> tuple[str, ...]:
        """The names of the files in which they are stored."""
        return tuple(self._headers)

    def read(self, names: Sequence[str]) -> dict[str, Tensor]:
        """Read tensors, on the CPU."""
        tensors: dict[str, Tensor] = {}
        for file in sorted({self._files[name] for name in names}):
            present = [name for name in names if self._files[name] == file]
            with self._open(file) as stream:
                tensors |= read_some(stream, self._headers[file], present, str(self._folder.path / file))
        return tensors

    @contextmanager
    def _open(self, file: str) -> Iterator[BinaryIO]:
        path = self._folder.locate(file)
        with typed(self._folder.path / file, "a readable file"), open_file(path, links=False) as stream:
            yield stream

    def _refuse(self, file: str, expected: str) -> None:
        raise CheckpointError(str(self._folder.path / file), expected, "something else", _COPY_AGAIN)
