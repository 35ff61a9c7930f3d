"""Saving alignments to a file, in the format of its suffix."""

from collections.abc import Callable, Sequence
from pathlib import Path

from qkv.checkpoint.disk import replace_file
from qkv.errors import CheckpointError, ConfigError, nearest
from qkv.view.alignment import Alignment


def save(path: str | Path, alignments: Alignment | Sequence[Alignment]) -> None:
    """Save alignments as a page or a picture.

    The file is written atomically; an existing one is replaced.

    Args:
        path: output file; `.html` is one self-contained page for any number of sentences, `.svg` and `.png` show them
            below each other.
        alignments: one or several.

    Raises:
        ConfigError: the suffix is unknown, the file cannot be written, or the alignments do not fit in one picture.

    Example:
        >>> import tempfile, torch
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(Path(folder) / "dog.html", Alignment(("ein", "Hund"), ("a", "dog"), torch.eye(2)))
        ...     print([path.name for path in Path(folder).iterdir()])
        ['dog.html']
    """
    picture_file = Path(path)
    writer = _WRITERS.get(picture_file.suffix.lower())
    if writer is None:
        suffix = picture_file.suffix or "no suffix"
        raise ConfigError(
            "path",
            "a file name that ends in .html, .svg or .png",
            f"{suffix} in {str(picture_file)!r}",
            nearest(picture_file.suffix.lower(), _WRITERS),
        )
    content = writer([alignments] if isinstance(alignments, Alignment) else list(alignments))
    try:
        replace_file(picture_file, content)
    except CheckpointError as error:  # the writer is that of checkpoints; this is not a checkpoint
        raise error.as_kind(ConfigError) from error


def _html(alignments: Sequence[Alignment]) -> bytes:
    from qkv.view.page import html

    return html(alignments).encode()


def _svg(alignments: Sequence[Alignment]) -> bytes:
    from qkv.view.figure import svg

    return svg(alignments)


def _png(alignments: Sequence[Alignment]) -> bytes:
    from qkv.view.figure import png

    return png(alignments)


_WRITERS: dict[str, Callable[[Sequence[Alignment]], bytes]] = {".html": _html, ".svg": _svg, ".png": _png}
