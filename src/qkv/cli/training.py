"""Shared by all commands of `qkv train`: read flags into settings, print them, and train."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import typer

from qkv.cli.flags import READ
from qkv.errors import QkvError, on_command_line, setting

if TYPE_CHECKING:
    from qkv.training.outcome import Outcome


class TrainingRecipe(Protocol):
    """A training task: builds settings from nested dicts, and trains a run from them; see `qkv.tasks.recipe`."""

    @property
    def task(self) -> str:
        """The name of the task."""

    def load_settings(self, tables: Mapping[str, Mapping[str, Any]]) -> Any:
        """Check settings and fill in defaults."""

    def show_settings(self, settings: Any) -> dict[str, Any]:
        """Return all settings as nested dicts."""

    def train(self, settings: Any, out: Path | None, device: str, *, tensorboard: bool, origin: Any) -> "Outcome":
        """Train, or resume."""


class _Run(NamedTuple):
    """The flags of a command that are not settings of the run.

    Attributes:
        config: settings as a TOML file.
        start: the run to start from.
        tokenizer_from: the run whose tokenizer is used.
        out: the run folder.
        device: compute device.
        tensorboard: whether to also log to TensorBoard.
        print_config: whether to show all settings and exit.
    """

    config: Path | None = None
    start: Path | None = None
    tokenizer_from: Path | None = None
    out: Path | None = None
    device: str = "cpu"
    tensorboard: bool = False
    print_config: bool = False


def follow(recipe: TrainingRecipe, flags: Mapping[str, Any]) -> None:
    """Train with flags and files: flags override the file, and the file overrides the run that training starts from.

    Args:
        recipe: the task.
        flags: all flags of the command by name; None where they were not given.
    """
    from qkv.tasks.origin import open_origin, origin_tables
    from qkv.tasks.setting_names import as_tables, setting_of
    from qkv.tasks.settings import merge, read_toml

    given = _Run(**{name: flags[name] for name in _Run._fields if name in flags})
    written = {flag: item for flag, item in flags.items() if item is not None and flag not in _Run._fields}
    written |= {flag: READ[flag](written[flag]) for flag in READ.keys() & written.keys()}
    origin = open_origin(given.start, recipe.task, given.tokenizer_from)
    below = merge(origin_tables(origin), read_toml(given.config) if given.config is not None else {})
    try:
        _follow(recipe, merge(below, as_tables(recipe.task, written)), given, origin)
    except QkvError as error:
        settings = [flag for flag in flags if flag not in _Run._fields]
        # Of two flags for one setting the first names it, unless the other was typed.
        typed, known = (
            {setting_of(recipe.task, flag): flag for flag in reversed(some)} for some in ([*written], settings)
        )
        raise as_typed(error, typed, known) from error


def as_typed(error: QkvError, flags: Mapping[str, str], known: Mapping[str, str] | None = None) -> QkvError:
    """Name the flag that set a setting where an error is about the setting, and the flags of others it mentions.

    Args:
        error: the error.
        flags: the flag of each setting that was typed, by the setting's dotted name.
        known: the flags of all settings that have one; those of `flags` by default.
    """
    typed = [name for name in flags if error.argument in (name, name.partition(".")[2])]
    named = {**(known or {}), **flags}

    def spell(name: str, value: str | None) -> str:
        if name not in named:
            return setting(name, value)
        return on_command_line(named[name], value) + ("" if typed else f" ({name})")

    error = error.respelled(spell)
    return error.about(f"{on_command_line(flags[typed[0]])} ({typed[0]})") if len(typed) == 1 else error


def _follow(recipe: TrainingRecipe, tables: Mapping[str, Mapping[str, Any]], given: _Run, origin: Any) -> None:
    from qkv.tasks.notes import as_json
    from qkv.tasks.origin import expect_tokenizer
    from qkv.tasks.settings import to_toml
    from qkv.tasks.streams import write_json, write_lines

    expect_tokenizer(origin, tables)
    settings = recipe.load_settings(tables)
    if given.print_config:
        shown = recipe.show_settings(settings)
        write_json([shown]) if as_json() else write_lines(to_toml(shown).splitlines())
        return
    outcome = recipe.train(settings, given.out, given.device, tensorboard=given.tensorboard, origin=origin)
    if outcome.exit_code:
        raise typer.Exit(outcome.exit_code)
