"""Batch work over shards: files that any number of processes answer, on any machines with a common folder.

OUT/NAME                  the answers to the shard NAME
OUT/.shards/work          the model and the settings, the same for all shards
OUT/.shards/NAME.json     size and sha256 of a shard and of its answers
OUT/.shards/NAME.lock     locked while a process answers the shard

A process takes a shard by locking it, writes the answers beside their name, then the note about them, and renames the
answers. A shard is complete if its note fits its bytes and those of the answers. So a process can be killed at any
moment: its lock ends with it, and the shard is answered again.
"""

import glob
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple, final

import torch

from qkv._version import VERSION as QKV
from qkv.checkpoint.average import last_checkpoints
from qkv.checkpoint.disk import expect_inside, make_folder, remove_leftovers, replace_file, replacing, typed
from qkv.checkpoint.json_values import JsonValue, decode_mapping, encode, is_version
from qkv.checkpoint.manifest import StoredFile
from qkv.checkpoint.run import expect_same
from qkv.data.corpus import fingerprint
from qkv.errors import CheckpointError, ConfigError, DataError, Place, QkvError, harmless, setting
from qkv.files import absolute, as_path, read_file
from qkv.system import locked
from qkv.tasks.members import members_of
from qkv.tasks.notes import note, verbose
from qkv.tasks.runs import digest_of

_NOTES, _NOTE, _LOCK = ".shards", ".json", ".lock"
_WORK = "work"
"""No note and no lock has this name, since theirs have suffixes."""
_FORMAT, _VERSION = "qkv shards", 1
_LARGEST = 1 << 20
"""Maximum bytes of a note."""
_PATIENCE = 60.0
"""Seconds to wait for another process to write the settings."""


class ShardResult(NamedTuple):
    """What one process did with the shards.

    Attributes:
        answered: the shards that it answered.
        complete: those that were complete already, or that other processes completed meanwhile.
        busy: those that other processes were answering at the end.
        failed: one error for each shard that could not be answered.
    """

    answered: list[Path]
    complete: list[Path]
    busy: list[Path]
    failed: list[QkvError]


@final
@dataclass(frozen=True)
class Shards:
    """Shards and the folder of their answers.

    Args:
        sources: the files to answer.
        out: the folder of the answers.
    """

    sources: tuple[Path, ...]
    out: Path

    @classmethod
    def of(cls, pattern: str, out: Path) -> "Shards":
        """Find the shards.

        Args:
            pattern: their names, with the wildcards of a shell: "in/*.txt".
            out: the folder of the answers.

        Returns:
            The shards, sorted by name. The answers to each have its name, without the suffix .gz.

        Raises:
            ConfigError: no file has such a name, or the answers to two of them would have the same name.

        Example:
            >>> Shards.of("/nowhere/*.txt", Path("out"))
            Traceback (most recent call last):
            qkv.errors.ConfigError: shards: expected a pattern of file names; got ...
        """
        sources = sorted({Path(name) for name in glob.glob(pattern, recursive=True) if not os.path.isdir(name)})
        if not sources:
            folder = os.path.isdir(pattern)
            got = f"{pattern!r}, a folder" if folder else f"{pattern!r}, which no file has"
            hint = f"Try {os.path.join(pattern, '*')!r}." if folder else "Put it in quotes: 'in/*.txt'."
            raise ConfigError(setting("shards"), "a pattern of file names", got, hint)
        shards = cls(tuple(sources), absolute(out))
        homes: dict[Path, Path] = {}
        for source in sources:
            other = homes.setdefault(shards.answers(source), source)
            if other != source:
                got = f"{other} and {source}, whose answers would have the same name"
                hint = "Rename one of them, or answer them in two commands."
                raise ConfigError(setting("shards"), "files with different names", got, hint)
        return shards

    def answers(self, source: Path) -> Path:
        """Return the file of the answers to a shard."""
        return self.out / (source.stem if source.suffix == ".gz" else source.name)

    def answer(self, work: Mapping[str, JsonValue], answer: Callable[[Path], Iterable[str]]) -> ShardResult:
        """Answer all shards that no other process answers, until none is left.

        Args:
            work: the model and the settings; every process must have the same.
            answer: yields the answers to a shard as pieces of text.

        Returns:
            What was done.

        Raises:
            ConfigError: the folder holds answers of another model or with other settings, or a file that is not one.
            CheckpointError: the folder is not writable, the disk is full, or `.shards` is a link to elsewhere.
        """
        for source in self.sources:
            self._expect_written_here(source)
        expect_inside(self.out / _NOTES)
        make_folder(self.out / _NOTES)
        self._expect_same_work(work)
        result, remaining = ShardResult([], [], [], []), self._shuffled_sources()
        while remaining:
            result.busy.clear()
            before = len(result.answered)
            for source in remaining:
                self._answer_one(source, answer, result)
            # Another process may have died while this one answered a shard.
            remaining = result.busy.copy() if len(result.answered) > before else []
        return result

    def _shuffled_sources(self) -> list[Path]:
        """Return the shards in an order that differs between processes, so that they seldom compete for a lock."""
        start = os.getpid() % len(self.sources)
        return [*self.sources[start:], *self.sources[:start]]

    def _answer_one(self, source: Path, answer: Callable[[Path], Iterable[str]], result: ShardResult) -> None:
        try:
            if self._is_complete(source):
                result.complete.append(source)
                return
            with _try_lock(self._note(source, _LOCK)) as locked:
                if not locked:
                    result.busy.append(source)
                elif self._is_complete(source):
                    result.complete.append(source)
                else:
                    self._write(source, answer)
                    result.answered.append(source)
        except DataError as error:
            result.failed.append(error.in_file(source))

    def _write(self, source: Path, answer: Callable[[Path], Iterable[str]]) -> None:
        self._expect_written_here(source)
        path, before = self.answers(source), _entry(source)
        for file in (path, self._note(source, _NOTE)):
            remove_leftovers(file.parent, file.name)
        size, total = 0, sha256()
        with replacing(path) as write:
            for piece in answer(source):
                data = piece.encode("utf-8", "surrogateescape")
                size += len(data)
                total.update(data)
                write(data)
            if _entry(source) != before:
                hint = "Run the command again once it is complete."
                raise DataError(Place(source), "a file that nobody writes", "one that changed while it was read", hint)
            # The note comes first: answers that it does not describe are not complete.
            replace_file(self._note(source, _NOTE), _note_text(before, StoredFile(size, total.hexdigest())))

    def _expect_written_here(self, source: Path) -> None:
        """Refuse to replace a file without a note, which qkv did not write: it writes the note before the answers."""
        path = self.answers(source)
        if os.path.lexists(path) and not os.path.lexists(self._note(source, _NOTE)):
            hint = "Give another " + setting("out") + ": the file was not changed."
            raise ConfigError(setting("out"), "a folder of answers", f"one with {path}, which has no note", hint)

    def _is_complete(self, source: Path) -> bool:
        """Return whether the note about a shard fits its bytes and those of the answers."""
        path = self._note(source, _NOTE)
        try:
            stored = decode_mapping(read_file(path, _LARGEST, links=False), str(path))
            answers = _entry(self.answers(source))
        except (OSError, CheckpointError, DataError):
            return False
        return all(stored.get(name) == item for name, item in _entries(_entry(source), answers).items())

    def _note(self, source: Path, suffix: str) -> Path:
        return self.out / _NOTES / (self.answers(source).name + suffix)

    def _expect_same_work(self, work: Mapping[str, JsonValue]) -> None:
        """Store the model and the settings, or refuse other ones than those that are stored."""
        path = self.out / _NOTES / _WORK
        with typed(self.out, "a writable folder"), locked(self.out / _NOTES / _LOCK, _PATIENCE):
            if not os.path.lexists(path):
                replace_file(path, encode({"format": _FORMAT, "version": _VERSION, "work": work}, _WORK))
            value = decode_mapping(read_file(path, _LARGEST, links=False), str(path))
        if value.get("format") != _FORMAT or not is_version(value.get("version"), _VERSION):
            hint = "Give another " + setting("out") + ", or use the version of qkv that began this one."
            raise CheckpointError(str(path), f'"format": "{_FORMAT}", "version": {_VERSION}', "something else", hint)
        stored = value.get("work")
        before: Mapping[str, JsonValue] = stored if isinstance(stored, dict) else {}
        expected_names = {"command": f"of `qkv {work.get('command')}`", "model": "of this model"}
        other_names = {"command": f"of `qkv {before.get('command')}`", "model": "of another model"}
        for name, expected in expected_names.items():
            if before.get(name) != work.get(name):
                hint = "Give another " + setting("out") + ": nothing in this folder was changed."
                got = f"{self.out}, {harmless(other_names[name][:80])}"
                raise ConfigError(setting("out"), f"a folder of answers {expected}", got, hint)
        expect_same(self.out, before, work)


