"""A run folder opened for training: one configuration, one process, and no other folder of that name.

RUN/run.json    what this folder is, the configuration it was started with, and the names of the files that were read
"""

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType

from qkv import system
from qkv.checkpoint.disk import FolderReader, make_folder, remove_leftovers, replace_file, typed
from qkv.checkpoint.folder import is_checkpoint, recover
from qkv.checkpoint.former_names import with_todays_names
from qkv.checkpoint.json_values import JsonValue, decode_mapping, differences, encode, is_version
from qkv.checkpoint.rotation import step_folder, steps
from qkv.errors import CheckpointError, ConfigError, joined, setting, spelled
from qkv.files import absolute

NAME = "run.json"
FORMAT = "qkv run"
VERSION = 1
LOCK = ".lock"
_LIMIT = 16 << 20
_MOST = 12
"""Settings that a message lists."""
_TABLES = ("", "data", "tokenizer", "model", "training", "ensemble", "table", "test")
"""The parts of a configuration whose fields are settings."""


@contextmanager
def open_run(
    folder: Path,
    config: Mapping[str, JsonValue],
    *,
    free: Collection[str] = (),
    added: Mapping[str, JsonValue] | None = None,
    files: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Path]:
    """Open and lock a run folder for training: create it, or check that it contains the same run.

    Leftovers of an interrupted save or removal are cleaned up. If the folder is removed, moved or replaced while it is
    open, the next function that would write to it raises a `CheckpointError`, and writes nowhere.

    Args:
        folder: the run folder; created if it does not exist.
        config: names and numbers that define the run.
        free: dotted names of fields that may change between two starts of one run, as in "training.steps", and names
            of tables all of whose fields may.
        added: dotted names of fields that older runs lack, with the value those runs used.
        files: dotted names of fields that are the sha256 of what was read, with the files as the user gave them.

    Returns:
        A context manager that yields the folder; inside, no other process can open the run.

    Raises:
        ConfigError: the folder contains a run with another configuration; the message names the differing fields.
        CheckpointError: the folder contains something else, is in use, or is not writable.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as parent:
        ...     run = Path(parent, "run")
        ...     with open_run(run, {"model": {"width": 256}}):
        ...         print(read_config(run))
        ...     with open_run(run, {"model": {"width": 512}}):
        ...         pass
        Traceback (most recent call last):
        qkv.errors.ConfigError: out="...": expected the configuration this run was started with; got width 512 (it
        was 256). Give another out, or the same settings as before.
    """
    folder = absolute(folder)
    encode(config, "config")
    make_folder(folder)
    expect_run_folder(folder)
    with locked(folder):
        stored = read_config(folder) if os.path.lexists(folder / NAME) else None
        if stored is not None:
            expect_same(folder, stored, config, free, added or {}, files)
        if stored is None or differences(stored, config):
            names = {name: _names(flags) for name, flags in files.items() if _has(config, name)}
            contents: dict[str, JsonValue] = {"format": FORMAT, "version": VERSION, "config": config, "files": names}
            replace_file(folder / NAME, encode(contents, NAME))
        for step in steps(folder):
            recover(step_folder(folder, step))
        remove_leftovers(folder)
        yield folder


@contextmanager
def locked(folder: Path, expected: str = "a run folder that no other training uses") -> Iterator[None]:
    """Lock a folder for one process, and hold it open; the lock is released when the process ends, however it ends.

    Args:
        folder: the absolute path of an existing folder.
        expected: what it should be, for the message.

    Raises:
        CheckpointError: another process holds the lock, or the folder is not writable.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as run, locked(Path(run)), locked(Path(run)):
        ...     pass
        Traceback (most recent call last):
        qkv.errors.CheckpointError: ...: expected a run folder that no other training uses; got one in use. ...
    """
    with ExitStack() as lock:
        try:
            with typed(folder, "a writable folder"):
                lock.enter_context(system.holding(folder))
                lock.enter_context(system.locked(folder / LOCK))
        except CheckpointError as error:
            if not isinstance(error.__cause__, BlockingIOError):
                raise
            hint = "Wait until it ends, or give another " + setting("out") + "."
            raise CheckpointError(str(folder), expected, "one in use", hint) from None
        yield


def read_config(folder: Path) -> dict[str, JsonValue]:
    """Read the configuration with which a run was started.

    Args:
        folder: a run folder.

    Returns:
        Names and numbers; settings by today's names.

    Raises:
        CheckpointError: it is missing or damaged.
    """
    config = _read(folder)["config"]
    assert isinstance(config, dict)
    return with_todays_names(config)


