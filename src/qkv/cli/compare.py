"""`qkv compare TASK`: train a task with each combination of some settings."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from qkv.cli.early_exit import INTERRUPTED
from qkv.cli.failure import guarded
from qkv.cli.flags import commands_of_tasks, flag_of, flagged, read_flag, taken
from qkv.cli.train import flags_of, hint_of
from qkv.settings import choices_of, defaults_of, help_of, options_of, parse
from qkv.tasks.compare.settings import NOT_COMPARED, TEST, CompareOptions, can_vary, files_to_test
from qkv.tasks.settings import TaskSettings

_PANEL = "Comparison"


def compare_command(task: TaskSettings) -> Callable[..., None]:
    """Return the command that compares settings of a task."""

    @flagged(_flags(task), defaults_of(CompareOptions))
    def compare(**flags: Any) -> None:
        options = taken(CompareOptions, flags)
        typed = {name: _values(task, name, item) for name, item in flags.items() if item is not None}
        _compare(task.name, typed, options)

    compare.__name__ = f"compare_{task.name}"
    compare.__doc__ = f"""Compare settings of {task.name}: every combination of values that are separated by commas.

    Example: qkv compare {task.name} … --score additive,gaussian,cosine --seeds 3 --steps 500 --out comparison
    """
    return guarded(compare, task.table_of)


def _flags(task: TaskSettings) -> dict[str, Any]:
    """Return the flags: the comparison's own, the files to test on, and the settings, which may have several values."""
    flags = {
        name: flag_of(CompareOptions, name, help_of(CompareOptions, name, None), _PANEL)
        for name in options_of(CompareOptions)
    }
    for name in files_to_test(task):
        help = f"To test on, as `qkv evaluate --{name}`: figures are of these files, and differences are tested."
        flags[TEST + name] = Annotated[Path | None, typer.Option(help=help, rich_help_panel=_PANEL)]
    for name, flag in flags_of(task, options=False).items():
        flags[name] = Annotated[str | None, *flag.__metadata__] if can_vary(task, name) else flag
        flag.__metadata__[0].hidden = name in NOT_COMPARED  # given, it is refused with a hint
    return flags


def _values(task: TaskSettings, name: str, item: Any) -> Any:
    """Return the value of a flag, or the list of its values."""
    if name.startswith(TEST):
        return item
    if not isinstance(item, str) or not can_vary(task, name):
        return read_flag(hint_of(task, name), item)
    values = [_number(hint_of(task, name), part.strip()) for part in item.split(",")]
    return values[0] if len(values) == 1 else values


def _number(hint: Any, text: str) -> Any:
    if int in choices_of(hint) and text.removeprefix("-").isdecimal():
        return int(text)
    return parse(hint, text)


def _compare(task: str, settings: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    from qkv.tasks.catalog import recipe_of
    from qkv.tasks.compare.comparing import compare
    from qkv.tasks.notes import note
    from qkv.tasks.streams import write

    out = options["out"]
    outcome = compare(
        recipe_of(task), settings, out, **{name: options[name] for name in ("seeds", "folds", "controls", "device")}
    )
    comparison = outcome.comparison
    if comparison.rows:
        write([comparison.to_json_value()], repr(comparison).splitlines())
        note(f"qkv: {', '.join(map(str, outcome.files))}")
    if comparison.missing:
        note(f"qkv: {comparison.missing:,} trainings are missing: run the same command again.")
    if outcome.interrupted:
        raise typer.Exit(INTERRUPTED)


command_of = commands_of_tasks(compare_command)
