"""Training events, and the interface of listeners."""

from collections.abc import Sequence
from dataclasses import dataclass
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
    """A checkpoint is about to be written: what was told before belongs to it.

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


class Listener(Protocol):
    """A listener, which receives all events in order."""

    def __call__(self, event: Event) -> None:
        """Handle an event.

        Args:
            event: the event.
        """

    def close(self) -> None:
        """Finish; no further events follow."""
