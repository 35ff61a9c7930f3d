"""Drawing what trained models attended to, in the terminal and in files."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from rich.console import Console

from qkv.view.alignment import Alignment
from qkv.view.console import terminal as draw_in_terminal
from qkv.view.export import save


class Drawable(Protocol):
    """A model's answer that can show what the model attended to."""

    @property
    def alignment(self) -> Alignment | None:
        """The answer and what was read for it, with weights; None if these were not requested."""


def alignments(answers: Iterable[Drawable]) -> list[Alignment]:
    """Return the alignments of the answers that have one."""
    return [alignment for each in answers if (alignment := each.alignment) is not None]


def draw(answers: Iterable[Drawable], file: Path | None, *, terminal: bool) -> None:
    """Draw what answers attended to, as `draw_alignments`."""
    draw_alignments(alignments(answers), file, terminal=terminal)


def draw_alignments(drawn: Sequence[Alignment], file: Path | None, *, terminal: bool) -> None:
    """Draw alignments.

    Args:
        drawn: the alignments.
        file: output file: .html, .svg or .png; None for none.
        terminal: whether to draw on standard error.

    Raises:
        ConfigError: the file has a wrong suffix, or cannot be written.
    """
    if file is not None:
        save(file, drawn)
    if terminal:
        console = Console(stderr=True)
        for alignment in drawn:
            draw_in_terminal(alignment, console)
            console.print()
