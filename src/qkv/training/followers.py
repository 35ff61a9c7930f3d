"""The processes of a training other than the first: they get its state, and follow its orders."""

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import torch
from torch import nn

from qkv._version import VERSION
from qkv.checkpoint.json_values import decode_mapping, encode
from qkv.checkpoint.rotation import step_folder
from qkv.errors import ConfigError
from qkv.strict_json import parse_json
from qkv.training.events import Outcome, Reason
from qkv.training.faults import suggest_smaller_batches
from qkv.training.feed import Feed
from qkv.training.interrupts import SIGNALS
from qkv.training.optimizer import build_optimizer, optimizer_state, set_optimizer_state
from qkv.training.processes import Processes, weights_digest
from qkv.training.state import read_fingerprint, read_state
from qkv.training.training_session import TrainingJob, TrainingSession
from qkv.training.update import Updates

OrderKind = Literal["update", "compare", "end"]
_KINDS: tuple[OrderKind, ...] = get_args(OrderKind)
_REASONS: tuple[Reason, ...] = get_args(Reason)


class Order(NamedTuple):
    """The next step of all processes.

    Attributes:
        kind: an update, a comparison of weights, or the end.
        reason: why it ends.
        signal: the signal that ended it, or 0.

    Example:
        >>> Order("end", "interrupted", 15).send(Processes())
    """

    kind: OrderKind
    reason: Reason = "finished"
    signal: int = 0

    def send(self, processes: Processes) -> None:
        """Send the order to the other processes."""
        processes.announce(_KINDS.index(self.kind), _REASONS.index(self.reason), self.signal)

    @classmethod
    def received(cls, processes: Processes) -> "Order":
        """Wait for the next order."""
        kind, reason, number = processes.receive(len(cls._fields))
        return cls(_KINDS[kind], _REASONS[reason], number)


def expect_same_job(job: TrainingJob, processes: Processes) -> None:
    """Compare what is trained between all processes, before anything else is exchanged.

    Raises:
        TrainingError: a process has another version, configuration, tokenizer, model or number of threads.
    """
    if processes.size == 1:
        return
    model = {name: [str(tensor.dtype), list(tensor.shape)] for name, tensor in job.model.state_dict().items()}
    processes.expect_same(
        {
            "version of qkv and PyTorch": f"{VERSION} {torch.__version__}",
            "settings and data": encode(job.config, "config").decode(),
            "tokenizer": job.tokenizer or "",
            "model": json.dumps(model),
            "number of threads": str(torch.get_num_threads()),
        }
    )


def expect_same_weights(model: nn.Module, processes: Processes) -> None:
    """Compare the weights of all processes, which have computed the same updates.

    Raises:
        TrainingError: they differ.
    """
    processes.expect_same({"weights after the same updates": weights_digest(model.state_dict())})


def send(session: TrainingSession, processes: Processes) -> None:
    """Send the state of a training to the other processes.

    Args:
        session: that of the first process.
        processes: all of them.

    Raises:
        ConfigError: the run was begun by a version that sums in the order of one process.
    """
    if processes.size == 1:
        return
    if session.state.sums != "tree":
        hint = "Resume it with one process, or begin another run."
        raise ConfigError("processes", "1 for a run that an older version began", f"{processes.size}", hint)
    moments = optimizer_state(session.job.model, session.optimizer)
    processes.copy_text(encode(session.state.to_json_value(session.feed.fingerprint()), "state").decode())
    described = [
        [name, str(moment.dtype).removeprefix("torch."), list(moment.shape)] for name, moment in moments.items()
    ]
    processes.copy_text(json.dumps(described))
    processes.copy([*session.job.model.state_dict().values(), *moments.values()])


def _received(job: TrainingJob, processes: Processes) -> TrainingSession:
    """Return the state of a training that `send` gives, with its weights in the job's model."""
    numbers = decode_mapping(processes.copy_text().encode(), "the state of process 0")
    described = parse_json(processes.copy_text())
    moments = {name: torch.empty(shape, dtype=getattr(torch, dtype), device="cpu") for name, dtype, shape in described}
    processes.copy([*job.model.state_dict().values(), *moments.values()])
    state = read_state(numbers)
    optimizer = build_optimizer(job.model, job.settings)
    set_optimizer_state(job.model, optimizer, moments)
    feed = Feed(job.task, job.settings, state.epoch, state.position)
    feed.check(read_fingerprint(numbers))
    return TrainingSession(job, optimizer, feed, state)


def follow(job: TrainingJob, processes: Processes, run: Path) -> Outcome:
    """Follow the orders of the leading process until the training ends.

    Args:
        job: what is trained; the same in all processes.
        processes: all of them.
        run: the run folder, which this process does not use.

    Returns:
        How the training ended, without its figures.

    Raises:
        LostProcessError: another process has ended.
        TrainingError: loss or gradient are not finite, memory ran out, or the processes differ.
    """
    with _unsignaled():
        expect_same_job(job, processes)
        job.model.train()
        session = _received(job, processes)
        updates = Updates(session, processes)
        while (order := Order.received(processes)).kind != "end":
            if order.kind == "compare":
                expect_same_weights(job.model, processes)
                continue
            step = session.state.step + 1
            with suggest_smaller_batches(step, job.settings.batch_tokens):
                updates.apply(updates.differentiate(step), step)
    step = session.state.step
    return Outcome(order.reason, step, step_folder(run, step), "", signal=order.signal or None)


@contextmanager
def _unsignaled() -> Iterator[None]:
    """Ignore signals: the leading process handles them for all."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
