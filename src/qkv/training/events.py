"""What a training reports: events, to listeners, and at the end its outcome."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeAlias, final

from qkv.metrics.figure import Figure


@final
@dataclass(frozen=True)
class Updated:
    """One update of the weights was completed.

    Args:
        step: its number, from 1.
        loss: mean over the units that the objective counts.
        seconds_left: estimate; None if there is none.
    """

    step: int
    loss: float
    seconds_left: float | None = None


@final
@dataclass(frozen=True)
class Logged:
    """A line for the log.

    Args:
        step: number of completed updates.
        epoch: from 0.
        loss: mean since the previous line, in the objective's unit per token.
        learning_rate: learning rate of this update.
        gradient_norm: gradient norm of this update, before clipping.
        tokens_per_second: since the previous line, without validation.
        seconds: since training began, without interruptions.
        seconds_left: estimate.
    """

    step: int
    epoch: int
    loss: float
    learning_rate: float
    gradient_norm: float
    tokens_per_second: float
    seconds: float
    seconds_left: float


@final
@dataclass(frozen=True)
class Validating:
    """The model is about to be validated.

    Args:
        step: number of completed updates.
    """

    step: int


@final
@dataclass(frozen=True)
class Validated:
    """The model was validated.

    Args:
        step: number of completed updates.
        figures: the results.
        better: whether it is the best so far.
    """

    step: int
    figures: Sequence[Figure]
    better: bool


@final
@dataclass(frozen=True)
class Saving:
    """A checkpoint is about to be written; it covers all events before this one.

    Args:
        step: number of completed updates.
    """

    step: int


@final
@dataclass(frozen=True)
class Saved:
    """A checkpoint was saved.

    Args:
        step: number of completed updates.
        folder: the checkpoint.
    """

    step: int
    folder: Path


@final
@dataclass(frozen=True)
class Said:
    """A message for the user.

    Args:
        text: the message.
    """

    text: str


Event: TypeAlias = Updated | Logged | Validating | Validated | Saving | Saved | Said


def as_row(event: Event) -> dict[str, object] | None:
    """Return an event as names and numbers, as in `metrics.jsonl`; None for one that is not written.

    Example:
        >>> as_row(Validated(500, (), better=True))
        {'kind': 'validation', 'step': 500, 'better': True}
        >>> as_row(Saved(500, Path("runs/one/step-00000500")))["step"]
        500
    """
    match event:
        case Logged():
            return {"kind": "train", **asdict(event)}
        case Validated(step, figures, better):
            return {
                "kind": "validation",
                "step": step,
                **{figure.name: figure.value for figure in figures},
                "better": better,
            }
        case Saved(step, folder):
            return {"kind": "checkpoint", "step": step, "folder": folder}
        case _:
            return None


Callback = Callable[[Event], object]
"""A function that receives all events in order."""


class Listener(Protocol):
    """What receives all events in order, and finishes at the end."""

    def __call__(self, event: Event) -> None:
        """Handle an event.

        Args:
            event: the event.
        """

    def close(self) -> None:
        """Finish; no further events follow."""


Reason = Literal["finished", "patience", "interrupted"]
"""Why a training ends: after all updates, since the figure stopped improving, or by a signal."""


@final
@dataclass(frozen=True)
class Outcome:
    """How a training ended.

    Args:
        reason: "finished" after all updates, "patience" if the figure stopped improving, "interrupted" by a signal.
        step: number of completed updates.
        checkpoint: the last checkpoint.
        digest: sha256 over every byte of it.
        figures: results of the last validation; empty if there was none since resuming.
        best: the best figure so far; None if nothing was measured.
        best_step: its step.
        signal: the signal's number, if interrupted.
    """

    reason: Reason
    step: int
    checkpoint: Path
    digest: str
    figures: Sequence[Figure] = ()
    best: Figure | None = None
    best_step: int = 0
    signal: int | None = None

    @property
    def exit_code(self) -> int:
        """The process's exit code: 0, or 128 + signal: 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP."""
        return 0 if self.signal is None else 128 + self.signal
