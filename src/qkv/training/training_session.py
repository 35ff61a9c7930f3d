"""The complete state of a training at one moment: new, or restored from a checkpoint."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from qkv.checkpoint.contents import Contents, TrainerState
from qkv.checkpoint.folder import load
from qkv.checkpoint.json_values import JsonValue
from qkv.checkpoint.rotation import best_step, latest_complete, mark_best, steps
from qkv.compiled import target
from qkv.errors import CheckpointError, harmless, on_command_line, setting
from qkv.files import FREE, room_for
from qkv.metrics.figure import Figure
from qkv.training.feed import Feed
from qkv.training.optimizer import build_optimizer, optimizer_state, set_optimizer_state
from qkv.training.precision import choose
from qkv.training.protocols import Task
from qkv.training.schedules import learning_rate
from qkv.training.seeds import generators, seed_everything, set_generators
from qkv.training.settings import Settings
from qkv.training.state import State, Sums, read_fingerprint, read_state

_SAME_RATE = 1.1
"""The ratio up to which two learning rates count as the same."""


@final
@dataclass(frozen=True, eq=False)
class TrainingJob:
    """What to train, and how.

    Args:
        task: data, objective and evaluation.
        model: the task's model, on its device.
        settings: training settings.
        config: names and numbers from which the model can be rebuilt.
        tokenizer: the tokenizer's JSON, stored with the checkpoints.
    """

    task: Task[Any]
    model: nn.Module
    settings: Settings
    config: Mapping[str, JsonValue]
    tokenizer: str | None = None


@final
@dataclass(frozen=True, eq=False)
class TrainingSession:
    """A training job and its current state.

    Args:
        job: what is trained.
        optimizer: the optimizer with its moments.
        feed: the position in the data.
        state: everything else.
        restored_from: the checkpoint it was restored from; None if new.
        figures: metrics of that checkpoint.
    """

    job: TrainingJob
    optimizer: Optimizer
    feed: Feed
    state: State
    restored_from: Path | None = None
    figures: tuple[Figure, ...] = ()

    def contents(self, figures: Sequence[Figure]) -> Contents:
        """Collect the contents of a checkpoint.

        Args:
            figures: metrics of the current weights.

        Returns:
            The contents.
        """
        self.state.epoch, self.state.position = self.feed.epoch, self.feed.position
        tensors = optimizer_state(self.job.model, self.optimizer) | generators()
        trainer = TrainerState(tensors, self.state.to_json_value(self.feed.fingerprint()))
        weights = self.job.model.state_dict()
        return Contents(weights, self.job.config, self.job.tokenizer, trainer, tuple(figures))

    @contextmanager
    def restore_after(self, exception: type[BaseException]) -> Iterator[None]:
        """Restore the data position, every generator and the model's buffers if the code inside is interrupted.

        Args:
            exception: the class of the exception that interrupts it; it is raised again.
        """
        epoch, batch, random = self.feed.epoch, self.feed.position, generators()
        buffers = [(buffer, buffer.clone()) for buffer in _copied_buffers(self.job.model)]
        try:
            yield
        except exception:
            self.feed.go_to(epoch, batch)
            set_generators(random)
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)
            raise


def begin(job: TrainingJob, run: Path, say: Callable[[str], None]) -> TrainingSession:
    """Resume a run from its newest complete checkpoint, or start it.

    Args:
        job: what to train; its model's weights are replaced if there is a checkpoint.
        run: an open run folder.
        say: called with messages about what was found and chosen.

    Returns:
        The session.

    Raises:
        CheckpointError: there are checkpoints, but none from which training can resume.
        DataError: there is nothing to train on.
    """
    job.model.train()
    newest = latest_complete(run, say)
    return _new_session(job, say) if newest is None else _resumed_session(job, run, newest, say)


def _new_session(job: TrainingJob, say: Callable[[str], None]) -> TrainingSession:
    settings = job.settings
    seed_everything(settings.seed)
    state = State(threads=torch.get_num_threads(), arithmetic=_arithmetic(), sums=_sums(settings))
    if settings.precision == "auto":
        batches = Feed(job.task, settings).take(3)
        state.precision = choose(job.task, job.model, batches, say)
    else:
        state.precision = settings.precision
    return TrainingSession(job, build_optimizer(job.model, settings), Feed(job.task, settings), state)


def _arithmetic() -> str:
    """Describe what determines the last bits of results: compiled kernels, and the instruction set PyTorch uses."""
    choice = target.choose()
    kernels = choice.target.name if choice.target is not None else target.PYTHON if choice.python else target.NONE
    return f"Kernels: {kernels}, PyTorch: {torch.backends.cpu.get_cpu_capability()}"


def _sums(settings: Settings) -> Sums:
    """Return in which order a new run adds the gradients of an update's parts."""
    return "tree" if settings.parts_of_update > 1 else "sequence"


