"""Viewing attention: an alignment in the terminal, as a picture, and as one self-contained page.

Example:
    >>> import torch
    >>> from qkv.view import Alignment, html
    >>> alignment = Alignment(("ein", "Hund"), ("a", "dog"), torch.eye(2))
    >>> html([alignment]).startswith("<!doctype html>")
    True
"""

from typing import TYPE_CHECKING

from qkv._lazy import lazy

if TYPE_CHECKING:
    from qkv.view.alignment import Alignment as Alignment
    from qkv.view.console import terminal as terminal
    from qkv.view.export import html as html
    from qkv.view.export import save as save


__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "qkv.view.alignment": "Alignment",
        "qkv.view.console": "terminal",
        "qkv.view.export": "html save",
    },
)
