"""The training loop: update, log, validate, save; started or resumed with the same bits."""

import math
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TextIO, final

import torch
from torch import nn

from qkv import forks
from qkv.checkpoint.folder import verify
from qkv.checkpoint.plain import Plain
from qkv.checkpoint.rotation import save_step, step_folder
from qkv.checkpoint.run import open_run
from qkv.errors import DataError
from qkv.linalg.heap import GrowthLimit
from qkv.metrics.figure import Figure
from qkv.training.board import Board
from qkv.training.curve import Curve
from qkv.training.events import Event, Listener, Logged, Said, Saved, Saving, Updated, Validated, Validating
from qkv.training.faults import not_finite, room, show_lines, weights_not_finite
from qkv.training.interrupts import Interrupted, Interrupts
from qkv.training.journal import Journal
from qkv.training.optimizer import clip_gradient, scale_gradient
from qkv.training.outcome import Outcome
from qkv.training.precision import computing
from qkv.training.protocols import Task
from qkv.training.schedules import learning_rate
from qkv.training.screen import screen
from qkv.training.seeds import undisturbed
from qkv.training.session import TrainingJob, TrainingSession, begin
from qkv.training.settings import Settings


def train(
    task: Task[Any],
    model: nn.Module,
    settings: Settings,
    *,
    run: Path,
    config: Mapping[str, Plain],
    tokenizer: str | None = None,
    free: Collection[str] = (),
    added: Mapping[str, Plain] | None = None,
    tensorboard: bool = False,
    stream: TextIO | None = None,
    every: bool = False,
    listeners: Sequence[Listener] = (),
) -> Outcome:
    """Train a model, or resume where an earlier call stopped.

    The run folder gets checkpoints (`step-00001000/`, `best`), `metrics.jsonl` and `loss.png`. SIGINT, SIGTERM and
    SIGHUP end the training at once, with everything saved up to the last complete update. A run that is stopped at any
    moment and resumed gives the same bits as an uninterrupted one, on the same machine with the same number of threads.

    Args:
        task: data, objective and evaluation.
        model: the task's model, on its device.
        settings: training settings.
        run: the run folder; it is created, or contains the run to resume.
        config: names and numbers from which the model can be rebuilt; they also identify the run.
        tokenizer: the tokenizer's JSON, stored with the checkpoints.
        free: dotted names in `config` that may change between two calls.
        added: dotted names in `config` that older runs lack, with the value those runs used.
        tensorboard: whether to also log to TensorBoard.
        stream: where progress goes; standard error by default.
        every: whether each update is a line of the progress.
        listeners: further listeners, which get every event of the training; closed at its end.

    Returns:
        How it ended; its `exit_code` is meant for the process.

    Raises:
        ConfigError: the run folder has another configuration, or a setting is invalid.
        CheckpointError: the run folder cannot be used, or no checkpoint in it can be loaded.
        DataError: there is nothing to train on.
        ForkError: this process was forked from one with threads that PyTorch would wait for.
        TrainingError: loss or gradient are not finite, or memory ran out; checkpoints are retained.
    """
    if forks.lost:
        forks.expect_threads("training")
    with open_run(run, config, free=free, added=added) as folder, Interrupts() as interrupts:
        shown = screen(sys.stderr if stream is None else stream, settings.steps, task.unit, every=every)
        told = [shown, *listeners]

        def say(text: str) -> None:
            shown(Said(text))

        with _closed(told):
            session = begin(TrainingJob(task, model, settings, config, tokenizer), folder, say)
            journal = Journal(folder, session.state.step, session.state.validated, say)
            told += [journal, Curve(folder, settings.monitor, say)]
            if tensorboard:
                told.append(Board(folder, session.state.step))
            return _Loop(session, folder, interrupts, told, journal.seconds).run()


@contextmanager
def _closed(listeners: Sequence[Listener]) -> Iterator[None]:
    """Close every listener at the end; the first error is the one that is raised."""
    first: BaseException | None = None
    try:
        yield
    except BaseException as error:
        first = error
    for listener in listeners:
        try:
            listener.close()
        except Exception as error:
            first = first or error
    if first is not None:
        raise first


@final
class _Clock:
    """Seconds and tokens since this process started training."""

    def __init__(self, step: int, before: float) -> None:
        self._start, self._first, self._before = time.monotonic(), step, before
        self.tokens, self.seconds = 0, 0.0

    def elapsed(self) -> float:
        return self._before + time.monotonic() - self._start

    def left(self, step: int, steps: int) -> float:
        return (steps - step) * (time.monotonic() - self._start) / max(1, step - self._first)

    def speed(self) -> float:
        """Return tokens per second since the last call, without the time between updates."""
        speed = self.tokens / self.seconds if self.seconds else 0.0
        self.tokens, self.seconds = 0, 0.0
        return speed


