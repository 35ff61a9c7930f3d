"""The folder of an ensemble: a run for each member, and a file that lists them."""

import os
from pathlib import Path
from typing import Any

from qkv.checkpoint.disk import expect_inside, make_folder, replace_file
from qkv.checkpoint.json_values import decode, encode
from qkv.errors import CheckpointError, ConfigError
from qkv.files import read_file
from qkv.hub.cache import cached
from qkv.system import is_file_name
from qkv.tasks.example_run import packaged
from qkv.tasks.settings import MOST_MODELS

_FILE = "ensemble.json"
_FORMAT = "qkv ensemble 1"
_LARGEST = 1 << 20
_LONGEST_NAME = 255


def write_members(out: Path, names: list[str]) -> None:
    """List the members of an ensemble, before the first is trained; for a single model, check that there is no list.

    Args:
        out: the ensemble's folder.
        names: the folders in it; none for a single model.

    Raises:
        CheckpointError: the folder holds another ensemble or a single run, or cannot be written.
    """
    path = out / _FILE
    if path.exists() and members_of(out) != [out / name for name in names]:
        hint = "Give another folder, or the settings of its first training."
        expected = f"an ensemble of {len(names)}" if names else "the folder of a single run"
        raise CheckpointError(str(out), expected, "an ensemble of other members", hint)
    if not names:
        return
    if not path.exists() and out.is_dir() and any(out.iterdir()):
        hint = "Give another folder."
        raise CheckpointError(str(out), "an empty folder for an ensemble", "one with other files", hint)
    make_folder(out)
    replace_file(path, encode({"format": _FORMAT, "members": list[Any](names)}, _FILE))


def members_of(run: Path) -> list[Path]:
    """Return the runs of an ensemble's folder, or the run itself.

    Args:
        run: a folder, `example` for the run in the package, or the name of a model in the cache of Hugging Face.

    Raises:
        CheckpointError: the list of members is not one that `write_members` writes, or a member is a link to elsewhere.

    Example:
        >>> members_of(Path("/nowhere"))
        [PosixPath('/nowhere')]
    """
    run = cached(packaged(run))
    path = run / _FILE
    try:
        if not os.path.lexists(path):
            return [run]
        listed = decode(read_file(path, _LARGEST, links=False), str(path))
    except OSError as error:
        raise _wrong(path, error.strerror or str(error)) from error
    names = listed.get("members") if isinstance(listed, dict) and listed.get("format") == _FORMAT else None
    if not isinstance(names, list) or not 1 <= len(names) <= MOST_MODELS or not all(_name(name) for name in names):
        raise _wrong(path, "another content")
    members = [run / name for name in names]
    for member in members:
        expect_inside(member)
    return members


def expect_single(run: Path) -> None:
    """Refuse the folder of an ensemble where one model is needed.

    Raises:
        ConfigError: the folder lists several runs; the message names one.

    Example:
        >>> expect_single(Path("/nowhere"))
    """
    members = members_of(run)
    if len(members) > 1:
        hint = f"Give one of its runs, such as {members[0]}."
        raise ConfigError("run", "a single model", f"an ensemble of {len(members)}", hint)


def _name(name: object) -> bool:
    return isinstance(name, str) and is_file_name(name) and len(name) <= _LONGEST_NAME


def _wrong(path: Path, got: str) -> CheckpointError:
    hint = "Train it again by the same command, or give the runs themselves."
    return CheckpointError(str(path), "a list of an ensemble's members", got[:200], hint)
