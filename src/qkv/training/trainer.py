"""The trainer: starts or resumes a run, updates, validates and saves. A resumed run gives the same bits.

A training is a `Task` (what is learned), `Settings` (how), a run folder, and the `Processes` that compute its updates
together. Read `train`, then `Trainer` from top to bottom.
"""

import json
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import Any, TextIO, final, get_args

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from qkv import forks
from qkv._version import VERSION
from qkv.checkpoint.contents import Contents, TrainerState
from qkv.checkpoint.folder import load, verify
from qkv.checkpoint.json_values import JsonValue, decode_mapping, encode
from qkv.checkpoint.rotation import latest_complete, save_step, step_folder
from qkv.checkpoint.run import open_run
from qkv.errors import CheckpointError, ConfigError, DataError, setting
from qkv.linalg.heap import GrowthLimit
from qkv.metrics.figure import Figure
from qkv.strict_json import parse_json
from qkv.training.batches import batches_of, expect_same_batches, first_batches
from qkv.training.curve import Curve
from qkv.training.events import (
    Callback,
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
from qkv.training.faults import expect_finite_weights, not_finite, show_lines, suggest_smaller_batches
from qkv.training.interrupts import Interrupted, Interrupts, ignoring_signals
from qkv.training.journal import Journal
from qkv.training.optimizer import (
    build_optimizer,
    clip_gradient,
    optimizer_state,
    scale_gradient,
    set_optimizer_state,
)
from qkv.training.precision import choose, computing
from qkv.training.processes import Node, Tree, current, expect_enough, part_seed, weights_digest
from qkv.training.protocols import Batches, Task
from qkv.training.resuming import (
    arithmetic,
    point_to_best,
    report_arithmetic,
    report_schedule,
    set_weights,
    stored_buffers,
)
from qkv.training.schedules import learning_rate
from qkv.training.screen import screen, show_figures
from qkv.training.seeds import generators, seed_everything, set_generators, undisturbed
from qkv.training.state import State, Sums, read_fingerprint, read_state
from qkv.training.tensorboard import Board
from qkv.training_settings import Settings

_UPDATE, _COMPARE, _WAIT, _END = range(4)
"""What process 0 tells the others to do next."""
_REASONS: tuple[Reason, ...] = get_args(Reason)


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
    listeners: Sequence[Callback] = (),
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
        listeners: functions that get every event of the training.

    Returns:
        How it ended; its `exit_code` is meant for the process.

    Raises:
        ConfigError: the run folder has another configuration, a setting is invalid, or there are more processes than
            parts of an update.
        CheckpointError: the run folder cannot be used, or no checkpoint in it can be loaded.
        DataError: there is nothing to train on.
        ForkError: this process was forked from one with threads that PyTorch would wait for.
        TrainingError: loss or gradient are not finite, or memory ran out; checkpoints are retained.
    """
    if forks.lost:
        forks.expect_threads("training")
    trainer = Trainer(task, model, settings, config, tokenizer)
    if not trainer.processes.leads:
        with ignoring_signals():
            return trainer.follow(run)
    with open_run(run, config, free=free, added=added, files=files) as folder, Interrupts() as interrupts:
        shown = screen(stream, settings.steps, task.unit, every=every)
        written = list[Listener]()

        def say(text: str) -> None:
            shown(Said(text))

        with _closed(written), _closed([shown]):
            trainer.begin(folder, say)
            journal = Journal(folder, trainer.state.step, trainer.state.validated, say)
            written += [journal, Curve(folder, settings.monitor, say)]
            if tensorboard:
                written.append(Board(folder, trainer.state.step))
            return trainer.lead(folder, interrupts, [shown, *listeners, *written], journal.seconds)


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
class Trainer:
    """A training at one moment: the model with its optimizer, the position in the data, and everything else that a
    checkpoint stores.

    Args:
        task: data, objective and evaluation.
        model: the task's model, on its device.
        settings: training settings.
        config: names and numbers from which the model can be rebuilt.
        tokenizer: the tokenizer's JSON, stored with the checkpoints.

    Raises:
        ConfigError: there are more processes than parts of an update.
    """

    def __init__(
        self,
        task: Task[Any],
        model: nn.Module,
        settings: Settings,
        config: Mapping[str, JsonValue],
        tokenizer: str | None = None,
    ) -> None:
        self.task, self.model, self.settings, self.config, self.tokenizer = task, model, settings, config, tokenizer
        self.processes = current()
        expect_enough(self.processes, settings)
        self.state = State()
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.optimizer: Optimizer
        self.batches: Batches  # those of the epoch
        self._listed: int | None = None  # the epoch of these batches
        self._interrupts: Interrupts | None = None
        self._listeners: Sequence[Callback] = ()
        self._figures: tuple[Figure, ...] = ()
        self._saved: Path | None = None
        self._memory = GrowthLimit()
        self._tied = False

    # The beginning: a new state, or that of the newest checkpoint.

    def begin(self, run: Path, say: Callable[[str], None]) -> None:
        """Resume a run from its newest complete checkpoint, or start it, and share its state with the other processes.

        Args:
            run: an open run folder.
            say: called with messages about what was found and chosen.

        Raises:
            CheckpointError: there are checkpoints, but none from which training can resume.
            DataError: there is nothing to train on.
            TrainingError: the processes train something else.
        """
        self._expect_same_training()
        self.model.train()
        newest = latest_complete(run, say)
        if newest is None:
            self._start(say)
        else:
            self._resume(run, newest, say)
        self._share()

    def seconds_of_update(self, seconds: float, clock: Callable[[], float]) -> float:
        """Return how long an update takes: updates are computed for so many seconds, and undone.

        Args:
            seconds: how long to measure.
            clock: returns the time in seconds.

        Raises:
            DataError: there is nothing to train on.
            TrainingError: loss or gradient are not finite, memory ran out, or the processes train something else.
        """
        self._expect_same_training()
        weights = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        with undisturbed():
            self.model.train()
            if self.processes.leads:
                self._start(lambda text: None)
            self._share()
            self.update()  # the first one compiles, and fills caches
            start, updates = clock(), 0
            while self.processes.copy_text("more" if not updates or clock() - start < seconds else ""):
                self.update()
                updates += 1
            passed = clock() - start
        self.model.load_state_dict(weights)
        self.model.zero_grad(set_to_none=True)
        return passed / updates

    def _start(self, say: Callable[[str], None]) -> None:
        settings = self.settings
        seed_everything(settings.seed)
        sums: Sums = "tree" if settings.parts_of_update > 1 else "sequence"
        self.state = State(threads=torch.get_num_threads(), arithmetic=arithmetic(), sums=sums)
        if settings.precision == "auto":
            self.state.precision = choose(self.task, self.model, first_batches(self.task, settings, 3), say)
        else:
            self.state.precision = settings.precision
        self.optimizer = build_optimizer(self.model, settings)
        self.go_to(0, 0)

    def _resume(self, run: Path, folder: Path, say: Callable[[str], None]) -> None:
        contents = load(folder)
        if contents.trainer is None:
            hint = "Give another " + setting("out") + ", or remove this checkpoint to resume from an earlier one."
            raise CheckpointError(str(folder), "a checkpoint with the trainer's state", "a checkpoint without it", hint)
        set_weights(self.model, contents.model, folder)
        self._restore(contents.trainer.numbers, contents.trainer.tensors)
        set_generators(contents.trainer.tensors)
        say(f"Resuming from {folder.name} in {run}.")
        report_arithmetic(self.state, say)
        report_schedule(self.settings, contents.config, self.state.step, say)
        point_to_best(run, self.state.best_step)
        self._saved, self._figures = folder, tuple(contents.figures)

    def _restore(self, numbers: Mapping[str, JsonValue], moments: Mapping[str, Tensor]) -> None:
        """Restore all but weights and generators."""
        self.state = read_state(numbers)
        self.optimizer = build_optimizer(self.model, self.settings)
        set_optimizer_state(self.model, self.optimizer, moments)
        self.go_to(self.state.epoch, self.state.position)
        expect_same_batches(self.batches, self.state.epoch, self.state.position, read_fingerprint(numbers))

    # The loop of the first process, and how the others follow it.

    def lead(self, run: Path, interrupts: Interrupts, listeners: Sequence[Callback], seconds: float) -> Outcome:
        """Train until the end, and tell the other processes what to do.

        Args:
            run: the open run folder.
            interrupts: the signals received.
            listeners: what gets all events.
            seconds: how long the run was trained before.

        Raises:
            TrainingError: loss, gradient or weights are not finite, or memory ran out.
            LostProcessError: another process has ended.
        """
        self._run, self._interrupts, self._listeners = run, interrupts, listeners
        self._clock = _Clock(self.state.step, seconds)
        self._digest = "" if self._saved is None else verify(self._saved).digest
        if self.state.step >= self.settings.steps:
            step, steps = self.state.step, self.settings.steps
            amount = f"all {steps:,} steps" if step == steps else f"{step:,} steps, more than the {steps:,} asked for"
            self._say(f"This run has already completed {amount}.")
        self._memory.release()
        try:
            reason = self._run_until_done()
        except Interrupted:
            reason = "interrupted"
        if reason == "interrupted":
            self._save_interrupted()
        signal = interrupts.received if reason == "interrupted" else None
        self.processes.announce(_END, _REASONS.index(reason), signal or 0)
        assert self._saved is not None
        state = self.state
        return Outcome(
            reason, state.step, self._saved, self._digest, self._figures, state.best, state.best_step, signal
        )

    def _run_until_done(self) -> Reason:
        """Update, validate and save until the end; validation first, because an interruption may have left one due."""
        state, settings = self.state, self.settings
        while True:
            due = state.step % settings.validate_every == 0 or state.step == settings.steps
            if due and state.step > state.validated:
                self._validate()
            if 0 < settings.patience <= state.waited:
                self._say(f"Ending at step {state.step:,}: no improvement in {state.waited} validations.")
                return "patience"
            if state.step >= settings.steps:
                return "finished"
            if self._interrupts is not None and self._interrupts.received is not None:
                return "interrupted"
            self.processes.announce(_UPDATE, 0, 0)
            start, tokens = time.monotonic(), state.tokens
            loss, norm = self.update()
            self._clock.count(state.tokens - tokens, time.monotonic() - start)
            self._notify(Updated(state.step, loss, self._clock.seconds_left(state.step, settings.steps)))
            if state.step % settings.log_every == 0 or state.step == settings.steps:
                self._log(norm)

    def follow(self, run: Path) -> Outcome:
        """Follow the orders of the first process until the training ends.

        Args:
            run: the run folder, which this process does not use.

        Returns:
            How the training ended, without its figures.

        Raises:
            LostProcessError: another process has ended.
            TrainingError: loss or gradient are not finite, memory ran out, or the processes differ.
        """
        self._expect_same_training()
        self.model.train()
        self._share()
        while True:
            order, reason, signal = self.processes.receive(3)
            if order == _END:
                step = self.state.step
                return Outcome(_REASONS[reason], step, step_folder(run, step), "", signal=signal or None)
            if order == _COMPARE:
                self._expect_same_weights()
            elif order == _UPDATE:
                self.update()

    # One update: the gradient of its batches, in parts, summed in an order that no number of processes changes.

    def update(self) -> tuple[float, float]:
        """Change the weights once, by the gradient of the next batches.

        Returns:
            The mean loss over units, and the norm of the gradient before clipping.

        Raises:
            TrainingError: loss or gradient are not finite, or memory ran out.
            DataError: the batches have nothing to learn.
        """
        state, settings, step = self.state, self.settings, self.state.step + 1
        with suggest_smaller_batches(step, settings.batch_tokens):
            with self._breakable():
                parts = self._next_parts()
                loss, units = self._differentiate(parts, step)
            scale_gradient(self.parameters, 1 / units)  # of the mean over units
            norm = clip_gradient(self.parameters, settings.clip)
            if not math.isfinite(norm):
                raise not_finite(self.task, self.model, parts, step, "norm of the gradient", norm)
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate(settings, step)
            self.optimizer.step()
            self._memory.after_pass()
        state.step, state.tokens = step, state.tokens + units
        state.window_loss, state.window_count = state.window_loss + loss, state.window_count + units
        return loss / units, norm

    def _next_parts(self) -> list[Sequence[int]]:
        """Return the examples of each part of the next update.

        Every so many examples of a batch are a part, so that its parts have about equal lengths. Those of a small batch
        can be empty.
        """
        pieces = self.settings.parts or 1
        batches = self.take(self.settings.accumulate)
        return [batch[first::pieces] for batch in batches for first in range(pieces)] if pieces > 1 else batches

    def take(self, count: int) -> list[Sequence[int]]:
        """Return the examples of the next batches, beginning another epoch where one ends.

        Raises:
            DataError: an epoch has no batches.
        """
        batches = []
        for _ in range(count):
            if self.state.position >= self.batches.end:
                self.go_to(self.state.epoch + 1, 0)
            batches.append(self.batches.at(self.state.position))
            self.state.position = self.batches.after(self.state.position)
        return batches

    def go_to(self, epoch: int, position: int) -> None:
        """Go to a position of the data: that of the next batch of an epoch."""
        if epoch != self._listed:
            self.batches, self._listed = batches_of(self.task, self.settings, epoch), epoch
        self.state.epoch, self.state.position = epoch, position

    def _differentiate(self, parts: Sequence[Sequence[int]], step: int) -> tuple[float, int]:
        """Compute the gradient summed over all units of an update, and return its loss and their number."""
        self.model.zero_grad(set_to_none=True)
        in_tree = self.state.sums == "tree"
        rows: Sequence[Sequence[float]]
        rows = self._sum_in_tree(parts, step) if in_tree else self._sum_in_order(parts, step)
        # Losses are added one after another, in whichever order gradients are.
        loss, units = sum(row[0] for row in rows), int(sum(row[1] for row in rows))
        if units < 1:
            lines = show_lines(self.task.lines([index for part in parts for index in part]))
            hint = "Remove these lines."
            raise DataError("training data", "at least one token to learn in every batch", f"nothing in {lines}", hint)
        return loss, units

    def _backward(self, indices: Sequence[int]) -> tuple[Tensor, float]:
        """Add the gradient of some examples, and return their loss and number of units."""
        batch = self.task.collate(indices, self.parameters[0].device)
        with computing(self.state.precision, self.parameters[0].device):
            loss, units = self.task.objective(self.model, batch)  # a scalar, summed over units
        loss.backward()
        return loss.detach(), units

    def _sum_in_order(self, parts: Sequence[Sequence[int]], step: int) -> list[list[float]]:
        """Sum gradients one after another; a GPU is waited for once, when all of them are on their way."""
        losses, units = zip(*map(self._backward, parts), strict=True)
        values = torch.stack(losses).tolist()
        for value, part in zip(values, parts, strict=True):
            if not math.isfinite(value):
                raise not_finite(self.task, self.model, [part], step, "loss", value)
        return [list(row) for row in zip(values, units, strict=True)]

    def _sum_in_tree(self, parts: Sequence[Sequence[int]], step: int) -> list[list[float]]:
        """Sum gradients in the order of a tree; each part has its own seed, so that any process can compute it."""
        tree, rows = Tree(), list[list[float]]()  # of each part its loss, its units, and which parameters it used
        for number in self.processes.part(len(parts)):
            self.model.zero_grad(set_to_none=True)
            seed_everything(part_seed(self.settings.seed, step, number))
            sums = self._sum_in_order([parts[number]], step)[0] if len(parts[number]) else [0.0, 0]
            rows.append([*sums, *(parameter.grad is not None for parameter in self.parameters)])
            tree.add(Node(number, 0, _as_vectors(self.parameters)))
        seed_everything(part_seed(self.settings.seed, step, len(parts)))
        rows = self.processes.gather(rows, len(parts))  # (parts, 2 + parameters)
        used = [any(flags) for flags in zip(*(row[2:] for row in rows), strict=True)]
        _set_gradients(self.parameters, self.processes.total(tree, len(parts)), used)
        return rows

    @contextmanager
    def _breakable(self) -> Iterator[None]:
        """Let a signal interrupt the gradient of a single process, and restore what has changed.

        A signal need not wait for a long update: no weight has changed before the optimizer's step. With several
        processes it must, because the others would wait for this one.
        """
        if self._interrupts is None or self.processes.size > 1:
            yield
            return
        epoch, position, random = self.state.epoch, self.state.position, generators()
        buffers = [(buffer, buffer.clone()) for buffer in stored_buffers(self.model)]
        try:
            with self._interrupts.breakable():
                yield
        except Interrupted:
            self.go_to(epoch, position)
            set_generators(random)
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)
            raise

    # Validating, saving, and telling the listeners.

    def _validate(self) -> None:
        self._notify(Validating(self.state.step))
        self.model.eval()
        # Validation needs tensors of other sizes, which fit few of the free blocks of training.
        self._memory.release()
        try:
            breakable = nullcontext() if self._interrupts is None else self._interrupts.breakable()
            with undisturbed(), torch.no_grad(), self.processes.kept_waiting(_WAIT, 0, 0), breakable:
                figures = tuple(self.task.validate(self.model))
        finally:
            self._memory.release()
            self.model.train()
        previous = self.state.best
        better = self.state.judge(figures, self.settings.monitor)
        self._figures = figures
        self._report_tie(previous, better)
        self._notify(Validated(self.state.step, figures, better))
        self._save(figures, better)

    def _report_tie(self, previous: Figure | None, better: bool) -> None:
        """Report once that the monitored figure no longer distinguishes checkpoints."""
        if better and previous is not None and self.state.best == previous and not self._tied:
            self._tied = True
            decides = "the figures after it decide which checkpoint is best, and whether patience ends."
            self._say(f"{show_figures([previous])} again: as long as it does not move, {decides}")

    def _save(self, figures: Sequence[Figure], better: bool) -> None:
        step = self.state.step
        expect_finite_weights(self.model, step)
        if self.processes.size > 1:
            self.processes.announce(_COMPARE, 0, 0)
            self._expect_same_weights()
        tensors = optimizer_state(self.model, self.optimizer) | generators()
        trainer = TrainerState(tensors, self.state.to_json_value(self.batches.fingerprint()))
        contents = Contents(self.model.state_dict(), self.config, self.tokenizer, trainer, tuple(figures))
        self._notify(Saving(step))
        with self.processes.kept_waiting(_WAIT, 0, 0):
            self._digest = save_step(self._run, step, contents, keep=self.settings.keep, best=better).digest
        self._saved = step_folder(self._run, step)
        self._notify(Saved(step, self._saved))

    def _save_interrupted(self) -> None:
        step = self.state.step
        if self._saved != step_folder(self._run, step):
            self._save((), better=False)
        self._say(
            f"Stopped at step {step:,} of {self.settings.steps:,}; everything is saved in {self._saved}. "
            "Run the same command again to resume."
        )

    def _log(self, norm: float) -> None:
        state = self.state
        self._notify(
            Logged(
                step=state.step,
                epoch=state.epoch,
                loss=state.window_loss / state.window_count,
                learning_rate=learning_rate(self.settings, state.step),
                gradient_norm=norm,
                tokens_per_second=self._clock.speed(),
                seconds=self._clock.elapsed(),
                seconds_left=self._clock.seconds_left(state.step, self.settings.steps),
            )
        )
        state.window_loss, state.window_count = 0.0, 0

    def _say(self, text: str) -> None:
        self._notify(Said(text))

    def _notify(self, event: Event) -> None:
        for listener in self._listeners:
            listener(event)

    # What several processes exchange besides gradients.

    def _expect_same_training(self) -> None:
        """Compare what is trained between all processes, before anything else is exchanged."""
        if self.processes.size == 1:
            return
        model = {name: [str(tensor.dtype), list(tensor.shape)] for name, tensor in self.model.state_dict().items()}
        self.processes.expect_same(
            {
                "version of qkv and PyTorch": f"{VERSION} {torch.__version__}",
                "settings and data": encode(self.config, "config").decode(),
                "tokenizer": self.tokenizer or "",
                "model": json.dumps(model),
                "number of threads": str(torch.get_num_threads()),
            }
        )

    def _expect_same_weights(self) -> None:
        """Compare the weights of all processes, which have computed the same updates."""
        self.processes.expect_same({"weights after the same updates": weights_digest(self.model.state_dict())})

    def _share(self) -> None:
        """Give the state of the first process to the others."""
        processes = self.processes
        if processes.size == 1:
            return
        state, described, moments = "", "", dict[str, Tensor]()
        if processes.leads:
            if self.state.sums != "tree":
                hint = "Resume it with one process, or begin another run."
                raise ConfigError("processes", "1 for a run that an older version began", f"{processes.size}", hint)
            moments = optimizer_state(self.model, self.optimizer)
            state = encode(self.state.to_json_value(self.batches.fingerprint()), "state").decode()
            described = json.dumps(
                [[name, str(x.dtype).removeprefix("torch."), list(x.shape)] for name, x in moments.items()]
            )
        state, described = processes.copy_text(state), processes.copy_text(described)
        if not processes.leads:
            moments = {
                name: torch.empty(shape, dtype=getattr(torch, dtype), device="cpu")
                for name, dtype, shape in parse_json(described)
            }
        processes.copy([*self.model.state_dict().values(), *moments.values()])
        if not processes.leads:
            self._restore(decode_mapping(state.encode(), "the state of process 0"), moments)


@final
class _Clock:
    """Seconds and tokens since this process started training."""

    def __init__(self, step: int, before: float) -> None:
        self._start, self._first, self._before = time.monotonic(), step, before
        self._tokens, self._seconds = 0, 0.0

    def count(self, tokens: int, seconds: float) -> None:
        self._tokens, self._seconds = self._tokens + tokens, self._seconds + seconds

    def elapsed(self) -> float:
        return self._before + time.monotonic() - self._start

    def seconds_left(self, step: int, steps: int) -> float:
        return (steps - step) * (time.monotonic() - self._start) / max(1, step - self._first)

    def speed(self) -> float:
        """Return tokens per second since the last call, without the time between updates."""
        speed = self._tokens / self._seconds if self._seconds else 0.0
        self._tokens, self._seconds = 0, 0.0
        return speed


def _by_dtype(parameters: Sequence[nn.Parameter]) -> dict[torch.dtype, list[nn.Parameter]]:
    groups: dict[torch.dtype, list[nn.Parameter]] = {}
    for parameter in parameters:
        groups.setdefault(parameter.dtype, []).append(parameter)
    return groups


def _as_vectors(parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """Return the gradients as one vector for each dtype; 0 for a parameter that no example used."""
    return [
        torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in group])  # (numbers of all,)
        for group in _by_dtype(parameters).values()
    ]


def _set_gradients(parameters: Sequence[nn.Parameter], vectors: Sequence[Tensor], used: Sequence[bool]) -> None:
    """Set gradients from such vectors; a parameter that no example used has none."""
    parts = {
        dtype: iter(torch.split(vector, [p.numel() for p in group]))
        for vector, (dtype, group) in zip(vectors, _by_dtype(parameters).items(), strict=True)
    }
    for parameter, is_used in zip(parameters, used, strict=True):
        part = next(parts[parameter.dtype])
        parameter.grad = part.view_as(parameter) if is_used else None
