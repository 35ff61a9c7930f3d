"""What a run folder holds, whatever its task: which task, which tokenizer, which weights."""

from pathlib import Path
from typing import NamedTuple

from torch import nn

from qkv.checkpoint.contents import Contents
from qkv.checkpoint.folder import load
from qkv.checkpoint.rotation import latest_complete, locate
from qkv.data.tokenizer import Tokenizer
from qkv.errors import CheckpointError, complaint


class Trained(NamedTuple):
    """What was trained.

    Attributes:
        folder: the checkpoint.
        contents: its weights, configuration and figures.
        tokenizer: text to ids.
        task: its name.
    """

    folder: Path
    contents: Contents
    tokenizer: Tokenizer
    task: str


def open_run(run: str | Path) -> Trained:
    """Read the best checkpoint of a run, or one checkpoint.

    Args:
        run: the folder that training wrote, or one checkpoint in it.

    Returns:
        What it holds.

    Raises:
        CheckpointError: the checkpoint is missing, incomplete or altered, or names no task.
    """
    folder = locate(Path(run))
    contents = load(folder, trainer=False)
    task = contents.config.get("task")
    if not isinstance(task, str) or contents.tokenizer is None:
        mend = "Give the folder that `qkv train` wrote."
        raise CheckpointError(complaint(str(folder), "a checkpoint with its task and tokenizer", "one without", mend))
    return Trained(folder, contents, Tokenizer.from_json(contents.tokenizer), task)


def expect_task(trained: Trained, task: str, what: str) -> None:
    """Refuse a checkpoint of another task.

    Args:
        trained: what was read.
        task: the task that is wanted.
        what: such a model in words.

    Raises:
        CheckpointError: it is of another task.
    """
    if trained.task != task:
        mend = f"Use `qkv {trained.task}`, the command of its task."
        raise CheckpointError(complaint(str(trained.folder), what, f"one trained to {trained.task}", mend))


def put_weights(model: nn.Module, trained: Trained) -> None:
    """Give a model the weights of a checkpoint.

    Raises:
        CheckpointError: they are not those of this model.
    """
    try:
        model.load_state_dict(dict(trained.contents.model))
    except RuntimeError as error:
        mend = "It was written by another version: train again, or install that version."
        raise CheckpointError(
            complaint(str(trained.folder), "weights of the model it names", str(error), mend)
        ) from None


def learnt_tokenizer(out: Path) -> Tokenizer | None:
    """The tokenizer of a run that is to be gone on with; None where there is no run yet."""
    if not out.is_dir() or (found := latest_complete(out, lambda text: None)) is None:
        return None
    tokenizer = load(found, trainer=False).tokenizer
    return None if tokenizer is None else Tokenizer.from_json(tokenizer)
