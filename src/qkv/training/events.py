"""Training events, and the interface of listeners."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol, TypeAlias, final

from qkv.metrics.figure import Figure


@final
@dataclass(frozen=True)
class Updated:
    """One update of the weights was completed.

    Args:
        step: its number, from 1.
        loss: mean over the units that the objective counts.
    """

    step: int
    loss: float


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
            return {"kind": "validation", "step": step, **{each.name: each.value for each in figures}, "better": better}
        case Saved(step, folder):
            return {"kind": "checkpoint", "step": step, "folder": folder}
        case _:
            return None


class Listener(Protocol):
    """A listener, which receives all events in order."""

    def __call__(self, event: Event) -> None:
        """Handle an event.

        Args:
            event: the event.
        """

    def close(self) -> None:
        """Finish; no further events follow."""
