"""How a training ended."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final

from qkv.metrics.figure import Figure

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