def read_files(folder: Path) -> dict[str, str]:
    """Read the names of the files that a run was trained and validated on; runs of older versions have none.

    Args:
        folder: a run folder.

    Returns:
        The names as the user gave them, "text.train" and "text.valid"; several are separated by spaces.

    Raises:
        CheckpointError: it is missing or damaged.
    """
    files = _read(folder).get("files")
    return {name: text for name, text in files.items() if isinstance(text, str)} if isinstance(files, dict) else {}


def _read(folder: Path) -> dict[str, JsonValue]:
    path = str(folder / NAME)
    with FolderReader(folder) as reader:
        value = decode_mapping(reader.read(NAME, _LIMIT), path)
    is_current = value.get("format") == FORMAT and is_version(value.get("version"), VERSION)
    if not is_current or not isinstance(value.get("config"), dict):
        used = "; if qkv trained in this folder, use the same or a newer version of qkv."
        hint = "Give another " + setting("out") + used
        raise CheckpointError(path, f'"format": "{FORMAT}", "version": {VERSION}', "something else", hint)
    return value


def expect_run_folder(folder: Path) -> None:
    """Refuse an existing folder with something other than a run.

    Args:
        folder: an existing folder.

    Raises:
        CheckpointError: it contains something else, or is not readable.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as new:
        ...     expect_run_folder(Path(new))
    """
    with typed(folder, "a readable folder"):
        entries = sorted(entry for entry in os.listdir(folder) if not entry.startswith("."))
    if entries and NAME not in entries:
        got = "one checkpoint" if is_checkpoint(folder) else f"a folder that contains {entries[0]!r}"
        hint = "Give another " + setting("out") + ": nothing in this folder was changed."
        raise CheckpointError(setting("out", str(folder)), "a run folder, or a new or empty folder", got, hint)


def expect_same(
    folder: Path,
    stored: JsonValue,
    current: JsonValue,
    free: Collection[str] = (),
    added: Mapping[str, JsonValue] = MappingProxyType({}),
    files: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Refuse a folder that was begun with another configuration.

    Args:
        folder: the folder.
        stored: the configuration with which it was begun.
        current: the present configuration.
        free, added, files: as for `open_run`.

    Raises:
        ConfigError: they differ; the message names the differing fields.
    """
    different = [item for item in differences(stored, current) if not {item[0], item[0].partition(".")[0]} & {*free}]
    changed = [
        (name, old, new) for name, old, new in different if old is not None or name not in added or added[name] != new
    ]
    if not changed:
        return
    sums = {name for name, old, new in changed if _is_sum(old) and _is_sum(new)}
    note = "A different sha256 means that the contents of a file have changed. " if sums else ""
    if sums & files.keys():
        note = "The contents of a file have changed, or what is held out of it. "
    # What is trained on and what is held out can come from one file, which is named once.
    named = {files[name]: name for name in sorted(sums & files.keys(), reverse=True)}
    changed = [item for item in changed if item[0] not in sums or item[0] not in files or item[0] in named.values()]
    titles = {name: "other text in " + flags + ", sha256" for flags, name in named.items()}
    described = ((titles.get(name) or _title(name), old, new) for name, old, new in changed[:_MOST])
    got = joined(", ", [title + f" {_show(new)} (it was {_show(old)})" for title, old, new in described])
    more = f" and {len(changed) - _MOST} more" if len(changed) > _MOST else ""
    hint = f"{note}Give another " + setting("out") + ", or the same settings as before."
    raise ConfigError(setting("out", str(folder)), "the configuration this run was started with", got + more, hint)


def _has(config: Mapping[str, JsonValue], dotted: str) -> bool:
    table, _, name = dotted.partition(".")
    return isinstance(rows := config.get(table), Mapping) and name in rows


def _names(flags: str) -> str:
    """Return the names of files in flags as text that any locale can write."""
    return spelled(flags, lambda flag, value: value or flag).encode("utf-8", "backslashreplace").decode()


def _title(name: str) -> str:
    """Return what a message calls a field of a configuration: the setting, if it is one."""
    table, _, plain = name.rpartition(".")
    return setting(plain) if table in _TABLES and re.fullmatch("[a-z_]+", plain) else name


def _is_sum(value: JsonValue) -> bool:
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None


def _show(value: JsonValue) -> str:
    text = json.dumps(value, ensure_ascii=False) if not isinstance(value, str) else value
    if _is_sum(value):
        return text[:16] + "…"
    return text if len(text) <= 60 else text[:59] + "…"
