"""What a notebook shows: tables and pictures as HTML, without a notebook being imported."""

import sys
from base64 import b64encode
from collections.abc import Sequence
from html import escape


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook.

    Example:
        >>> in_notebook()
        False
    """
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return hasattr(shell, "kernel")


def table(rows: Sequence[tuple[str, str]]) -> str:
    """Return names and texts as a table of two columns.

    Example:
        >>> table([("steps", "5")]).count("<td")
        2
    """
    cell = '<td style="text-align:left;vertical-align:top">'
    body = "".join(f"<tr>{cell}<b>{escape(name)}</b></td>{cell}{escape(text)}</td></tr>" for name, text in rows)
    return f"<table>{body}</table>"


def folded(summary: str, content: str) -> str:
    """Return HTML that a reader opens by its summary.

    Example:
        >>> folded("more", "<p>text</p>")
        '<details><summary>more</summary><p>text</p></details>'
    """
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def picture(svg: bytes, text: str) -> str:
    """Return a drawing as an image of its own, with a text for those who do not see it.

    Example:
        >>> picture(b"<svg/>", "nothing")
        '<img alt="nothing" src="data:image/svg+xml;base64,PHN2Zy8+">'
    """
    return f'<img alt="{escape(text)}" src="data:image/svg+xml;base64,{b64encode(svg).decode()}">'
