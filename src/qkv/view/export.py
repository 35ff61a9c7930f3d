"""Alignments as a file: one self-contained HTML page that needs no network and trusts no token, or a picture."""

import base64
from collections.abc import Sequence
from pathlib import Path

import torch

from qkv.checkpoint.disk import save_file
from qkv.files import expect_suffix
from qkv.view.alignment import Alignment
from qkv.view.bundle import one_file
from qkv.view.tokens import labels, sentence


def save(path: str | Path, alignments: Alignment | Sequence[Alignment], *, title: str = "") -> None:
    """Save alignments as a page or a picture.

    The file is written atomically; an existing one is replaced.

    Args:
        path: output file; `.html` is one self-contained page for any number of sentences, `.svg`, `.png` and `.pdf`
            show them below each other.
        alignments: one or several.
        title: stands above a picture; "" for none.

    Raises:
        ConfigError: the suffix is unknown, the file cannot be written, or the alignments do not fit in one picture.

    Example:
        >>> import tempfile, torch
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(Path(folder) / "dog.html", Alignment(("ein", "Hund"), ("a", "dog"), torch.eye(2)))
        ...     print([path.name for path in Path(folder).iterdir()])
        ['dog.html']
    """
    suffix = expect_suffix("path", file := Path(path), (".html", ".svg", ".png", ".pdf"))
    drawn = [alignments] if isinstance(alignments, Alignment) else list(alignments)
    if suffix == ".html":
        save_file(file, html(drawn).encode())
        return
    from qkv.view import picture

    save_file(file, picture.drawn(drawn, suffix[1:], title))


def html(alignments: Sequence[Alignment]) -> str:
    """Build a page that shows alignments: links between the tokens, a heat map, and a list of the sentences.

    The page is one file that works from disk. Its content security policy allows its own script and style, by their
    hashes, and nothing else: no network, no other script, no markup built from strings. It supports dark mode, and
    arrow keys move between cells.

    Args:
        alignments: the sentences in the order of the list; can be empty.

    Returns:
        The page, with weights in float32.

    Example:
        >>> import torch
        >>> page = html([Alignment(("ein", "</script>"), ("a", "dog"), torch.eye(2))])
        >>> page.count("</script>"), "unsafe-inline" in page
        (2, False)
    """
    return one_file("sentences.js", {"sentences": [_described(alignment) for alignment in alignments]})


def _described(alignment: Alignment) -> dict[str, object]:
    weights = alignment.weights.to(torch.float32).numpy().astype("<f4")
    return {
        "source": list(labels(alignment.source)),
        "target": list(labels(alignment.target)),
        "from": sentence(alignment.source),
        "to": sentence(alignment.target),
        "sides": alignment.sides,
        "scale": alignment.scale,
        "weights": base64.b64encode(weights.tobytes()).decode(),
    }
