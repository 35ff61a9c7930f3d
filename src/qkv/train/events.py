"""What training has to tell, as values, and who listens."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias, final

from qkv.metrics.figure import Figure


@final
@dataclass(frozen=True)
class Updated:
    """One update of the weights is done.

    Args:
        step: its number, from 1 on.
        loss: mean over what the objective counts.
    """

    step: int
    loss: float


@final
@dataclass(frozen=True)
class Logged:
    """A line for the log.

    Args:
        step: number of updates done.
        epoch: from 0 on.
        loss: mean since the line before, in the objective's unit per token.
        learning_rate: of this update.
        gradient_norm: of this update, before clipping.
        tokens_per_second: since the line before, validation left out.
        seconds: since training began, interruptions left out.
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
class Validated:
    """The model was judged.

    Args:
        step: number of updates done.
        figures: what came out.
        better: whether it is the best so far.
    """

    step: int
    figures: Sequence[Figure]
    better: bool


@final
@dataclass(frozen=True)
class Saved:
    """A checkpoint stands.

    Args:
        step: number of updates done.
        folder: the checkpoint.
    """

    step: int
    folder: Path


@final
@dataclass(frozen=True)
class Said:
    """A sentence for the person in front of the screen.

    Args:
        text: the sentence.
    """

    text: str


Event: TypeAlias = Updated | Logged | Validated | Saved | Said


class Listener(Protocol):
    """Is told everything, in order."""

    def __call__(self, event: Event) -> None:
        """Take an event.

        Args:
            event: what happened.
        """

    def close(self) -> None:
        """Finish; no event follows."""
