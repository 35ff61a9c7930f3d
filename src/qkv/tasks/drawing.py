"""Drawing what trained models attended to, in the terminal and in files."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from qkv.tasks.labeler import Classification
from qkv.tasks.translator import Translation
from qkv.view.alignment import Alignment
from qkv.view.console import terminal as draw_in_terminal
from qkv.view.export import save


def alignments(translations: Sequence[Translation]) -> list[Alignment]:
    """Return the alignments of the translations that have one."""
    return [
        Alignment(found.source_tokens, found.target_tokens, found.weights)
        for found in translations
        if found.weights is not None
    ]


def draw(translations: Sequence[Translation], file: Path | None, *, terminal: bool) -> None:
    """Draw the attention of translations.

    Args:
        translations: translations with their weights.
        file: output file: .html, .svg or .png; None for none.
        terminal: whether to draw on standard error.

    Raises:
        ConfigError: the file has a wrong suffix, or cannot be written.
    """
    _draw(alignments(translations), file, terminal)


def draw_labels(found: Sequence[Classification], file: Path | None, *, terminal: bool) -> None:
    """Draw how much each word of a text contributed to its label.

    Args:
        found: classifications with their weights.
        file: output file: .html, .svg or .png; None for none.
        terminal: whether to draw on standard error.

    Raises:
        ConfigError: the file has a wrong suffix, or cannot be written.
    """
    drawn = [Alignment(each.tokens, (each.label,), each.weights[None]) for each in found if each.weights is not None]
    _draw(drawn, file, terminal)


def _draw(drawn: Sequence[Alignment], file: Path | None, terminal: bool) -> None:
    if file is not None:
        save(file, drawn)
    if terminal:
        console = Console(stderr=True)
        for alignment in drawn:
            draw_in_terminal(alignment, console)
            console.print()
