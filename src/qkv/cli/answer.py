"""`qkv translate`, `classify` and the other commands named after a task: answer standard input, or files."""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

from qkv.cli.flags import USE, made_command
from qkv.cli.shards import answer_shards, shards_of
from qkv.cli.tables import command_of_table
from qkv.settings import as_dict
from qkv.tasks.settings import AnswerSettings, LineAnswers, ShardSettings

_NO_WORK = frozenset(("shards", "out", "attention", "show", "line_buffered", "device"))
"""Settings that change no answer."""


def answer_command(task: str, table: type[AnswerSettings], open_answers: Callable[[], Any]) -> Callable[..., None]:
    """Return the command that answers by a trained model.

    Args:
        task: the name of the task.
        table: the settings.
        open_answers: imports and returns a `qkv.tasks.task.OpenAnswers`; called when the command runs.
    """
    return command_of_table(task, table, partial(_answer, task, open_answers))


def _answer(task: str, open_answers: Callable[[], Any], runs: list[Path], settings: AnswerSettings) -> None:
    from qkv.tasks.answering import parts_of_stdin
    from qkv.tasks.notes import note, working
    from qkv.tasks.streams import write_text

    shards = shards_of(settings) if isinstance(settings, ShardSettings) else None
    with working("loading the model"):
        answers = open_answers()(runs, settings)
    if shards is not None:
        work = {name: item for name, item in as_dict(settings).items() if name not in _NO_WORK}
        answer_shards(shards, {"command": task, **work}, runs, answers)
        return
    for line in answers.examples:
        note(f"qkv: answering {line!r}; a pipe gives lines of your own")
    line_buffered = isinstance(settings, LineAnswers) and settings.line_buffered
    parts = parts_of_stdin(line_buffered=line_buffered, tabs=answers.tabs)
    write_text(answers.texts([list(answers.examples)] if answers.examples else parts))
    answers.drawing.finish()


@cache
def command_of(task: str) -> Any:
    """Return the command of a task's name as typer makes it; None for a task without one.

    Example:
        >>> command_of("tag").name
        'tag'
    """
    from qkv.tasks.catalog import ANSWERS, TASKS

    table = TASKS[task].answers if task in TASKS else None
    if table is None or task not in ANSWERS:
        return None
    return made_command(task, answer_command(task, table, ANSWERS[task]), USE)
