"""Alignments as one self-contained HTML page that needs no network and trusts no token."""

import base64
from collections.abc import Sequence

import torch

from qkv.view.alignment import Alignment
from qkv.view.bundle import one_file
from qkv.view.tokens import labels, sentence


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
        "scale": alignment.scale,
        "weights": base64.b64encode(weights.tobytes()).decode(),
    }
