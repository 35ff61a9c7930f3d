"""Scoring a trained model on files."""

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from qkv.checkpoint.disk import replace_file
from qkv.errors import ConfigError, on_command_line, setting
from qkv.settings import build, options_of
from qkv.tasks.notes import note
from qkv.tasks.runs import answerer_of, open_members
from qkv.tasks.settings import AnswersEvaluation, EvaluationSettings, columns_of
from qkv.tasks.streams import format_lines
from qkv.tasks.task import Answerer, Scored


def score(run: str | Path, files: EvaluationSettings) -> Scored:
    """Score a model on files of its task.

    Args:
        run: run folder, or one checkpoint in it.
        files: what to score on: the table `evaluation` of the task's settings.

    Returns:
        Figures, answers, and a report of labels where there are some. What is odd in files and answers is reported on
        standard error.

    Raises:
        CheckpointError: the checkpoint is invalid.
        DataError: a file is invalid; the message gives file and line.
        ConfigError: a file is missing, or a setting is invalid.
    """
    runs = open_members(run)
    trained: Answerer = answerer_of(runs, files.device)
    columns = _columns_of_training(files, runs[0][1].contents.config.get("data"))
    try:
        scored = trained.score_files(replace(files, **columns))
    except ConfigError as error:
        if error.argument not in map(str, map(setting, columns)):
            raise
        hint = f"{error.hint} It is as in training: name that of this file."
        raise ConfigError(error.args[0], error.expected, error.got, hint) from error
    if isinstance(files, AnswersEvaluation) and files.out is not None:
        # A model of bytes can write a line feed, which must not shift the lines below.
        replace_file(files.out, format_lines(scored.lines).encode("utf-8"))
    return scored


def _columns_of_training(files: EvaluationSettings, stored: object) -> dict[str, Any]:
    """Return the columns of the training, and what separates them, where they are not given."""
    if getattr(files, "data", None) is None or not isinstance(stored, Mapping):
        return {}
    table: Any = type(files)
    known = columns_of(build(table, {name: item for name, item in stored.items() if name in options_of(table)}))
    known = {name: item for name, item in known.items() if name not in columns_of(files)}
    if known and isinstance(getattr(files, "data", None), str | Path):
        shown = " ".join(on_command_line(name, shlex.quote(f"{item}")) for name, item in known.items())
        note(f"qkv: columns as in training: {shown}")
    return known
