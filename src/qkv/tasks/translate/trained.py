"""Loading a translation model: its best checkpoint, or the average of the newest ones."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from qkv.checkpoint.folder import is_checkpoint
from qkv.data.tokenizer import Tokenizer
from qkv.data.word_table import WordTable
from qkv.errors import CheckpointError, ConfigError, setting
from qkv.settings import build
from qkv.tasks.runs import expect_task, open_run, rebuild
from qkv.tasks.translate.model import TranslationModel, build_model
from qkv.training.average import average_checkpoints, last_checkpoints


class TrainedTranslation(NamedTuple):
    """A trained translation model.

    Attributes:
        model: the network with its weights.
        tokenizer: text to ids.
        longest: maximum tokens of a source line.
        table: the columns of the table that it was trained on; None for plain text.
        back: whether it writes right to left.
    """

    model: TranslationModel
    tokenizer: Tokenizer
    longest: int
    table: WordTable | None = None
    back: bool = False


def load_translation(run: Path, average: int = 1) -> TrainedTranslation:
    """Load the best checkpoint of a run, one checkpoint, or the average of the newest ones.

    Args:
        run: run folder, or one checkpoint in it.
        average: number of newest checkpoints whose weights are averaged; 1 uses the best checkpoint.

    Returns:
        The model, its tokenizer and its length limit.

    Raises:
        CheckpointError: the checkpoint is missing, incomplete, corrupted or of another task, or there are too few.
        ConfigError: `average` is less than one.
    """
    trained = open_run(run)
    expect_task(trained, "translate", "a translation model")
    if average < 1:
        raise ConfigError(setting("average"), "at least 1", f"{average}", "1 uses the best checkpoint.")
    weights = trained.contents.model
    if average > 1:
        weights = average_checkpoints(last_checkpoints(_expect_run_folder(run), average))
    table = trained.contents.config.get("model")
    sizes = table if isinstance(table, Mapping) else {}
    longest, columns = trained.contents.config.get("longest", 256), trained.contents.config.get("table")
    words = None if columns is None else _table(columns, trained.folder)
    model = rebuild(lambda: build_model(sizes, trained.tokenizer, words), trained, weights)
    return TrainedTranslation(
        model,
        trained.tokenizer,
        longest if isinstance(longest, int) else 256,
        words,
        trained.contents.config.get("direction") == "back",
    )


def _table(table: object, folder: Path) -> WordTable:
    try:
        return build(WordTable, table if isinstance(table, Mapping) else {"table": table}, "table")
    except ConfigError as error:
        hint = "It was written by another version: retrain, or install that version."
        raise CheckpointError(str(folder), "columns in config.json", str(error)[:200], hint) from error


def _expect_run_folder(run: Path) -> Path:
    """Check that a run folder is given if several checkpoints are to be averaged."""
    if is_checkpoint(run):
        hint = "Give the run folder."
        raise CheckpointError(str(run), "a run folder, whose checkpoints can be averaged", "one checkpoint", hint)
    return run
