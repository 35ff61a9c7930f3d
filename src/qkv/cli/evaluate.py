"""`qkv evaluate`: score a trained model on files. Its flags are those of the run's task."""

import os
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer

from qkv.cli import flags as f
from qkv.cli.failure import guarded, with_torch
from qkv.cli.paths import CommandOfPaths, expect_output_file
from qkv.cli.train import type_of
from qkv.settings import build, defaults_of, help_of, hints_of, options_of, parse
from qkv.tasks.settings import EvaluationSettings

ANY_FLAGS = {"ignore_unknown_options": True, "allow_extra_args": True}
"""Settings of a command that cannot know all flags: what is wrong with its run is said before what is with them."""
_RUN, _EXAMPLE = "run", "example"


class EvaluateCommand(CommandOfPaths):
    """The command whose flags are those of the task of the run among its arguments."""

    @property
    def commands(self) -> dict[str, Any]:
        """The command for runs of each task."""
        from qkv.tasks.catalog import TASKS

        return {task: _command_of(task) for task in TASKS}

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Parse the arguments as those of the run's task; without a run, as those that every task has."""
        runs = [arg for arg in args if arg == _EXAMPLE or (os.path.isdir(arg) and not arg.startswith("-"))]
        command = _command_of(_task_of(Path(runs[0]))) if runs else None
        if command is None:
            return super().make_context(info_name, args, parent, **extra)
        return command.make_context(info_name, args, parent, **extra)


def _task_of(run: Path) -> str:
    with with_torch():
        from qkv.tasks.runs import load_trained
        from qkv.tasks.translate.members import members_of

        return load_trained(members_of(run)[0]).task


@cache
def _command_of(task: str) -> Any:
    """Return the command for runs of a task as typer makes it; None for tasks that have no files to score on."""
    from qkv.tasks.catalog import TASKS

    if task not in TASKS:
        return None
    command = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
    command.command("evaluate", cls=CommandOfPaths)(_evaluation(TASKS[task].evaluation))
    return typer.main.get_command(command)


def _flags_of(table: Any) -> dict[str, Any]:
    """Return the flags of a table by name, annotated for typer, which adds their defaults to the help."""
    flags: dict[str, Any] = {}
    for name in options_of(table):
        help = help_of(table, name, "as in training" if name in table.as_trained else None)
        flags[name] = Annotated[type_of(hints_of(table)[name]) | None, f.option_of(table, name, help)]
    return flags


def _typed(table: type, flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the flags of a table say, without those that were not given."""
    hints = hints_of(table)
    return {
        name: parse(hints[name], item) if isinstance(item, str) else item
        for name, item in flags.items()
        if item is not None
    }


def _evaluation(table: type[EvaluationSettings]) -> Callable[..., None]:
    """Return the command that scores a model on what a table says."""

    @f.flagged({_RUN: f.Run, **_flags_of(table)}, defaults_of(table))
    def evaluate(**flags: Any) -> None:
        from qkv.tasks.evaluation import evaluate as score
        from qkv.tasks.notes import as_json, working
        from qkv.tasks.streams import fields_of, write_json, write_lines

        run, typed = flags.pop(_RUN), _typed(table, flags)
        expect_output_file("out", typed.get("out"))
        files = build(table, typed)
        with working("evaluating"):
            figures = score(run, files)
        if as_json():
            write_json({**fields_of(figure), "unit": figure.unit} for figure in figures)
            return
        write_lines(f"{figure.name}\t{figure.value:.4f}\t{figure.signature}\t{figure.unit}" for figure in figures)

    evaluate.__doc__ = table.__doc__
    return guarded(evaluate)


evaluate = _evaluation(EvaluationSettings)
