"""The local cache of the library `huggingface_hub`, read without it and without a network."""

import os
import re
from pathlib import Path

from qkv.files import read_file
from qkv.system import is_file_name

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_LONGEST = 1 << 10


def cached(run: Path) -> Path:
    """Return the folder in the cache that holds a model of a name such as gpt2 or org/name; else the path itself.

    A folder of that name wins. The revision is `main`, as it was when the library stored it last.

    Args:
        run: a folder, or a name.

    Example:
        >>> cached(Path("/nowhere"))
        PosixPath('/nowhere')
    """
    name = run.as_posix()
    if os.path.lexists(run) or _NAME.fullmatch(name) is None:
        return run
    model = _cache() / f"models--{name.replace('/', '--')}"
    try:
        revision = read_file(model / "refs" / "main", _LONGEST).decode().strip()
    except (OSError, ValueError):
        return run
    snapshot = model / "snapshots" / revision
    return snapshot if is_file_name(revision) and snapshot.is_dir() else run


def _cache() -> Path:
    """Return where the library keeps what it downloads, by the variables that it reads."""
    variables = os.environ
    home = Path(variables.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    cache = variables.get("HF_HUB_CACHE") or variables.get("HUGGINGFACE_HUB_CACHE")
    return Path(cache or Path(variables.get("HF_HOME") or home, "hub")).expanduser()
