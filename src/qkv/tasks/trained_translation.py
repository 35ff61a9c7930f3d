"""A translation model out of its checkpoints: the best one, or the mean of the newest ones."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from qkv.checkpoint.folder import is_checkpoint
from qkv.data.tokenizer import Tokenizer
from qkv.errors import CheckpointError, ConfigError, error_message
from qkv.tasks.choice import TranslationModel, build_model
from qkv.tasks.runs import expect_task, open_run, rebuild
from qkv.train.average import average_checkpoints, last_checkpoints


class TrainedTranslation(NamedTuple):
    """What was trained.

    Attributes:
        model: the network with its weights.
        tokenizer: text to ids.
        longest: the most tokens of a source line.
    """

    model: TranslationModel
    tokenizer: Tokenizer
    longest: int


def load_translation(run: Path, average: int = 1) -> TrainedTranslation:
    """Load the best checkpoint of a run, or one checkpoint, or the mean of the newest.

    Args:
        run: the folder that training wrote, or one checkpoint in it.
        average: more than 1 for the mean of the weights of that many newest checkpoints.

    Returns:
        The model, its tokenizer and its limit.

    Raises:
        CheckpointError: the checkpoint is missing, incomplete, altered or of another task, or there are fewer.
        ConfigError: an average of less than one.
    """
    trained = open_run(run)
    expect_task(trained, "translate", "a translation model")
    if average < 1:
        raise ConfigError(error_message("--average", "at least 1", f"{average}", "1 takes the best checkpoint alone."))
    weights = trained.contents.model
    if average > 1:
        weights = average_checkpoints(last_checkpoints(_whole(run), average))
    table = trained.contents.config.get("model")
    sizes = table if isinstance(table, Mapping) else {}
    model = rebuild(lambda: build_model(sizes, trained.tokenizer), trained, weights)
    longest = trained.contents.config.get("longest", 256)
    return TrainedTranslation(model, trained.tokenizer, longest if isinstance(longest, int) else 256)


def _whole(run: Path) -> Path:
    """The run folder, for an average of several checkpoints."""
    if is_checkpoint(run):
        hint = "Give the run folder."
        raise CheckpointError(
            error_message(str(run), "a run folder, to average checkpoints of", "one checkpoint", hint)
        )
    return run
