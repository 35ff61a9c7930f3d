"""`qkv check TASK`: report what is wrong or odd in the data of a training, before it is trained."""

from collections.abc import Callable
from typing import Any

from qkv.cli.failure import guarded
from qkv.cli.flags import commands_of_tasks, flagged
from qkv.cli.train import flags_of, typed_settings
from qkv.errors import on_command_line
from qkv.tasks.settings import TaskSettings


def check_command(task: TaskSettings) -> Callable[..., None]:
    """Return the command that checks the data of a task."""

    @flagged({name: flag for name, flag in flags_of(task, options=False).items() if name in task.names_of_data}, {})
    def check(**flags: Any) -> None:
        from qkv.tasks.catalog import recipe_of
        from qkv.tasks.check import check_data
        from qkv.tasks.notes import note
        from qkv.tasks.streams import write

        report = check_data(recipe_of(task.name), task.in_tables(typed_settings(task, flags)))
        write([report.to_json_value()], str(report).splitlines())
        report.expect_usable()
        if kinds := report.kinds("kept"):
            note(f"qkv: these lines are trained on; {on_command_line('skip', ','.join(kinds))} would leave them out.")

    check.__name__ = f"check_{task.name}"
    check.__doc__ = f"""Report all that is wrong or odd in the data of qkv train {task.name}, with file and lines.

    The flags are those of the training. The exit code is 2 if it would refuse the data.

    Example: qkv check {task.name} …
    """
    return guarded(check, task.table_of)


command_of = commands_of_tasks(check_command)
