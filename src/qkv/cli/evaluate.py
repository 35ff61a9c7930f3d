"""`qkv evaluate`: score a trained model on files. Its flags are those of the run's task."""

import os
from functools import cache
from pathlib import Path
from typing import Any

from qkv.cli.failure import with_torch
from qkv.cli.flags import made_command
from qkv.cli.paths import CommandOfPaths
from qkv.cli.tables import command_of_table
from qkv.tasks.settings import EvaluationSettings, LabelsEvaluation

ANY_FLAGS = {"ignore_unknown_options": True, "allow_extra_args": True}
"""Settings of a command that cannot know all flags: what is wrong with its run is said before what is with them."""
_EXAMPLE = "example"


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
        from qkv.tasks.runs import task_of

        return task_of(run)


@cache
def _command_of(task: str) -> Any:
    """Return the command for runs of a task as typer makes it; None for tasks that have no files to score on."""
    from qkv.tasks.catalog import TASKS

    if task not in TASKS:
        return None
    return made_command("evaluate", command_of_table("evaluate", TASKS[task].evaluation, _evaluate))


def _evaluate(runs: list[Path], files: EvaluationSettings) -> None:
    from qkv.tasks.evaluation import score
    from qkv.tasks.notes import working
    from qkv.tasks.streams import aligned, fields_of, write

    with working("evaluating"):
        scored = score(runs[0], files)
    figures = scored.figures
    report = scored.report() if isinstance(files, LabelsEvaluation) and files.report else None
    objects = ({**fields_of(figure), "unit": figure.unit} for figure in figures)
    write(objects, (f"{one.name}\t{one.value:.4f}\t{one.signature}\t{one.unit}" for one in figures))
    if report is not None:
        lines = (line for table in report.tables() for line in ("", *aligned(table)))
        write(map(fields_of, [*report.scores, *report.confusions]), lines)


evaluate = command_of_table("evaluate", EvaluationSettings, _evaluate)
