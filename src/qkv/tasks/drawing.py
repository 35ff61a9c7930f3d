"""Drawing what trained models attended to, in the terminal and in files."""

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol, final

from qkv.tasks.notes import note
from qkv.view.alignment import Alignment

MOST_WEIGHTS = 1 << 22
"""The most weights that a file of drawings holds: 32 MiB of float64 until it is written."""
_LEAST = 1024
"""The least that an answer counts for, because its tokens take memory too."""


class Drawable(Protocol):
    """A model's answer that can show what the model attended to."""

    @property
    def alignment(self) -> Alignment | None:
        """The answer and what was read for it, with weights; None if these were not requested."""


def alignments(answers: Iterable[Drawable]) -> list[Alignment]:
    """Return the alignments of the answers that have one."""
    return [alignment for answer in answers if (alignment := answer.alignment) is not None]


@final
class Drawing:
    """Draws the attention of answers: in the terminal as they come, in a file at the end.

    Memory does not grow with the number of answers: the terminal keeps none, a file at most `MOST_WEIGHTS` weights.

    Args:
        file: output file: .html, .svg, .png or .pdf; None for none.
        terminal: whether to draw on standard error.

    Example:
        >>> Drawing(None, terminal=False).active
        False
    """

    def __init__(self, file: Path | None, *, terminal: bool) -> None:
        self._file, self._terminal = file, terminal
        self._saved: list[Alignment] = []
        self._weights = self._count = 0

    @property
    def active(self) -> bool:
        """Whether anything is drawn, so that answers must have their weights."""
        return self._file is not None or self._terminal

    def add(self, alignments: Iterable[Alignment]) -> None:
        """Draw further alignments."""
        if not self.active:
            return
        for alignment in alignments:
            self._count += 1
            self._weights += max(_LEAST, alignment.weights.numel())
            if self._file is not None and (self._weights <= MOST_WEIGHTS or not self._saved):
                self._saved.append(alignment)
            if self._terminal:
                _draw_in_terminal(alignment)

    def finish(self) -> None:
        """Save the file.

        Raises:
            ConfigError: the file has a wrong suffix, or cannot be written.
        """
        if self._file is None:
            return
        from qkv.view.export import save

        save(self._file, self._saved)
        if len(self._saved) < self._count:
            part = f"the first {len(self._saved):,} of {self._count:,} answers"
            note(f"qkv: {self._file} shows {part}, and no more: a file holds {MOST_WEIGHTS:,} weights.")


def _draw_in_terminal(alignment: Alignment) -> None:
    """Draw on standard error."""
    from rich.console import Console

    from qkv.view.console import terminal

    console = Console(stderr=True)
    terminal(alignment, console)
    console.print()
