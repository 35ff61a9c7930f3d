"""The training loop: update, log, validate, save; started or resumed with the same bits."""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, TextIO, final

import torch
from torch import nn

from qkv import forks
from qkv.checkpoint.folder import verify
from qkv.checkpoint.json_values import JsonValue
from qkv.checkpoint.rotation import save_step, step_folder
from qkv.checkpoint.run import open_run
from qkv.linalg.heap import GrowthLimit
from qkv.metrics.figure import Figure
from qkv.training.curve import Curve
from qkv.training.events import (
    Event,
    Listener,
    Logged,
    Outcome,
    Reason,
    Said,
    Saved,
    Saving,
    Updated,
    Validated,
    Validating,
)
from qkv.training.faults import suggest_smaller_batches, weights_not_finite
from qkv.training.followers import Order, expect_same_job, expect_same_weights, follow, send
from qkv.training.interrupts import Interrupted, Interrupts
from qkv.training.journal import Journal
from qkv.training.processes import Processes, current, expect_enough
from qkv.training.protocols import Task
from qkv.training.screen import screen, show_figures
from qkv.training.seeds import undisturbed
from qkv.training.settings import Settings
from qkv.training.tensorboard import Board
from qkv.training.training_session import TrainingJob, TrainingSession, begin
from qkv.training.update import Gradient, Updates


def train(
    task: Task[Any],
    model: nn.Module,
    settings: Settings,
    *,
    run: Path,
    config: Mapping[str, JsonValue],
    tokenizer: str | None = None,
    free: Collection[str] = (),
    added: Mapping[str, JsonValue] | None = None,
    files: Mapping[str, str] = MappingProxyType({}),
    tensorboard: bool = False,
    stream: TextIO | None = None,
    every: bool = False,
    listeners: Sequence[Listener] = (),
) -> Outcome:
    """Train a model, or resume where an earlier call stopped.

    The run folder gets checkpoints (`step-00001000/`, `best`), `metrics.jsonl` and `loss.png`. SIGINT, SIGTERM and
    SIGHUP end the training at once, with everything saved up to the last complete update. A run that is stopped at any
    moment and resumed gives the same bits as an uninterrupted one, on the same machine with the same number of threads.
    Of several processes (`qkv.training.processes`) that train together, each returns how the training ended; the first
    one alone uses the run folder.

    Args:
        task: data, objective and evaluation.
        model: the task's model, on its device.
        settings: training settings.
        run: the run folder; it is created, or contains the run to resume.
        config: names and numbers from which the model can be rebuilt; they also identify the run.
        tokenizer: the tokenizer's JSON, stored with the checkpoints.
        free: dotted names in `config` that may change between two calls.
        added: dotted names in `config` that older runs lack, with the value those runs used.
        files: dotted names in `config` that are the sha256 of what was read, with the files as the user gave them.
        tensorboard: whether to also log to TensorBoard.
        stream: where progress goes; standard error by default.
        every: whether the progress has a line for each update.
        listeners: further listeners, which get every event of the training; closed at its end.

    Returns:
        How it ended; its `exit_code` is meant for the process.

    Raises:
        ConfigError: the run folder has another configuration, a setting is invalid, or there are more processes than
            batches in an update.
        CheckpointError: the run folder cannot be used, or no checkpoint in it can be loaded.
        DataError: there is nothing to train on.
        ForkError: this process was forked from one with threads that PyTorch would wait for.
        TrainingError: loss or gradient are not finite, or memory ran out; checkpoints are retained.
    """
    if forks.lost:
        forks.expect_threads("training")
    job, processes = TrainingJob(task, model, settings, config, tokenizer), current()
    expect_enough(processes, settings)
    if not processes.leads:
        return follow(job, processes, run)
    with open_run(run, config, free=free, added=added, files=files) as folder, Interrupts() as interrupts:
        screen_listener = screen(stream, settings.steps, task.unit, every=every)
        all_listeners = [screen_listener, *listeners]

        def say(text: str) -> None:
            screen_listener(Said(text))

        with _closed(all_listeners):
            expect_same_job(job, processes)
            session = begin(job, folder, say)
            send(session, processes)
            journal = Journal(folder, session.state.step, session.state.validated, say)
            all_listeners += [journal, Curve(folder, settings.monitor, say)]
            if tensorboard:
                all_listeners.append(Board(folder, session.state.step))
            return _Loop(session, folder, interrupts, all_listeners, journal.seconds, processes).run()


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

    def seconds_left(self, step: int, steps: int) -> float:
        return (steps - step) * (time.monotonic() - self._start) / max(1, step - self._first)

    def speed(self) -> float:
        """Return tokens per second since the last call, without the time between updates."""
        speed = self.tokens / self.seconds if self.seconds else 0.0
        self.tokens, self.seconds = 0, 0.0
        return speed


