"""Flags made from settings, the flags that commands share, and signatures and commands made of flags."""

import functools
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar

import typer

from qkv.cli.paths import CommandOfPaths
from qkv.settings import (
    build,
    choices_of,
    defaults_of,
    has_texts,
    help_of,
    hints_of,
    options_of,
    parse,
    parts_of,
)
from qkv.tasks.settings import SourceColumns, TaskSettings

TRAIN, USE, LOOK, DEPLOY = "Train", "Use", "Look", "Deploy"
"""The parts of the help."""
P = ParamSpec("P")
R = TypeVar("R")
Run = Annotated[Path, typer.Argument(help="Run folder, or one checkpoint in it.")]
OnDevice = Annotated[str, typer.Option(help="Device, such as cpu or cuda.")]
"""The device of a command that uses a model."""


def type_of(hint: Any) -> type:
    """Return the type that typer gives a flag; numbers stay texts, which `parse` reads and `build` checks.

    Example:
        >>> type_of(int | None), type_of(bool), type_of(tuple[str, ...])
        (<class 'str'>, <class 'bool'>, list[str])
    """
    kinds = [choice for choice in choices_of(hint) if choice is not type(None)]
    if Path in kinds:
        return Path
    if has_texts(parts_of(kinds[0])):
        return list[str]
    return bool if kinds == [bool] else str


def option_of(table: type, name: str, help: str = "", topic: str | None = None) -> Any:
    """Return the flag of a setting.

    Args:
        table: the table of settings.
        name: of the field.
        help: its help, if that is not the one of the table.
        topic: the part of the help in which it stands.

    Example:
        >>> option_of(SourceColumns, "source_col").help
        'Column of the source, from 1 (1).'
    """
    option = options_of(table)[name]
    flag = "--" + (option.flag or name).replace("_", "-")
    names = [flag]
    if bool in choices_of(hints_of(table)[name]):
        names = [f"{flag}/--{option.off or f'no-{flag[2:]}'}"] if defaults_of(table)[name] else [flag]
    names += [f"--{option.also}"] if option.also else []
    metavar = _metavar(hints_of(table)[name])
    return typer.Option(*names, help=help or help_of(table, name), rich_help_panel=topic, metavar=metavar)


def flag_of(table: Any, name: str, help: str = "", topic: str | None = None) -> Any:
    """Return what typer reads of a setting's flag, None where it is not given; arguments as for `option_of`."""
    return Annotated[type_of(hints_of(table)[name]) | None, option_of(table, name, help, topic)]


def read_flag(hint: Any, item: Any) -> Any:
    """Return what a flag says, by the type of its setting.

    Example:
        >>> read_flag(int | None, "3"), read_flag(tuple[str, ...], ["a, b", "c"]), read_flag(int, None)
        (3, ['a', 'b', 'c'], None)
    """
    if isinstance(item, list):  # names at commas; a name with a comma can be written in a settings file
        return [name.strip() for text in item for name in text.split(",") if name.strip()] or None
    return parse(hint, item) if isinstance(item, str) else item


def taken(table: type, flags: dict[str, Any]) -> dict[str, Any]:
    """Remove the flags of a table from all flags, and return their values.

    Raises:
        ConfigError: one is of another type, or out of its range.
    """
    hints = hints_of(table)
    read = {name: read_flag(hints[name], flags.pop(name)) for name in defaults_of(table)}
    return dict(vars(build(table, {name: item for name, item in read.items() if item is not None})))


def _metavar(hint: Any) -> str | None:
    """Return what stands behind a flag in the help: nothing for a switch, a name where the help lists names."""
    kinds = [kind for kind in choices_of(hint) if kind is not type(None)]
    if type_of(hint) is bool:
        return ""
    if type_of(hint) == list[str]:
        return "<names>"
    if len(kinds) == 1 and kinds[0] in (int, float):
        return f"<{kinds[0].__name__}>"
    return "<name>" if len(kinds) > 1 and all(isinstance(kind, str) for kind in kinds) else None


def _column(name: str) -> Any:
    """Return the flag of a column or separator in a command that reads a run, whose training had its own."""
    return option_of(SourceColumns, name, help_of(SourceColumns, name, "as in training"))


SourceColumn = Annotated[int | None, _column("source_col")]
FeaturesColumn = Annotated[int | None, _column("features_col")]


def keywords(flags: Mapping[str, Any], defaults: Mapping[str, Any]) -> list[Parameter]:
    """Return the parameters of flags.

    Args:
        flags: the annotation of each by name.
        defaults: the default of each flag; None for the others.
    """
    return [
        Parameter(name, Parameter.KEYWORD_ONLY, default=defaults.get(name), annotation=flag)
        for name, flag in flags.items()
    ]


def with_parameters(function: Callable[P, R], parameters: Sequence[Parameter]) -> Callable[P, R]:
    """Set the parameters that Python and typer see, and return the function."""
    function.__signature__ = Signature(list(parameters))  # type: ignore[attr-defined]
    function.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return function


def flagged(
    flags: Mapping[str, Any], defaults: Mapping[str, Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the flags of a table. It receives every flag; those not given have their defaults.

    Args:
        flags: the annotation of each by name, in the order of the help.
        defaults: the default of each flag; None for the others.

    Example:
        >>> @flagged({"steps": int | None, "device": str}, {"device": "cpu"})
        ... def train(**settings: Any) -> None:
        ...     print(settings)
        >>> train(steps=3)
        {'steps': 3, 'device': 'cpu'}
    """
    parameters = keywords(flags, defaults)
    signature = Signature(parameters)

    def give(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(**arguments: Any) -> None:
            bound = signature.bind(**arguments)
            bound.apply_defaults()
            command(**bound.arguments)

        return with_parameters(run, parameters)

    return give


def made_command(name: str, function: Callable[..., None], panel: str | None = None) -> Any:
    """Return a function as a command of its own, for a group that makes its commands when they are asked for.

    Args:
        name: of the command.
        function: what it does; its signature has the flags.
        panel: the part of the group's help in which it stands.
    """
    command = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
    command.command(name, cls=CommandOfPaths, rich_help_panel=panel)(function)
    return typer.main.get_command(command)


def commands_of_tasks(make: Callable[[TaskSettings], Callable[..., None]]) -> Callable[[str], Any]:
    """Return a function that returns the command of a task by the task's name.

    Args:
        make: returns what the command does, from the settings of its task.

    Raises:
        KeyError: there is no such task.
    """

    @functools.cache
    def command_of(task: str) -> Any:
        from qkv.tasks.catalog import TASKS

        return made_command(task, make(TASKS[task]))

    return command_of
