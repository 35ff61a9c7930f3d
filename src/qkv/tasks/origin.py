"""Fine-tuning: a trained run as the start of another training."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from qkv.checkpoint.folder import verify
from qkv.data.tokenizer import Tokenizer
from qkv.errors import CheckpointError, complaint
from qkv.tasks.runs import Trained, learnt_tokenizer, open_run

_SHOWN = 4
_WHERE = "--from"


class Origin(NamedTuple):
    """Where weights and tokenizer come from.

    Attributes:
        trained: the checkpoint.
        digest: sha256 that stands for every byte of it.
    """

    trained: Trained
    digest: str


def open_origin(run: Path | None, task: str) -> Origin | None:
    """Read the run to start from.

    Args:
        run: the folder that training wrote, or one checkpoint in it; None to start anew.
        task: of the training that is to begin.

    Returns:
        The origin, if any.

    Raises:
        CheckpointError: the checkpoint cannot be used, or is of another task.
    """
    if run is None:
        return None
    trained = open_run(run)
    if trained.task != task:
        mend = f"Start from a run of `qkv train {task}`."
        got = f"{trained.folder}, trained to {trained.task}"
        raise CheckpointError(complaint(_WHERE, f"a run of the same task, {task}", got, mend))
    return Origin(trained, verify(trained.folder).digest)


def origin_tables(origin: Origin | None) -> dict[str, Any]:
    """The settings that the start decides: model and tokenizer."""
    if origin is None:
        return {}
    config = origin.trained.contents.config
    return {name: dict(table) for name in ("model", "tokenizer") if isinstance(table := config.get(name), Mapping)}


def first_tokenizer(out: Path, origin: Origin | None) -> Tokenizer | None:
    """The tokenizer to go on with: that of the run itself, else that of its start; None where there is none yet."""
    learnt = learnt_tokenizer(out)
    return origin.trained.tokenizer if learnt is None and origin is not None else learnt


def start_from(model: nn.Module, origin: Origin | None) -> None:
    """Give a new model the weights of its start.

    Raises:
        CheckpointError: a tensor is missing, is too many or has another shape; names them.
    """
    if origin is None:
        return
    ours, theirs = model.state_dict(), origin.trained.contents.model
    faults = [f"no {name}" for name in ours if name not in theirs]
    faults += [f"{name}, which this model does not have" for name in theirs if name not in ours]
    faults += [
        f"{name} of shape {tuple(theirs[name].shape)} in place of {tuple(tensor.shape)}"
        for name, tensor in ours.items()
        if name in theirs and theirs[name].shape != tensor.shape
    ]
    if faults:
        more = f" and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
        mend = "Leave out the settings that change the model, or train it anew without --from."
        got = f"in {origin.trained.folder}: {'; '.join(faults[:_SHOWN])}{more}"
        raise CheckpointError(complaint(_WHERE, "the tensors of this model", got, mend))
    model.load_state_dict(dict(theirs))


def origin_config(origin: Origin | None) -> dict[str, Any]:
    """What the start adds to the configuration that defines a run."""
    return {} if origin is None else {"from": origin.digest}
