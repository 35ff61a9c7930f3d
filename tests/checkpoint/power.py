"""Simulate a disk that loses power: anything not yet fsynced may be missing or half written.

Wrappers around the functions of `os` record the calls of one real save. What a journaling file system could hold at
each point is then rebuilt in a folder of its own. The rules are those of POSIX and of journals: a file's bytes are
safe once the file is fsynced, its name once its folder is; of the name changes in one folder that were not fsynced,
any prefix may have survived.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

Operation = tuple[str, tuple[Any, ...]]


@dataclass
class Recorder:
    """Perform calls, and log those that change the disk.

    Args:
        root: the folder that is watched.
        log: (name, arguments) in order.
    """

    root: Path
    log: list[Operation] = field(default_factory=list)
    _open: dict[int, str] = field(default_factory=dict)

    @contextmanager
    def recording(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for name in ("open", "write", "fsync", "close", "rename", "replace", "mkdir", "unlink", "rmdir"):
                patch.setattr(os, name, self._wrapped(name, getattr(os, name)))
            yield

    def _wrapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            result = real(*arguments, **named)
            self._note(name, arguments, named, result)
            return result

        return call

    def _note(self, name: str, given: tuple[Any, ...], named: dict[str, Any], result: Any) -> None:
        match name:
            case "open":
                path = self._path(given[0], named.get("dir_fd"))
                self._open[result] = path
                if given[1] & os.O_CREAT:
                    self.log.append(("create", (path,)))
            case "write" if given[0] in self._open:
                self.log.append(("write", (self._open[given[0]], bytes(given[1])[:result])))
            case "fsync":
                self.log.append(("fsync", (self._open[given[0]],)))
            case "close":
                self._open.pop(given[0], None)
            case "rename" | "replace":
                old = self._path(given[0], named.get("src_dir_fd"))
                self.log.append(("rename", (old, self._path(given[1], named.get("dst_dir_fd")))))
            case "mkdir":
                self.log.append(("mkdir", (self._path(given[0], named.get("dir_fd")),)))
            case "unlink" | "rmdir":
                self.log.append(("remove", (self._path(given[0], named.get("dir_fd")),)))

    def _path(self, path: Any, home: int | None) -> str:
        whole = Path(self._open[home]) / os.fsdecode(path) if home in self._open else Path(os.fsdecode(path))
        return str(self.root / whole)


def on_disk(start: Path, root: Path, operations: list[Operation], random: Random, home: Path) -> None:
    """Build in `home` what a disk could hold if the power failed after these operations.

    Args:
        start: a copy of `root` from before the operations, fully written to the disk.
        root: where the operations ran.
        operations: the operations, in order.
        random: decides how much of the data that was not fsynced survives.
        home: an empty folder.
    """
    done = _kept(operations, random)
    files, folders = _tree(start)
    for (name, given), kept in zip(operations, done, strict=True):
        paths = [os.path.relpath(path, root) for path in given if isinstance(path, str)]
        if not kept or any(path.startswith("..") for path in paths):
            continue
        _perform(files, folders, name, paths, given, kept)
    for folder in sorted(folders):
        (home / folder).mkdir(parents=True, exist_ok=True)
    for path, data in files.items():
        if (home / path).parent.is_dir():
            (home / path).write_bytes(data)


def _kept(operations: list[Operation], random: Random) -> list[float]:
    """Fraction of each operation that survives: 1 if an fsync follows, else random; name changes survive in order."""
    shares = []
    names_end: dict[str, int] = {}
    for place, (name, given) in enumerate(operations):
        if name == "fsync":
            names_end[given[0]] = place
    cut = {folder: random.randint(0, len(operations)) for folder in _folders(operations)}
    for place, (name, given) in enumerate(operations):
        if name == "write":
            synced = any(n == "fsync" and g[0] == given[0] for n, g in operations[place:])
            shares.append(1.0 if synced else random.choice((0.0, 0.5, 1.0)))
        elif name == "fsync":
            shares.append(1.0)
        else:
            folder = os.path.dirname(given[-1])
            synced = any(n == "fsync" and g[0] == folder for n, g in operations[place:])
            shares.append(1.0 if synced or place < cut[folder] else 0.0)
    return shares


def _folders(operations: list[Operation]) -> set[str]:
    return {os.path.dirname(given[-1]) for name, given in operations if name not in ("write", "fsync")}


def _tree(start: Path) -> tuple[dict[str, bytes], set[str]]:
    files = {str(path.relative_to(start)): path.read_bytes() for path in start.rglob("*") if path.is_file()}
    return files, {str(path.relative_to(start)) for path in start.rglob("*") if path.is_dir()} | {"."}


def _perform(
    files: dict[str, bytes], folders: set[str], name: str, paths: list[str], given: tuple[Any, ...], share: float
) -> None:
    match name:
        case "create":
            files.setdefault(paths[0], b"")
        case "write":
            if paths[0] in files:
                files[paths[0]] += given[1][: int(len(given[1]) * share)]
        case "mkdir":
            folders.add(paths[0])
        case "remove":
            files.pop(paths[0], None)
            folders.discard(paths[0])
        case "rename":
            _rename(files, folders, *paths)


def _rename(files: dict[str, bytes], folders: set[str], old: str, new: str) -> None:
    for path in [path for path in files if path == old or path.startswith(old + "/")]:
        files[new + path[len(old) :]] = files.pop(path)
    for path in [path for path in folders if path == old or path.startswith(old + "/")]:
        folders.discard(path)
        folders.add(new + path[len(old) :])
