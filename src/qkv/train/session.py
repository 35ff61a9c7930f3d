"""Everything that a training consists of at one moment: begun anew, or put back from a checkpoint."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from qkv.checkpoint.contents import Contents, TrainerState
from qkv.checkpoint.folder import load
from qkv.checkpoint.plain import Plain
from qkv.checkpoint.rotation import best_step, latest_complete, mark_best, steps
from qkv.errors import CheckpointError, error_message
from qkv.metrics.figure import Figure
from qkv.train.feed import Feed
from qkv.train.optimizer import build_optimizer, optimizer_state, set_optimizer_state
from qkv.train.precision import choose
from qkv.train.protocols import Task
from qkv.train.seeds import generators, seed_everything, set_generators
from qkv.train.settings import Settings
from qkv.train.state import State, fingerprint, read_state


@final
@dataclass(frozen=True, eq=False)
class Job:
    """What is to be trained, and how.

    Args:
        task: data, objective and judgment.
        model: the task's model, on its device.
        settings: how to train.
        config: names and numbers from which the model can be built again.
        tokenizer: the tokenizer's JSON, to be kept with the checkpoints.
    """

    task: Task[Any]
    model: nn.Module
    settings: Settings
    config: Mapping[str, Plain]
    tokenizer: str | None = None


@final
@dataclass(frozen=True, eq=False)
class Session:
    """A job at one moment.

    Args:
        job: what is trained.
        optimizer: with its moments.
        feed: where the data stand.
        state: where everything else stands.
        origin: the checkpoint that it came from; None where it begins anew.
        figures: that were measured on it.
    """

    job: Job
    optimizer: Optimizer
    feed: Feed
    state: State
    origin: Path | None = None
    figures: tuple[Figure, ...] = ()

    def contents(self, figures: Sequence[Figure]) -> Contents:
        """Gather what a checkpoint holds.

        Args:
            figures: measured on these very weights.

        Returns:
            The contents.
        """
        self.state.epoch, self.state.place = self.feed.epoch, self.feed.place
        tensors = optimizer_state(self.job.model, self.optimizer) | generators()
        trainer = TrainerState(tensors, self.state.to_plain(self.feed.fingerprint()))
        weights = self.job.model.state_dict()
        return Contents(weights, self.job.config, self.job.tokenizer, trainer, tuple(figures))

    @contextmanager
    def put_back_if(self, broken: type[BaseException]) -> Iterator[None]:
        """Where what happens inside is broken off, let all stand where it stood before: the data, every generator, and
        what the model itself counts while it computes.

        Args:
            broken: what it is broken off by; it goes on from here.
        """
        epoch, place, kept = self.feed.epoch, self.feed.place, generators()
        buffers = [(buffer, buffer.clone()) for buffer in _kept_buffers(self.job.model)]
        try:
            yield
        except broken:
            self.feed.go_to(epoch, place)
            set_generators(kept)
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)
            raise


def begin(job: Job, run: Path, say: Callable[[str], None]) -> Session:
    """Go on with a run from its newest complete checkpoint, or begin it.

    Args:
        job: what is to be trained; its model's weights are replaced where there is a checkpoint.
        run: an open run folder.
        say: is told what was found and chosen.

    Returns:
        The session.

    Raises:
        CheckpointError: there are checkpoints, but none can be gone on with.
        DataError: there is nothing to train on.
    """
    job.model.train()
    found = latest_complete(run, say)
    return _anew(job, say) if found is None else _resumed(job, run, found, say)


def _anew(job: Job, say: Callable[[str], None]) -> Session:
    settings = job.settings
    seed_everything(settings.seed)
    state = State(threads=torch.get_num_threads())
    if settings.precision == "auto":
        few = Feed(job.task, settings).take(3)
        state.precision = choose(job.task, job.model, few, say)
    else:
        state.precision = settings.precision
    return Session(job, build_optimizer(job.model, settings), Feed(job.task, settings), state)


def _resumed(job: Job, run: Path, folder: Path, say: Callable[[str], None]) -> Session:
    contents = load(folder)
    if contents.trainer is None:
        hint = "Give another --out, or remove this checkpoint to go on from an earlier one."
        raise CheckpointError(error_message(str(folder), "a checkpoint with the trainer's state", "one without", hint))
    state = read_state(contents.trainer.numbers)
    _set_weights(job.model, contents.model, folder)
    optimizer = build_optimizer(job.model, job.settings)
    set_optimizer_state(job.model, optimizer, contents.trainer.tensors)
    feed = Feed(job.task, job.settings, state.epoch, state.place)
    feed.check(fingerprint(contents.trainer.numbers))
    set_generators(contents.trainer.tensors)
    say(f"Going on from {folder.name} in {run}.")
    threads = torch.get_num_threads()
    if threads != state.threads:
        say(f"PyTorch has {threads} threads now, it had {state.threads}: the last bits of the result may differ.")
        state.threads = threads
    _point_to_best(run, state)
    return Session(job, optimizer, feed, state, folder, tuple(contents.figures))


def _set_weights(model: nn.Module, tensors: Mapping[str, Tensor], folder: Path) -> None:
    try:
        model.load_state_dict(dict(tensors))
    except RuntimeError as error:
        hint = "Build the same model that was trained, or give another --out."
        raise CheckpointError(error_message(str(folder), "the weights of this model", str(error), hint)) from error


def _kept_buffers(model: nn.Module) -> Iterator[Tensor]:
    """What a checkpoint keeps beside the parameters; tables that are made anew are none of it."""
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if name not in module._non_persistent_buffers_set:
                yield buffer


def _point_to_best(run: Path, state: State) -> None:
    # The process may have ended between a checkpoint and its pointer, or the pointer may be ahead of a damaged one.
    try:
        pointed = best_step(run)
    except CheckpointError:
        pointed = None
    if pointed != state.best_step and state.best_step in steps(run):
        mark_best(run, state.best_step)
