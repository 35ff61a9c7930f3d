"""Drawing what trained models attended to, in the terminal and in files."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from torch import Tensor

from qkv.tasks.element_pointer import END_SHOWN, Pointing
from qkv.tasks.labeler import Classification, Tagging
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
    draw_alignments(alignments(translations), file, terminal=terminal)


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
    draw_alignments(drawn, file, terminal=terminal)


def draw_tags(found: Sequence[Tagging], file: Path | None, *, terminal: bool) -> None:
    """Draw what the words of sentences attend to.

    Args:
        found: taggings with their weights.
        file: output file: .html, .svg or .png; None for none.
        terminal: whether to draw on standard error.

    Raises:
        ConfigError: the file has a wrong suffix, or cannot be written.
    """
    drawn = [
        Alignment(each.tokens, tuple(f"{word} {tag}" for word, tag in zip(each.words, each.tags, strict=True)), weights)
        for each in found
        if (weights := each.weights) is not None
    ]
    draw_alignments(drawn, file, terminal=terminal)


def draw_text(tokens: tuple[str, ...], weights: Tensor, file: Path | None, *, terminal: bool) -> None:
    """Draw what the tokens of a text attend to.

    Args:
        tokens: the tokens.
        weights: (S, S).
        file: output file: .html, .svg or .png; None for none.
        terminal: whether to draw on standard error.

    Raises:
        ConfigError: the file has a wrong suffix, or cannot be written.
    """
    draw_alignments([Alignment(tokens, tokens, weights)], file, terminal=terminal)


def draw_pointing(found: Sequence[Pointing], file: Path | None, *, terminal: bool) -> None:
    """Draw the probability of each element at each step.

    Args:
        found: answers with their weights.
        file: output file: .html, .svg or .png; None for none.
        terminal: whether to draw on standard error.

    Raises:
        ConfigError: the file has a wrong suffix, or cannot be written.
    """
    drawn = [
        Alignment((END_SHOWN, *each.elements), (*each.chosen, END_SHOWN), each.weights)
        for each in found
        if each.weights is not None
    ]
    draw_alignments(drawn, file, terminal=terminal)


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
