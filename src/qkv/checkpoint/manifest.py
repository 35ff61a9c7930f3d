"""The manifest of a checkpoint: the size and sha256 of each file, and a digest of the manifest itself."""

import builtins
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import file_digest, sha256
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, cast, final

from qkv.checkpoint.json_values import JsonValue, decode_mapping, encode, is_version
from qkv.errors import CheckpointError
from qkv.files import open_file

if TYPE_CHECKING:
    from io import FileIO

NAME = "MANIFEST.json"
LIMIT = 1 << 22
FORMAT = "qkv checkpoint"
VERSION = 1

MODEL, CONFIG, TOKENIZER, FIGURES = "model.safetensors", "config.json", "tokenizer.json", "figures.json"
TRAINER_TENSORS, TRAINER_NUMBERS = "trainer.safetensors", "trainer.json"
REQUIRED = (MODEL, CONFIG)

_MIB = 1 << 20
LIMITS: Mapping[str, int] = MappingProxyType(
    {
        MODEL: 1 << 40,
        TRAINER_TENSORS: 1 << 41,
        CONFIG: 16 * _MIB,
        FIGURES: 16 * _MIB,
        TRAINER_NUMBERS: 64 * _MIB,
        TOKENIZER: 256 * _MIB,
    }
)
ALTERED = "The file was altered: use another checkpoint of this run, or copy this one again from its source."
COPY_AGAIN = "Use another checkpoint of this run, or copy this one again from its source."
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MOST = 2**53


@final
@dataclass(frozen=True)
class StoredFile:
    """The size and sha256 of a file, by which an altered one is detected.

    Args:
        bytes: its size.
        sha256: sha256 of its contents, in hexadecimal.

    Example:
        >>> file = StoredFile.of(b"{}")
        >>> StoredFile.from_json_value(file.to_json_value()) == file
        True
    """

    bytes: int
    sha256: str

    @classmethod
    def of(cls, data: builtins.bytes) -> "StoredFile":
        """Describe a file by its contents."""
        return cls(len(data), sha256(data).hexdigest())

    @classmethod
    def at(cls, path: Path, *, links: bool = True) -> "StoredFile":
        """Describe the file of a path, without loading it into memory.

        Args:
            path: the file.
            links: as for `qkv.files.open_file`.

        Raises:
            OSError: it cannot be read, or is not a regular file.
        """
        with open_file(path, links=links) as stream:
            digest = file_digest(cast("FileIO", stream), "sha256").hexdigest()
            return cls(stream.tell(), digest)

    def to_json_value(self) -> dict[str, JsonValue]:
        """Convert to names and numbers."""
        return {"bytes": self.bytes, "sha256": self.sha256}

    @classmethod
    def from_json_value(cls, value: object) -> "StoredFile | None":
        """Parse the output of `to_json_value`; None for anything else."""
        match value:
            case {"bytes": int(size), "sha256": str(digest), **rest} if not rest and not isinstance(size, bool):
                if 0 <= size <= _MOST and _SHA256.fullmatch(digest):
                    return cls(size, digest)
        return None


@final
@dataclass(frozen=True)
class Manifest:
    """The list of a checkpoint's files.

    Args:
        files: size and sha256 of each plain file name.
        tied: for each tensor file, the names that are aliases of another tensor in it.

    Example:
        >>> manifest = Manifest({name: StoredFile.of(b"{}") for name in REQUIRED})
        >>> parse(manifest.to_bytes(), "MANIFEST.json") == manifest
        True
    """

    files: Mapping[str, StoredFile]
    tied: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """One sha256 that covers every byte of the checkpoint, in hexadecimal."""
        return sha256(encode(self._body(), NAME)).hexdigest()

    def to_bytes(self) -> bytes:
        """Serialize the list.

        Returns:
            JSON; the same list always gives the same bytes.
        """
        return encode(self._body() | {"digest": self.digest}, NAME)

    def _body(self) -> dict[str, JsonValue]:
        files: dict[str, JsonValue] = {name: entry.to_json_value() for name, entry in self.files.items()}
        return {"format": FORMAT, "version": VERSION, "files": files, "tied": self.tied}


def describe(files: Mapping[str, bytes], tied: Mapping[str, Mapping[str, str]]) -> Manifest:
    """List files that are about to be written.

    Args:
        files: the contents of each name.
        tied: the tied names of each tensor file.

    Returns:
        The list.
    """
    return Manifest(
        {name: StoredFile.of(data) for name, data in files.items()},
        {name: names for name, names in tied.items() if names},
    )


def parse(data: bytes, path: str) -> Manifest:
    """Parse and validate the list of a checkpoint's files.

    Args:
        data: at most `LIMIT` bytes.
        path: its name in messages.

    Returns:
        The list; its names are known plain names, its sizes within limits.

    Raises:
        CheckpointError: any byte of it was altered, it names a file outside the folder, a required file is missing, or
            it was written by a newer qkv.
    """
    value = decode_mapping(data, path)
    if value.get("format") != FORMAT:
        hint = "Give the folder of a checkpoint saved by qkv."
        raise CheckpointError(path, f'"format": "{FORMAT}"', repr(value.get("format"))[:80], hint)
    if not is_version(value.get("version"), VERSION):
        hint = "Use the version of qkv that saved it, or a newer one."
        raise CheckpointError(path, f'"version": {VERSION}', repr(value.get("version"))[:80], hint)
    manifest = Manifest(_files(value.get("files"), path), _tied(value.get("tied"), path))
    if manifest.to_bytes() != data:
        raise CheckpointError(path, f"the digest {manifest.digest[:16]}…", "altered content", ALTERED)
    return manifest


def _files(value: object, path: str) -> dict[str, StoredFile]:
    if not isinstance(value, dict):
        raise CheckpointError(path, '"files" as an object', type(value).__name__, ALTERED)
    for name in value:
        if name not in LIMITS:
            raise CheckpointError(path, f"only the files {', '.join(LIMITS)}", repr(name)[:80], ALTERED)
    for name in REQUIRED:
        if name not in value:
            raise CheckpointError(path, f"a file {name}", "none", ALTERED)
    if (TRAINER_TENSORS in value) != (TRAINER_NUMBERS in value):
        raise CheckpointError(path, f"{TRAINER_TENSORS} and {TRAINER_NUMBERS}", "one of the two", ALTERED)
    return {name: _entry(name, entry, path) for name, entry in value.items()}


def _entry(name: str, value: object, path: str) -> StoredFile:
    entry = StoredFile.from_json_value(value)
    if entry is not None and entry.bytes <= LIMITS[name]:
        return entry
    expected = f"{name} with its sha256 and at most {LIMITS[name]:,} bytes"
    raise CheckpointError(path, expected, repr(value)[:160], ALTERED)


def _tied(value: object, path: str) -> dict[str, dict[str, str]]:
    if isinstance(value, dict) and value.keys() <= {MODEL, TRAINER_TENSORS}:
        tied = {name: dict(names) for name, names in value.items() if isinstance(names, dict)}
        if len(tied) == len(value) and all(isinstance(home, str) for names in tied.values() for home in names.values()):
            return tied
    raise CheckpointError(path, '"tied" as names of tensors', repr(value)[:160], ALTERED)
