"""Shared by all commands of `qkv train`: read flags into settings, print them, and train."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import typer

if TYPE_CHECKING:
    from qkv.train.outcome import Outcome


class Recipe(Protocol):
    """A task's module: builds settings from nested dicts, and trains a run from them."""

    @property
    def TASK(self) -> str:  # noqa: N802
        """The name of the task."""

    def load_settings(self, tables: Mapping[str, Mapping[str, Any]]) -> Any:
        """Check settings and fill in defaults."""

    def show_settings(self, settings: Any) -> dict[str, Any]:
        """Return all settings as nested dicts."""

    def train(self, settings: Any, out: Path | None, device: str, *, tensorboard: bool, origin: Any) -> "Outcome":
        """Train, or resume."""


class Given(NamedTuple):
    """The flags that every training has.

    Attributes:
        config: settings as a TOML file.
        start: the run to start from.
        tokens: the run whose tokenizer is used.
        out: the run folder.
        device: compute device.
        tensorboard: whether to also log to TensorBoard.
        print_config: whether to show all settings and exit.
    """

    config: Path | None
    start: Path | None
    tokens: Path | None
    out: Path | None
    device: str
    tensorboard: bool
    print_config: bool


_FLAGS = {
    "tokenizer.size": "--vocabulary",
    "tokenizer.kind": "--tokenizer",
    "model.kind": "--model",
    "model.encoder": "--model",
    "ensemble.models": "--ensemble",
}
"""Flags whose names differ from the settings that they set."""


def follow(recipe: Recipe, flags: dict[str, dict[str, Any]], given: Given) -> None:
    """Train with flags and files: flags override the file, and the file overrides the run that training starts from."""
    from qkv.errors import QkvError
    from qkv.tasks.origin import open_origin, origin_tables
    from qkv.tasks.settings import merge, read_toml

    written = {table: {name: item for name, item in row.items() if item is not None} for table, row in flags.items()}
    origin = open_origin(given.start, recipe.TASK, given.tokens)
    below = merge(origin_tables(origin), read_toml(given.config) if given.config is not None else {})
    tables = merge(below, written)
    try:
        _follow(recipe, tables, given, origin)
    except QkvError as error:
        raise type(error)(as_typed(str(error), written)) from error


def as_typed(message: str, written: Mapping[str, Mapping[str, Any]]) -> str:
    """Add the flag that set a setting to a message, or replace the setting by it."""
    name, expected, rest = message.partition(": expected ")
    settings = [f"{table}.{key}" for table, row in written.items() for key in row]
    typed = [setting for setting in settings if name in (setting, setting.partition(".")[2])]
    if not expected or len(typed) != 1:
        return message
    flag = _FLAGS.get(typed[0], f"--{typed[0].partition('.')[2].replace('_', '-')}")
    return f"{flag} ({typed[0]}){expected}{rest}"


def _follow(recipe: Recipe, tables: Mapping[str, Mapping[str, Any]], given: Given, origin: Any) -> None:
    from qkv.tasks.origin import expect_tokenizer
    from qkv.tasks.settings import to_toml
    from qkv.tasks.streams import write_lines

    expect_tokenizer(origin, tables)
    settings = recipe.load_settings(tables)
    if given.print_config:
        write_lines(to_toml(recipe.show_settings(settings)).splitlines())
        return
    outcome = recipe.train(settings, given.out, given.device, tensorboard=given.tensorboard, origin=origin)
    if outcome.exit_code:
        raise typer.Exit(outcome.exit_code)