@final
class _Loop:
    """The part of a training that only process 0 runs."""

    def __init__(
        self,
        session: TrainingSession,
        run: Path,
        interrupts: Interrupts,
        listeners: Sequence[Listener],
        seconds: float,
        processes: Processes,
    ) -> None:
        self._session, self._run, self._interrupts, self._listeners = session, run, interrupts, listeners
        self._job, self._state, self._settings = session.job, session.state, session.job.settings
        self._processes = processes
        self._updates = Updates(session, processes)
        self._clock = _Clock(session.state.step, seconds)
        self._memory = GrowthLimit()
        self._figures = session.figures
        self._tied = False
        self._saved = session.restored_from
        self._digest = "" if self._saved is None else verify(self._saved).digest

    def run(self) -> Outcome:
        if self._state.step >= self._settings.steps:
            step, steps = self._state.step, self._settings.steps
            amount = f"all {steps:,} steps" if step == steps else f"{step:,} steps, more than the {steps:,} asked for"
            self._say(f"This run has already completed {amount}.")
        self._memory.release()
        try:
            reason = self._run_until_done()
        except Interrupted:
            reason = "interrupted"
        if reason == "interrupted":
            self._save_interrupted()
        outcome = self._outcome(reason)
        Order("end", reason, outcome.signal or 0).send(self._processes)
        return outcome

    def _run_until_done(self) -> Reason:
        """Update, validate and save until the end; validation first, because an interruption may have left one due."""
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
        Order("update").send(self._processes)
        with suggest_smaller_batches(step, self._settings.batch_tokens):
            with self._breakable():
                gradient = self._updates.differentiate(step)
            rate, norm = self._updates.apply(gradient, step)
            self._memory.after_pass()
        self._count(gradient, time.monotonic() - start)
        self._notify(Updated(step, gradient.loss / gradient.units))
        if step % self._settings.log_every == 0 or step == self._settings.steps:
            self._log(rate, norm)

    @contextmanager
    def _breakable(self) -> Iterator[None]:
        """Let a signal interrupt an update of a single process.

        A signal need not wait for a long update: nothing has changed before the optimizer's step. With several
        processes it must, because the others would wait for this one.
        """
        if self._processes.size > 1:
            yield
            return
        with self._session.restore_after(Interrupted), self._interrupts.breakable():
            yield

    def _count(self, gradient: Gradient, seconds: float) -> None:
        state, clock, count = self._state, self._clock, gradient.units
        state.window_loss, state.window_count = state.window_loss + gradient.loss, state.window_count + count
        clock.tokens, clock.seconds = clock.tokens + count, clock.seconds + seconds

    def _log(self, rate: float, norm: float) -> None:
        state = self._state
        self._notify(
            Logged(
                step=state.step,
                epoch=self._session.feed.epoch,
                loss=state.window_loss / state.window_count,
                learning_rate=rate,
                gradient_norm=norm,
                tokens_per_second=self._clock.speed(),
                seconds=self._clock.elapsed(),
                seconds_left=self._clock.seconds_left(state.step, self._settings.steps),
            )
        )
        state.window_loss, state.window_count = 0.0, 0

    def _validate(self) -> None:
        model = self._job.model
        self._notify(Validating(self._state.step))
        model.eval()
        # Validation needs tensors of other sizes, which fit few of the free blocks of training.
        self._memory.release()
        try:
            with undisturbed(), torch.no_grad(), self._interrupts.breakable():
                figures = tuple(self._job.task.validate())
        finally:
            self._memory.release()
            model.train()
        previous = self._state.best
        better = self._state.judge(figures, self._settings.monitor)
        self._figures = figures
        self._report_tie(previous, better)
        self._notify(Validated(self._state.step, figures, better))
        self._save(figures, better)

    def _report_tie(self, previous: Figure | None, better: bool) -> None:
        """Say once that the monitored figure has stopped to distinguish checkpoints."""
        best = self._state.best
        if better and previous is not None and best == previous and not self._tied:
            self._tied = True
            decides = "the figures after it decide which checkpoint is best, and whether patience ends."
            self._say(f"{show_figures([previous])} again: as long as it does not move, {decides}")

    def _save(self, figures: Sequence[Figure], better: bool) -> None:
        step = self._state.step
        fault = weights_not_finite(self._job.model, step)
        if fault is not None:
            raise fault
        if self._processes.size > 1:
            Order("compare").send(self._processes)
            expect_same_weights(self._job.model, self._processes)
        contents = self._session.contents(figures)
        self._notify(Saving(step))
        self._digest = save_step(self._run, step, contents, keep=self._settings.keep, best=better).digest
        self._saved = step_folder(self._run, step)
        self._notify(Saved(step, self._saved))

    def _save_interrupted(self) -> None:
        step = self._state.step
        if self._saved != step_folder(self._run, step):
            self._save((), better=False)
        self._say(
            f"Stopped at step {step:,} of {self._settings.steps:,}; everything is saved in {self._saved}. "
            "Run the same command again to resume."
        )

    def _outcome(self, reason: Reason) -> Outcome:
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
        self._notify(Said(text))

    def _notify(self, event: Event) -> None:
        for listener in self._listeners:
            listener(event)
