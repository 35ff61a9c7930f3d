"""What all trainings share, whatever their task: a folder, first weights, and the start of the loop."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from qkv.checkpoint.disk import expect_writable
from qkv.data.tokenizer import Tokenizer
from qkv.errors import ConfigError, error_message
from qkv.tasks.origin import Origin, origin_config, start_from
from qkv.train.loop import train
from qkv.train.outcome import Outcome
from qkv.train.protocols import Task
from qkv.train.seeds import seed_everything
from qkv.train.settings import Settings

TABLES = ("data", "tokenizer", "model", "training")
"""The tables of settings that every task has."""
_FREE = ("training.steps", "training.validate_every", "training.log_every", "training.patience", "training.keep")
_ADDED = {"model.residual": False}
"""Settings that runs begun before there were them do not name."""

Model = TypeVar("Model", bound=nn.Module)


def run_folder(out: Path | None) -> Path:
    """The folder of a run, which must be named, and one that can be written to: said before any text is read.

    Raises:
        ConfigError: it is not named.
        CheckpointError: a file stands in its place, or it cannot be written to.

    Example:
        >>> run_folder(Path("runs/first")).name
        'first'
    """
    if out is None:
        hint = "For example --out runs/first; the same command again resumes."
        raise ConfigError(error_message("--out", "a folder for the run", "none", hint))
    expect_writable(out)
    return out


def first_model(build: Callable[[], Model], seed: int, device: torch.device, origin: Origin | None) -> Model:
    """Make a model, its weights drawn by the seed or taken from where it starts.

    Args:
        build: makes it.
        seed: of the run: the first weights are part of what it decides.
        device: where to.
        origin: the run whose weights are the start; None to start anew.

    Returns:
        The model.

    Raises:
        CheckpointError: the origin's weights are not those of this model.
    """
    seed_everything(seed)
    model = build().to(device)
    start_from(model, origin)
    return model


def launch(
    task: Task[Any],
    model: nn.Module,
    training: Settings,
    *,
    out: Path,
    config: Mapping[str, Any],
    tokenizer: Tokenizer,
    origin: Origin | None,
    tensorboard: bool,
) -> Outcome:
    """Train, or go on with a run.

    Args:
        task: data, objective and judgment.
        model: what is trained.
        training: how.
        out: the run folder.
        config: what defines the run, its origin aside.
        tokenizer: kept with the checkpoints.
        origin: the run that it starts from, if any.
        tensorboard: whether to log for TensorBoard too.

    Returns:
        How it ended.

    Raises:
        QkvError: bad input of any kind; nothing that was saved is lost.
    """
    # PyTorch's optimizers import its compiler, which takes seconds: here a signal ends the process at once, as nothing
    # is to be saved yet; within `train` it would have to wait for them.
    from torch import _dynamo  # noqa: F401

    return train(
        task,
        model,
        training,
        run=out,
        config={**config, **origin_config(origin)},
        tokenizer=tokenizer.to_json(),
        free=_FREE,
        added=_ADDED,
        tensorboard=tensorboard,
    )


def size_of(model: nn.Module) -> str:
    """How many parameters a model has, in words.

    Example:
        >>> size_of(nn.Linear(999, 1000))
        '1.0 million parameters'
    """
    return f"{sum(parameter.numel() for parameter in model.parameters()) / 1e6:.1f} million parameters"
