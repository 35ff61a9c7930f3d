"""Commands whose flags are a table of settings: for answers, and for scores."""

from collections.abc import Callable
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any

import typer

from qkv.cli import flags as f
from qkv.cli.failure import guarded
from qkv.cli.paths import expect_output_files
from qkv.settings import build, defaults_of, help_of, hints_of, options_of
from qkv.tasks.settings import AnswerSettings, RunSettings

_RUNS = "runs"
_Several = Annotated[
    list[Path], typer.Argument(metavar="RUN...", help="Run folders; several form an ensemble. Or: example.")
]


def command_of_table(name: str, table: type[RunSettings], do: Callable[[list[Path], Any], None]) -> Callable[..., None]:
    """Return a command that is given runs and the flags of a table; the table's docstring is its help.

    Args:
        name: of the command.
        table: the settings.
        do: receives the runs and the settings.
    """
    several = issubclass(table, AnswerSettings) and table.several
    runs = {_RUNS: _Several} if several else {"run": f.Run}

    @f.flagged({**runs, **_flags_of(table)}, {**dict.fromkeys(runs, Parameter.empty), **defaults_of(table)})
    def command(**flags: Any) -> None:
        named = flags.pop(_RUNS) if several else [flags.pop("run")]
        do(named, _settings(table, flags))

    command.__name__, command.__doc__ = name, table.__doc__
    return guarded(command)


def _flags_of(table: Any) -> dict[str, Any]:
    """Return the flags of a table by name, annotated for typer: its own, then those of the tables that it extends."""
    own = (vars(part).get("__annotations__", {}) for part in table.__mro__)
    names = dict.fromkeys(name for annotations in own for name in annotations if name in options_of(table))
    flags: dict[str, Any] = {}
    for name in names:
        help = help_of(table, name, "as in training" if name in table.as_trained else None)
        flags[name] = f.flag_of(table, name, help, options_of(table)[name].topic or None)
    return flags


def _settings(table: Any, flags: dict[str, Any]) -> Any:
    """Return what flags say; files that will be written are checked first, before any work."""
    hints = hints_of(table)
    read = {name: f.read_flag(hints[name], item) for name, item in flags.items()}
    typed = {name: item for name, item in read.items() if item is not None}
    expect_output_files(table, typed)
    return build(table, typed)