@contextmanager
def _try_lock(path: Path) -> Iterator[bool]:
    """Lock a file, and yield whether no other process has locked it."""
    with ExitStack() as lock:
        with typed(path, "a file that can be locked"):
            try:
                lock.enter_context(locked(path))
                is_locked = True
            except BlockingIOError:
                is_locked = False
        yield is_locked


def _entry(path: Path) -> StoredFile:
    """Return size and sha256 of a file."""
    try:
        return StoredFile.at(path)
    except OSError as error:
        got = error.strerror or str(error)
        raise DataError(Place(path), "a readable file", got, "Check the path and the disk.") from None


def _entries(source: StoredFile, answers: StoredFile) -> dict[str, JsonValue]:
    return {"shard": source.to_json_value(), "answers": answers.to_json_value()}


def _note_text(source: StoredFile, answers: StoredFile) -> bytes:
    versions: dict[str, JsonValue] = {"qkv": QKV, "torch": str(torch.__version__), "threads": torch.get_num_threads()}
    return encode({"format": _FORMAT, "version": _VERSION, **_entries(source, answers), "made": versions}, "note")


def model_digest(runs: Sequence[Path], average: int = 1) -> str:
    """Return one sha256 over every byte of the models that answer.

    Args:
        runs: run folders, checkpoints, or folders of ensembles.
        average: how many of the newest checkpoints of each run are averaged; 1 uses the best one.

    Raises:
        CheckpointError: a checkpoint is missing or altered.
    """
    members = [member for run in runs for member in members_of(as_path(run, "run"))]
    if average > 1:
        members = [folder for member in members for folder in last_checkpoints(member, average)]
    digests = [digest_of(member) for member in members]
    return digests[0] if len(digests) == 1 else fingerprint(digests)


def report(what: str, result: ShardResult) -> None:
    """Say on standard error what was done.

    Args:
        what: what was done to the shards, as in "translated".
        result: the outcome.
    """
    parts = [f"{len(result.answered):,} {what}"]
    parts += [f"{len(result.complete):,} complete before"] if result.complete else []
    parts += [f"{len(result.busy):,} in the hands of other processes"] if result.busy else []
    parts += [f"{len(result.failed):,} failed"] if result.failed else []
    note(f"qkv: shards: {', '.join(parts)}")
    if verbose():
        for path in result.answered:
            note(f"qkv: {what} {path}")
