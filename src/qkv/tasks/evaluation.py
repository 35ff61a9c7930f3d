"""Scoring a trained model on files."""

from pathlib import Path

from qkv.checkpoint.disk import replace_file
from qkv.tasks.as_trained import as_in_training
from qkv.tasks.runs import answerer_of, open_members
from qkv.tasks.settings import AnswersEvaluation, EvaluationSettings
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
    with as_in_training(files, runs[0][1].columns) as its_files:
        scored = trained.score_files(its_files)
    if isinstance(files, AnswersEvaluation) and files.out is not None:
        # A model of bytes can write a line feed, which must not shift the lines below.
        replace_file(files.out, format_lines(scored.lines).encode("utf-8"))
    return scored
