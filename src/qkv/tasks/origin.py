"""The run a training starts from: its weights and tokenizer, or its tokenizer alone."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from qkv.checkpoint.folder import load_weights_later
from qkv.checkpoint.rotation import latest_complete
from qkv.data.corpus import fingerprint
from qkv.data.tokenizer import Tokenizer
from qkv.errors import CheckpointError, ConfigError, setting
from qkv.hub.cache import cached
from qkv.hub.published import published_folder
from qkv.settings import defaults_of
from qkv.tasks.notes import state
from qkv.tasks.runs import Trained, digest_of, load_trained, open_published, tokenizer_of
from qkv.tasks.settings import TaskSettings

_MOST_FAULTS = 4
_WHERE = setting("from")
_LABELING = ("classify", "tag")
"""The tasks that continue from any encoder of another library, with an output layer for their own labels."""


class Origin(NamedTuple):
    """The source of weights and tokenizer.

    Attributes:
        trained: the checkpoint.
        digest: sha256 over every byte that is used.
        weights: whether weights are used; else the tokenizer alone.
    """

    trained: Trained
    digest: str
    weights: bool = True


def open_origin(run: Path | None, task: str, tokenizer: Path | None = None) -> Origin | None:
    """Read the run to start from.

    Args:
        run: run folder, or one checkpoint in it; None to train from scratch.
        task: the task of the new training.
        tokenizer: a run of any task whose tokenizer is used, so that both models can form an ensemble.

    Returns:
        The origin, if any.

    Raises:
        CheckpointError: the checkpoint is invalid, or is of another task.
        ConfigError: both are given.
    """
    if run is not None and tokenizer is not None:
        hint = setting("from") + " already uses that run's tokenizer: omit one of them."
        raise ConfigError(setting("tokenizer_from"), "no " + setting("from"), "both", hint)
    if tokenizer is not None:
        source_run = load_trained(tokenizer)
        return Origin(source_run, fingerprint([source_run.tokenizer.to_json()]), weights=False)
    if run is None:
        return None
    run = cached(run)
    published = published_folder(run) if task in _LABELING else None
    trained = load_trained(run) if published is None else open_published(published, task)
    if trained.task != task:
        hint = f"Start from a run of `qkv train {task}`."
        got = f"{trained.folder}, trained to {trained.task}"
        raise CheckpointError(_WHERE, f"a run of the same task, {task}", got, hint)
    return Origin(trained, digest_of(trained.folder))


def origin_tables(origin: Origin | None, task: TaskSettings) -> dict[str, Any]:
    """Return the settings that the origin determines: model and tokenizer, or the tokenizer alone.

    Raises:
        ConfigError: sources and targets have a vocabulary each, and the task has one.
    """
    if origin is None:
        return {}
    config, names = origin.trained.contents.config, ("model", "tokenizer") if origin.weights else ("tokenizer",)
    tables = {name: dict(table) for name in names if isinstance(table := config.get(name), Mapping)}
    for side in ("source", "target"):
        if (kind := tables.get("tokenizer", {}).get(f"{side}_tokenizer")) is not None and "ensemble" not in task.tables:
            hint = "Only translators read sources and targets with a vocabulary each."
            where = _WHERE if origin.weights else setting("tokenizer_from")
            raise ConfigError(where, "a run with one vocabulary", f"{kind} for its {side}s", hint)
    return tables


def expect_tokenizer(origin: Origin | None, settings: Mapping[str, Any], task: TaskSettings) -> None:
    """Refuse tokenizer settings that differ from those of the reused tokenizer.

    Args:
        origin: the source of the tokenizer.
        settings: the settings of this training, nested.
        task: the task, whose tables these are.

    Raises:
        ConfigError: a setting differs.
    """
    if origin is None or "tokenizer" not in task.tables:
        return
    theirs, ours = origin_tables(origin, task).get("tokenizer", {}), settings.get("tokenizer", {})
    tokenizer = {**defaults_of(task.tables["tokenizer"]), **theirs}
    for name in ours:
        if name in tokenizer and ours[name] != tokenizer[name]:
            hint = "The tokenizer exists already: omit the setting, or do not use another run's tokenizer."
            expected = f"{'none' if tokenizer[name] is None else tokenizer[name]}, as in the tokenizer of the other run"
            raise ConfigError(name, expected, f"{ours[name]}", hint)


def first_tokenizer(out: Path, origin: Origin | None) -> Tokenizer | None:
    """Return the tokenizer to continue with: that of the run itself, else that of its origin; None if there is none
    yet.
    """
    newest = latest_complete(out, lambda text: None) if os.path.isdir(out) else None
    learned = None if newest is None else tokenizer_of(load_weights_later(newest))
    return origin.trained.tokenizer if learned is None and origin is not None else learned


def start_from(model: nn.Module, origin: Origin | None, labels: Sequence[str] = ()) -> None:
    """Copy the weights of the origin to a new model.

    Args:
        model: the model.
        origin: the source of weights, if any.
        labels: of a model that labels. Where a published model has others, or none, its output layer stays new, and so
            do layers before it that the published model lacks.

    Raises:
        CheckpointError: a tensor is missing, unexpected or of another shape; the message names them.
    """
    if origin is None or not origin.weights:
        return
    ours, theirs = model.state_dict(), dict(origin.trained.contents.model)
    if origin.trained.is_published and labels:
        if origin.trained.contents.config.get("labels") != list(labels):
            theirs = {name: tensor for name, tensor in theirs.items() if not name.startswith("output.")}
        new = [name for name in ours if name not in theirs and not name.startswith("reader.")]
        ours = {name: tensor for name, tensor in ours.items() if name not in new}
        if new:
            state(f"new, as {origin.trained.folder} has none for these labels: {', '.join(new)}")
    faults = [f"no {name}" for name in ours if name not in theirs]
    faults += [f"{name}, which this model does not have" for name in theirs if name not in ours]
    faults += [
        f"{name} of shape {tuple(theirs[name].shape)} in place of {tuple(tensor.shape)}"
        for name, tensor in ours.items()
        if name in theirs and theirs[name].shape != tensor.shape
    ]
    if faults:
        more = f" and {len(faults) - _MOST_FAULTS} more" if len(faults) > _MOST_FAULTS else ""
        hint = "Omit the settings that change the model, or train from scratch without " + setting("from") + "."
        got = f"in {origin.trained.folder}: {'; '.join(faults[:_MOST_FAULTS])}{more}"
        raise CheckpointError(_WHERE, "the tensors of this model", got, hint)
    model.load_state_dict(theirs, strict=False)


def origin_config(origin: Origin | None) -> dict[str, Any]:
    """Return what the origin adds to the configuration that defines a run."""
    if origin is None:
        return {}
    return {"from" if origin.weights else "tokenizer_from": origin.digest}
