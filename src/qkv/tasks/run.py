"""Train any task: for commands, for `qkv.train`, and in the processes that they start.

`train` takes names and values, checks them, and finds the processes; `train_run` reads, builds, and lets the trainer
(`qkv.training.trainer`) train.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from qkv.data.batches import device_of
from qkv.errors import ConfigError, QkvError, on_command_line, setting, spelled
from qkv.nn.first_batch import start_from_first_batch
from qkv.nn.mechanism import MechanismConfig
from qkv.normalizers.kinds import BLURRED
from qkv.settings import merge
from qkv.tasks.catalog import recipe_of
from qkv.tasks.corpora.prepared import with_corpus
from qkv.tasks.launch import as_plain, expect_count, joined, meet
from qkv.tasks.listeners import listeners
from qkv.tasks.notes import note, progress, verbose, working
from qkv.tasks.origin import (
    Origin,
    expect_tokenizer,
    first_tokenizer,
    open_origin,
    origin_config,
    origin_tables,
    start_from,
)
from qkv.tasks.recipe import AnyRecipe, Recipe, Tables
from qkv.tasks.run_folder import (
    CHANGEABLE,
    OLDER_DEFAULTS,
    expect_same_run,
    files_read,
    run_folder,
    store,
    with_parts,
    with_steps,
)
from qkv.tasks.tokenizing import Unknown, as_learned, expect_known
from qkv.training import trainer
from qkv.training.batches import batches_of, first_batches
from qkv.training.events import Outcome
from qkv.training.protocols import Task
from qkv.training.screen import show_figures
from qkv.training.seeds import seed_everything, undisturbed
from qkv.training_settings import Settings as Training
from qkv.values.catalog import as_flag
from qkv.values.devices import as_device

_MEASURED = 3.0
"""For how many seconds updates are timed."""


def checked(
    recipe: AnyRecipe, tables: Tables, start: Path | None = None, tokenizer_from: Path | None = None
) -> tuple[Tables, Any, Origin | None]:
    """Check the requested settings, which override those of the run that training starts from.

    Args:
        recipe: the task.
        tables: what is asked for.
        start: the run whose weights and tokenizer are used, if any.
        tokenizer_from: the run whose tokenizer alone is used, if any.

    Returns:
        The tables, completed by those of that run and of a prepared corpus; all settings; and that run.

    Raises:
        QkvError: a setting is wrong, or contradicts that run or the prepared corpus.
    """
    task = recipe.settings
    origin = open_origin(start, task.name, tokenizer_from)
    tables = with_corpus(merge(origin_tables(origin, task), tables), task)
    expect_tokenizer(origin, tables, task)
    return tables, recipe.load_settings(tables), origin


def train(
    recipe: AnyRecipe,
    tables: Tables,
    out: Path | None,
    *,
    start: Path | None = None,
    tokenizer_from: Path | None = None,
    device: str = "cpu",
    processes: int | None = None,
    tensorboard: bool = False,
    instead: Exception | None = None,
) -> Outcome:
    """Train, or resume, in this process and in those that share its updates.

    Args:
        recipe: the task.
        tables: settings.
        out: the run folder.
        start, tokenizer_from: the runs to start from, as for `checked`.
        device: compute device.
        processes: how many of this machine; None for those of `torchrun`, or one.
        tensorboard: whether to also log to TensorBoard.
        instead: what other processes than the first raise in place of an error, which the first one reports.

    Raises:
        QkvError: any bad input, or another process has ended.
    """
    number = expect_count(processes, recipe.settings)
    if number is not None and number > 1:
        tables = {table: {name: as_plain(item, name) for name, item in rows.items()} for table, rows in tables.items()}
    tables, settings, origin = checked(recipe, tables, start, tokenizer_from)
    work = partial(_train_by_name, recipe.settings.name, tables, out, start, tokenizer_from)
    with meet(number, device, work) as all_processes:
        try:
            with joined(all_processes):
                return train_run(recipe, settings, out, device, tensorboard=tensorboard, origin=origin)
        except QkvError:
            if all_processes.rank and instead is not None:
                raise instead from None
            raise


def _train_by_name(task: str, tables: Tables, out: Path | None, *origins: Path | None) -> None:
    """Train in a process that another one started."""
    recipe = recipe_of(task)
    _, settings, origin = checked(recipe, tables, *origins)
    train_run(recipe, settings, out, origin=origin)


def train_run(
    recipe: AnyRecipe,
    settings: Any,
    out: Path | None,
    device: str = "cpu",
    *,
    tensorboard: bool = False,
    origin: Origin | None = None,
) -> Outcome:
    """Train a model, or each one of an ensemble, or resume; fitting a model again saves an equal one.

    Args:
        recipe: the task.
        settings: files, tokens, model, training, as `Recipe.load_settings` returns them.
        out: the run folder; for an ensemble the folder of its runs, one for each member.
        device: compute device; a model that is fitted at once is fitted on the CPU.
        tensorboard: whether to also log the training to TensorBoard.
        origin: the run that provides initial weights and tokenizer; None to train from scratch.

    Returns:
        How it ended; of an ensemble, the last member that was trained.

    Raises:
        QkvError: any bad input; nothing already saved is lost.
    """
    for its_settings, folder in recipe.runs(settings, run_folder(out)):
        outcome = _train_one(recipe, its_settings, folder, device, tensorboard, origin)
        if outcome.exit_code:
            break
    return outcome


def _train_one(
    recipe: AnyRecipe, settings: Any, folder: Path, device: str, tensorboard: bool, origin: Origin | None
) -> Outcome:
    """Read, build and train one model: what it is trained on is checked before anything is computed."""
    compute_device = as_device(device)
    is_trained = "training" in recipe.settings.tables
    if is_trained:
        settings = replace(settings, training=with_parts(settings.training, folder))
    tables = recipe.stored(settings)
    # Those of the tokenizer can follow from the text.
    expect_same_run(folder, recipe.settings.name, {name: tables[name] for name in tables if name != "tokenizer"})
    reads_text = "tokenizer" in recipe.settings.tables
    tokenizer = first_tokenizer(folder, origin) if reads_text else None
    with working("reading the text"):
        task: Any = recipe.read(settings, tokenizer)
    unknown: Sequence[Unknown] = task.count_unknown()
    expect_known(unknown)
    if reads_text:
        task = replace(task, chosen=replace(settings, tokenizer=as_learned(settings.tokenizer, task.tokenizer)))
    task = task.adapted(origin)
    task = replace(task, chosen=task.completed())
    if not is_trained:
        return _fit(task, folder, origin)
    seed_everything(settings.training.seed)  # it determines the initial weights too
    model = task.build().to(compute_device)
    start_from(model, origin, getattr(task, "labels", ()))
    training = _with_steps(task.chosen.training, task, model, folder)
    task = replace(task, chosen=replace(task.chosen, training=training))
    if origin is None or not origin.weights:
        with working("computing the first batch"):
            start_from_first_batch(model, lambda: first_objective(task, model, training))
    vocabulary = [_vocabulary(task.tokenizer.size, unknown)] if reads_text else []
    note("; ".join([task.summary(model), *vocabulary, _size(model)]))
    warn_of_mechanisms(settings.model)
    # PyTorch's optimizers import its compiler, which takes seconds. Imported here, a signal ends the process at
    # once, because there is nothing to save yet; within the loop it would have to wait for the import.
    from torch import _dynamo  # noqa: F401

    return trainer.train(
        task,
        model,
        training,
        run=folder,
        config={**_config(task), **origin_config(origin)},
        tokenizer=task.tokenizer.to_json() if reads_text else None,
        free=CHANGEABLE,
        added=OLDER_DEFAULTS,
        files=files_read(settings.data),
        tensorboard=tensorboard,
        stream=progress(),
        every=verbose(),
        listeners=listeners(),
    )


def _fit(task: Recipe[Any, Any, Any], folder: Path, origin: Origin | None) -> Outcome:
    """Build, judge and save a model that is complete once it is built."""
    if origin is not None:
        hint = "It is fitted from its data alone."
        raise ConfigError(setting("from"), f"none for {task.settings.name}", str(origin.trained.folder), hint)
    with working("fitting"):
        model = task.build()
    with working("judging the fit"):
        figures = task.validate(model)
    outcome = store(model, figures, folder, _config(task), files_read(task.chosen.data))
    note(f"{task.summary(model)}: {show_figures(outcome.figures)}")
    return outcome


def _config(task: Recipe[Any, Any, Any]) -> dict[str, Any]:
    """Return what defines a run: its settings, and the text itself in place of its files."""
    identity = task.identity()
    for name in ("task", *task.settings.tables):
        if name in identity:
            raise ConfigError("identity", "names that are no table's", f'"{name}"', "Give it another name.")
    return {"task": task.settings.name, **identity, **task.stored(task.chosen)}


def _size(model: nn.Module) -> str:
    count = sum(parameter.numel() for parameter in model.parameters())
    return f"{count / 1e6:.1f} million parameters" if count >= 1_000_000 else f"{count:,} parameters"


def _vocabulary(size: int, parts: Sequence[Unknown]) -> str:
    unknown = sum(part.unknown for part in parts if part.part.startswith("training"))
    detail = f" ({unknown:,} of the training tokens unknown)" if unknown else ""
    return f"vocabulary of {size:,}{detail}"


def _with_steps(training: Training, task: Task[Any], model: nn.Module, folder: Path) -> Training:
    """Return the settings with as many steps as the epochs or minutes have, if those are counted."""
    if training.epochs is not None:
        with working("counting the batches of an epoch"):
            batches = batches_of(task, training, 0).total()
        return replace(training, steps=training.epochs * -(-batches // training.accumulate))
    if training.minutes is None:
        return training
    seconds = min(_MEASURED, 6 * training.minutes)  # at most a tenth

    def measured() -> float:
        with working("timing updates"):
            return trainer.Trainer(task, model, training, {}).seconds_of_update(seconds, time.perf_counter)

    return with_steps(training, folder, measured)


def first_objective(task: Task[Any], model: nn.Module, training: Training) -> None:
    """Compute the objective of the first batch; random generators are restored."""
    with undisturbed():
        (batch,) = first_batches(task, training, 1)
        task.objective(model, task.collate(batch, device_of(model)))


def warn_of_mechanisms(config: object) -> None:
    """Warn once on standard error of each thing that keeps a mechanism from learning where to look."""
    parts = (config, getattr(config, "cross", None), getattr(config, "encoding", None))
    mechanisms = [mechanism for mechanism in parts if isinstance(mechanism, MechanismConfig)]
    names = [mechanism.without_gradient for mechanism in mechanisms if mechanism.without_gradient]
    if names:
        flag = spelled(names[0], on_command_line)
        note(f"qkv: warning: {flag} gives its scores no gradient: what they compare stays as it is initialized.")
    blurred = [mechanism.score for mechanism in mechanisms if mechanism.blurs]
    if blurred:
        flags = (on_command_line("score", as_flag(blurred[0])), on_command_line("normalizer", "softmax"))
        note(f"qkv: warning: {' '.join(flags)}: {BLURRED}")
