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
    from qkv.view.alignment import Alignment
    from qkv.view.console import terminal
    from qkv.view.export import html, save

__all__ = ["Alignment", "html", "save", "terminal"]

__getattr__ = lazy(
    __name__,
    {
        "Alignment": "qkv.view.alignment",
        "html": "qkv.view.export",
        "save": "qkv.view.export",
        "terminal": "qkv.view.console",
    },
)


def __dir__() -> list[str]:
    return __all__