def _resumed_session(job: TrainingJob, run: Path, folder: Path, say: Callable[[str], None]) -> TrainingSession:
    contents = load(folder)
    if contents.trainer is None:
        hint = f"Give another {setting('out')}, or remove this checkpoint to resume from an earlier one."
        raise CheckpointError(str(folder), "a checkpoint with the trainer's state", "a checkpoint without it", hint)
    state = read_state(contents.trainer.numbers)
    _set_weights(job.model, contents.model, folder)
    optimizer = build_optimizer(job.model, job.settings)
    set_optimizer_state(job.model, optimizer, contents.trainer.tensors)
    feed = Feed(job.task, job.settings, state.epoch, state.position)
    feed.check(read_fingerprint(contents.trainer.numbers))
    set_generators(contents.trainer.tensors)
    say(f"Resuming from {folder.name} in {run}.")
    threads = torch.get_num_threads()
    if threads != state.threads:
        say(f"PyTorch now has {threads} threads instead of {state.threads}: the last bits of the result may differ.")
        state.threads = threads
    if state.arithmetic not in ("", arithmetic := _arithmetic()):
        say(f"{arithmetic} instead of {harmless(state.arithmetic[:80])}: the last bits of the result may differ.")
    state.arithmetic = arithmetic
    _report_schedule(job, contents.config, state.step, folder, say)
    _point_to_best(run, state)
    return TrainingSession(job, optimizer, feed, state, folder, tuple(contents.figures))


def _report_schedule(
    job: TrainingJob, before: Mapping[str, JsonValue], step: int, folder: Path, say: Callable[[str], None]
) -> None:
    """Say that another number of steps moves the learning rate of the next update, and how to keep it."""
    settings, table = job.settings, before.get("training")
    steps = table.get("steps") if isinstance(table, Mapping) else None
    if not isinstance(steps, int) or not 0 < step < settings.steps:
        return
    # A schedule that was finished stays at its end: the rate of its last update.
    planned = learning_rate(replace(settings, steps=steps), min(step + 1, steps))
    rate = learning_rate(settings, step + 1)
    if max(rate, planned) <= _SAME_RATE * min(rate, planned):
        return
    flags = {"from": str(folder), "schedule": "constant", "learning_rate": f"{planned:.2g}", "warmup": "0"}
    say(
        f"With {settings.steps:,} steps in place of {steps:,}, the {settings.schedule} schedule moves the learning "
        f"rate from {planned:.2g} to {rate:.2g} at step {step + 1:,}. To train on at {planned:.2g} instead, stop and "
        f"start a new run: {' '.join(on_command_line(name, text) for name, text in flags.items())}"
    )


def _set_weights(model: nn.Module, tensors: Mapping[str, Tensor], folder: Path) -> None:
    try:
        with room_for(folder, FREE):
            model.load_state_dict(dict(tensors))
    except RuntimeError as error:
        hint = f"Build the same model that was trained, or give another {setting('out')}."
        raise CheckpointError(str(folder), "the weights of this model", str(error), hint) from error


def _copied_buffers(model: nn.Module) -> Iterator[Tensor]:
    """Yield the buffers that a checkpoint stores besides the parameters, without tables that can be recomputed."""
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if name not in module._non_persistent_buffers_set:
                yield buffer


def _point_to_best(run: Path, state: State) -> None:
    # The process may have ended between a checkpoint and its pointer, or the newest checkpoint may be damaged.
    try:
        pointed = best_step(run)
    except CheckpointError:
        pointed = None
    if pointed != state.best_step and state.best_step in steps(run):
        mark_best(run, state.best_step)
