"""Models by name: from the local cache of the library `huggingface_hub`, or downloaded by that library."""

import os
import re
from pathlib import Path

from qkv.errors import CheckpointError, UnsupportedError
from qkv.files import read_file
from qkv.system import is_file_name

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_LONGEST = 1 << 10
_READ = ("*.json", "*.safetensors", "*.spm", "sentencepiece.bpe.model")
"""The files of a model that are read; those in its folders are the same in other forms, but for small ones."""


def cached(run: Path) -> Path:
    """Return the folder in the cache that holds a model of a name such as gpt2 or org/name; else the path itself.

    The cache is read without the library and without a network. A folder of that name wins. The revision is `main`, as
    it was when the library stored it last.

    Args:
        run: a folder, or a name.

    Example:
        >>> cached(Path("/nowhere"))
        PosixPath('/nowhere')
    """
    if not _is_name(run):
        return run
    model = _cache() / f"models--{run.as_posix().replace('/', '--')}"
    try:
        revision = read_file(model / "refs" / "main", _LONGEST).decode().strip()
    except (OSError, ValueError):
        return run
    snapshot = model / "snapshots" / revision
    return snapshot if is_file_name(revision) and snapshot.is_dir() else run


def downloaded(run: Path) -> Path:
    """Return the folder in the cache that holds the newest revision of a model, downloaded where it is not yet there.

    A folder of that name wins, and nothing is downloaded for it.

    Args:
        run: a folder, or a name such as gpt2 or org/name.

    Raises:
        UnsupportedError: the library `huggingface_hub` is not installed.
        CheckpointError: the hub has no such model, cannot be reached, or does not let this user read it.

    Example:
        >>> downloaded(Path("/nowhere"))
        PosixPath('/nowhere')
    """
    if not _is_name(run):
        return run
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        hint = "Install it: pip install huggingface_hub. Or copy the folder of the model to this machine."
        raise UnsupportedError("download", "the library huggingface_hub", "none", hint) from error
    try:
        return Path(snapshot_download(run.as_posix(), allow_patterns=[*_READ], ignore_patterns=["*/*.safetensors"]))
    except (OSError, ValueError) as error:
        hint = "Check its name, the network, and for models with conditions HF_TOKEN."
        raise CheckpointError(run.as_posix(), "a model that can be downloaded", str(error)[:300], hint) from error


def _is_name(run: Path) -> bool:
    """Return whether a path can only be the name of a model: nothing of this machine has it."""
    return not os.path.lexists(run) and _NAME.fullmatch(run.as_posix()) is not None


def _cache() -> Path:
    """Return where the library keeps what it downloads, by the variables that it reads."""
    variables = os.environ
    home = Path(variables.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    cache = variables.get("HF_HUB_CACHE") or variables.get("HUGGINGFACE_HUB_CACHE")
    return Path(cache or Path(variables.get("HF_HOME") or home, "hub")).expanduser()
