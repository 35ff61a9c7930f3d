"""Tables that are read as the table of a training was: its columns, and how it writes numbers."""

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from qkv.errors import ConfigError, on_command_line, setting
from qkv.settings import build, options_of
from qkv.tasks.notes import note
from qkv.tasks.settings import columns_of

F = TypeVar("F")


@contextmanager
def as_in_training(files: F, stored: Mapping[str, Any], prefix: str = "") -> Iterator[F]:
    """Fill in the settings of a table from the training, for the code inside that reads the table.

    Args:
        files: the settings.
        stored: the columns of the training, see `qkv.tasks.settings.columns_of`.
        prefix: what precedes `data`, the name of the table.

    Raises:
        ConfigError: one of the training does not fit the table; the hint says where it comes from.

    Example:
        >>> from qkv.tasks.classify.settings import ClassifyData
        >>> with as_in_training(ClassifyData(data=[("good", "a film")], sep="tab"), {"label_col": 2}) as files:
        ...     print(files.label_col, files.sep)
        2 tab
    """
    data = getattr(files, f"{prefix}data", None)
    known = files if data is None else with_columns(files, stored)
    explicit = columns_of(files)
    used = {name: item for name, item in columns_of(known).items() if name not in explicit}
    if used and isinstance(data, str | Path):
        note(f"qkv: columns as in training: {' '.join(as_flag(name, item) for name, item in used.items())}")
    try:
        yield known
    except ConfigError as error:
        if error.argument not in map(str, map(setting, used)):
            raise
        hint = f"{error.hint} It is as in training: name that of this file."
        raise ConfigError(error.args[0], error.expected, error.got, hint) from error


def with_columns(files: F, stored: Mapping[str, Any]) -> F:
    """Fill in the settings of a table that are not given from those of the training.

    Raises:
        ConfigError: one of the training is invalid.
    """
    table: Any = type(files)
    known = columns_of(build(table, {name: item for name, item in stored.items() if name in options_of(table)}))
    return replace(files, **known | columns_of(files))  # type: ignore[type-var]  # a dataclass


def as_flag(name: str, item: Any) -> str:
    """Return a setting and its value as a user writes them on a command line.

    Example:
        >>> as_flag("na", ["#N/A", "999"]), as_flag("tie", False), as_flag("report", True)
        ("--na '#N/A,999'", '--no-tie', '--report')
    """
    if isinstance(item, bool):
        return on_command_line(name if item else f"no_{name}")
    text = ",".join(map(str, item)) if isinstance(item, list | tuple) else str(item)
    return on_command_line(name, shlex.quote(text))
