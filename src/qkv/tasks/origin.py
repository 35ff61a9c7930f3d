"""What another run gives to a training: weights and tokenizer to go on from, or the tokenizer alone."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from qkv.checkpoint.folder import verify
from qkv.data.fingerprints import fingerprint
from qkv.data.tokenizer import Tokenizer
from qkv.errors import CheckpointError, ConfigError, error_message
from qkv.tasks.runs import Trained, learnt_tokenizer, open_run

_SHOWN = 4
_WHERE = "--from"


class Origin(NamedTuple):
    """Where weights and tokenizer come from.

    Attributes:
        trained: the checkpoint.
        digest: sha256 that stands for every byte of what is taken.
        weights: whether weights are taken; else the tokenizer alone.
    """

    trained: Trained
    digest: str
    weights: bool = True


def open_origin(run: Path | None, task: str, tokenizer: Path | None = None) -> Origin | None:
    """Read the run to start from.

    Args:
        run: the folder that training wrote, or one checkpoint in it; None to start anew.
        task: of the training that is to begin.
        tokenizer: a run of any task whose tokenizer is taken, so that what both train can translate together.

    Returns:
        The origin, if any.

    Raises:
        CheckpointError: the checkpoint cannot be used, or is of another task.
        ConfigError: both are named.
    """
    if run is not None and tokenizer is not None:
        hint = "A start brings its own tokenizer: leave one of them out."
        raise ConfigError(error_message("--tokenizer-from", "no --from beside it", "both", hint))
    if tokenizer is not None:
        found = open_run(tokenizer)
        return Origin(found, fingerprint([found.tokenizer.to_json()]), weights=False)
    if run is None:
        return None
    trained = open_run(run)
    if trained.task != task:
        hint = f"Start from a run of `qkv train {task}`."
        got = f"{trained.folder}, trained to {trained.task}"
        raise CheckpointError(error_message(_WHERE, f"a run of the same task, {task}", got, hint))
    return Origin(trained, verify(trained.folder).digest)


def origin_tables(origin: Origin | None) -> dict[str, Any]:
    """The settings that the start decides: model and tokenizer, or the tokenizer alone."""
    if origin is None:
        return {}
    config, names = origin.trained.contents.config, ("model", "tokenizer") if origin.weights else ("tokenizer",)
    return {name: dict(table) for name in names if isinstance(table := config.get(name), Mapping)}


def expect_tokenizer(origin: Origin | None, given: Mapping[str, Any]) -> None:
    """Refuse settings of the tokenizer that are not those of the one that is taken.

    Args:
        origin: where it comes from.
        given: the settings of this training, nested.

    Raises:
        ConfigError: one of them differs.
    """
    theirs, ours = origin_tables(origin).get("tokenizer", {}), given.get("tokenizer", {})
    for name in theirs:
        if name in ours and ours[name] != theirs[name]:
            hint = "It was learnt before: leave the setting out, or take no tokenizer from another run."
            expected = f"{theirs[name]}, as the tokenizer of the other run was learnt"
            raise ConfigError(error_message(f"tokenizer.{name}", expected, f"{ours[name]}", hint))


def first_tokenizer(out: Path, origin: Origin | None) -> Tokenizer | None:
    """The tokenizer to go on with: that of the run itself, else that of its start; None where there is none yet."""
    learnt = learnt_tokenizer(out)
    return origin.trained.tokenizer if learnt is None and origin is not None else learnt


def start_from(model: nn.Module, origin: Origin | None) -> None:
    """Give a new model the weights of its start.

    Raises:
        CheckpointError: a tensor is missing, is too many or has another shape; names them.
    """
    if origin is None or not origin.weights:
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
        hint = "Leave out the settings that change the model, or train it anew without --from."
        got = f"in {origin.trained.folder}: {'; '.join(faults[:_SHOWN])}{more}"
        raise CheckpointError(error_message(_WHERE, "the tensors of this model", got, hint))
    model.load_state_dict(dict(theirs))


def origin_config(origin: Origin | None) -> dict[str, Any]:
    """What the start adds to the configuration that defines a run."""
    if origin is None:
        return {}
    return {"from" if origin.weights else "tokenizer_from": origin.digest}
