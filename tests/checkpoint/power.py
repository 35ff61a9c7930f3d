"""A disk that loses power: what was never fsynced may be gone, or half there, after any call of a save.

The calls of one real save are recorded by wrappers around the functions of `os`; what a journaling file system may hold
at each point is then built anew in a folder of its own. The rules are those of POSIX, and of journals: the bytes of a
file are there once it was fsynced, its name once its folder was; of the changes to the names of one folder that were
not fsynced, any first part may be there.
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
    """Performs calls, and writes down those that change the disk.

    Args:
        root: the folder that is looked at.
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
                self.log.append(("rename", (self._path(given[0], None), self._path(given[1], None))))
            case "mkdir":
                self.log.append(("mkdir", (self._path(given[0], named.get("dir_fd")),)))
            case "unlink" | "rmdir":
                self.log.append(("remove", (self._path(given[0], named.get("dir_fd")),)))

    def _path(self, path: Any, home: int | None) -> str:
        whole = Path(self._open[home]) / os.fsdecode(path) if home in self._open else Path(os.fsdecode(path))
        return str(self.root / whole)


def on_disk(start: Path, root: Path, operations: list[Operation], random: Random, home: Path) -> None:
    """Build in `home` what a disk may hold if the power went after these operations.

    Args:
        start: a copy of `root` from before them, which was whole on the disk.
        root: where they happened.
        operations: what was done.
        random: decides how much of what was not fsynced is there.
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
    """How much of each operation is on the disk: 1 where an fsync followed, else any share, names in their order."""
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