@final
class _Loop:
    """The part of a training that runs in one process."""

    def __init__(
        self, session: TrainingSession, run: Path, interrupts: Interrupts, listeners: Sequence[Listener], seconds: float
    ) -> None:
        self._session, self._run, self._interrupts, self._listeners = session, run, interrupts, listeners
        self._job, self._state, self._settings = session.job, session.state, session.job.settings
        self._parameters = [p for p in self._job.model.parameters() if p.requires_grad]
        self._device = self._parameters[0].device
        self._clock = _Clock(session.state.step, seconds)
        self._memory = GrowthLimit()
        self._figures = session.figures
        self._saved = session.origin
        self._digest = "" if self._saved is None else verify(self._saved).digest

    def run(self) -> Outcome:
        if self._state.step >= self._settings.steps:
            self._say(f"This run has already completed all {self._settings.steps:,} steps.")
        self._memory.release()
        try:
            reason = self._go_on()
        except Interrupted:
            reason = "interrupted"
        if reason == "interrupted":
            self._save_interrupted()
        return self._outcome(reason)

    def _go_on(self) -> Literal["finished", "patience", "interrupted"]:
        """Do what is due until nothing is left; validation first, because an interruption may have left one due."""
        while True:
            if self._validation_is_due():
                self._validate()
            if 0 < self._settings.patience <= self._state.waited:
                self._say(f"Ending at step {self._state.step:,}: no improvement in {self._state.waited} validations.")
                return "patience"
            if self._state.step >= self._settings.steps:
                return "finished"
            if self._interrupts.received is not None:
                return "interrupted"
            self._update()

    def _validation_is_due(self) -> bool:
        step = self._state.step
        due = step % self._settings.validate_every == 0 or step == self._settings.steps
        return due and step > self._state.validated

    def _update(self) -> None:
        start, step = time.monotonic(), self._state.step + 1
        with room(step, self._settings.batch_tokens):
            # However long an update takes, a signal need not wait for it: before the optimizer's step nothing has
            # changed.
            with self._session.put_back_if(Interrupted), self._interrupts.breakable():
                batches = self._session.feed.take(self._settings.accumulate)
                self._job.model.zero_grad(set_to_none=True)
                loss, count = self._accumulate(batches, step)
            scale_gradient(self._parameters, 1 / count)
            norm = clip_gradient(self._parameters, self._settings.clip)
            if not math.isfinite(norm):
                raise not_finite(self._job.task, batches, step, "norm of the gradient", norm)
            rate = learning_rate(self._settings, step)
            for group in self._session.optimizer.param_groups:
                group["lr"] = rate
            self._session.optimizer.step()
            self._memory.after_pass()
        self._count(step, loss, count, time.monotonic() - start)
        self._tell(Updated(step, loss / count))
        if step % self._settings.log_every == 0 or step == self._settings.steps:
            self._log(rate, norm)

    def _accumulate(self, batches: Sequence[Sequence[int]], step: int) -> tuple[float, int]:
        total, count = 0.0, 0
        for places in batches:
            batch = self._job.task.collate(places)
            with computing(self._state.precision, self._device):
                loss, counted = self._job.task.objective(batch)
            value = float(loss.detach())
            if not math.isfinite(value):
                raise not_finite(self._job.task, [places], step, "loss", value)
            loss.backward()  # type: ignore[no-untyped-call]
            total, count = total + value, count + counted
        if count < 1:
            lines = show_lines(self._job.task.lines([place for places in batches for place in places]))
            hint = "Remove these lines."
            raise DataError("training data", "at least one token to learn in every batch", f"nothing in {lines}", hint)
        return total, count

    def _count(self, step: int, loss: float, count: int, seconds: float) -> None:
        state, clock = self._state, self._clock
        state.step, state.tokens = step, state.tokens + count
        state.window_loss, state.window_count = state.window_loss + loss, state.window_count + count
        clock.tokens, clock.seconds = clock.tokens + count, clock.seconds + seconds

    def _log(self, rate: float, norm: float) -> None:
        state = self._state
        self._tell(
            Logged(
                step=state.step,
                epoch=self._session.feed.epoch,
                loss=state.window_loss / state.window_count,
                learning_rate=rate,
                gradient_norm=norm,
                tokens_per_second=self._clock.speed(),
                seconds=self._clock.elapsed(),
                seconds_left=self._clock.left(state.step, self._settings.steps),
            )
        )
        state.window_loss, state.window_count = 0.0, 0

    def _validate(self) -> None:
        model = self._job.model
        self._tell(Validating(self._state.step))
        model.eval()
        # Tensors of validation have other sizes than those of training, and fit few of their free blocks.
        self._memory.release()
        try:
            with undisturbed(), torch.no_grad(), self._interrupts.breakable():
                figures = tuple(self._job.task.validate())
        finally:
            self._memory.release()
            model.train()
        better = self._state.judge(figures, self._settings.monitor)
        self._figures = figures
        self._tell(Validated(self._state.step, figures, better))
        self._save(figures, better)

    def _save(self, figures: Sequence[Figure], better: bool) -> None:
        saved = self._store(figures, better)
        self._tell(saved)

    def _store(self, figures: Sequence[Figure], better: bool) -> Saved:
        step = self._state.step
        fault = weights_not_finite(self._job.model, step)
        if fault is not None:
            raise fault
        contents = self._session.contents(figures)
        self._tell(Saving(step))
        self._digest = save_step(self._run, step, contents, keep=self._settings.keep, best=better).digest
        self._saved = step_folder(self._run, step)
        return Saved(step, self._saved)

    def _save_interrupted(self) -> None:
        step = self._state.step
        if self._saved != step_folder(self._run, step):
            self._tell(self._store((), better=False))
        self._say(
            f"Stopped at step {step:,} of {self._settings.steps:,}; everything is saved in {self._saved}. "
            "Run the same command again to resume."
        )

    def _outcome(self, reason: Literal["finished", "patience", "interrupted"]) -> Outcome:
        assert self._saved is not None
        state = self._state
        return Outcome(
            reason=reason,
            step=state.step,
            checkpoint=self._saved,
            digest=self._digest,
            figures=self._figures,
            best=state.best,
            best_step=state.best_step,
            signal=self._interrupts.received if reason == "interrupted" else None,
        )

    def _say(self, text: str) -> None:
        self._tell(Said(text))

    def _tell(self, event: Event) -> None:
        for listener in self._listeners:
            listener(event)
