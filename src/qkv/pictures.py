"""Drawing with a library that reports some exhausted memory under other names."""

import io
import logging
from collections.abc import Callable
from typing import Any, Literal, TypeVar

from qkv.errors import OutOfMemoryError, QkvError, out_of_memory_text

T = TypeVar("T")
PAGE_MEGABYTES = 4.0
"""Maximum size of a page of the viewer, in millions of bytes, if no other is given."""
_RESERVE = 1 << 24
"""Bytes that a picture takes; where as many cannot be allocated, a failed picture needs no other reason."""
_LESS = "Free some memory, or draw less."


def rendered(draw: Callable[[], T]) -> T:
    """Draw a picture, and tell an exhausted memory from a bug.

    A library that is refused a few bytes while it converts an argument may report a wrong argument, as matplotlib and
    NumPy do (`TypeError`, `ValueError`, `AttributeError`). A bug fails again, where memory is left; so an unknown error
    is one refused allocation if the same picture can then be drawn.

    Args:
        draw: draws the picture; without other effects, because it may be called twice.

    Returns:
        What it returns.

    Raises:
        OutOfMemoryError: memory ran out, whatever the library called it.
        Exception: any other error of the second drawing, as it is.

    Example:
        >>> rendered(lambda: b"picture")
        b'picture'
    """
    try:
        return draw()
    except Exception as error:
        _expect_unknown(error)
        logging.getLogger(__name__).info("a picture is drawn again", exc_info=error)
    try:
        return draw()
    except Exception as error:
        _expect_unknown(error)
        if not _has_room():
            raise _no_room("none left") from error
        raise


def saved(figure: Any, kind: str, dpi: float | Literal["figure"] = "figure") -> bytes:
    """Return a figure of matplotlib as a file; the same figure gives the same bytes.

    Args:
        figure: the figure.
        kind: "png", "svg" or "pdf".
        dpi: pixels per inch of a PNG.
    """
    import matplotlib as mpl

    buffer = io.BytesIO()
    metadata = {"svg": {"Date": None, "Creator": "qkv"}, "pdf": {"CreationDate": None, "Creator": "qkv"}}
    with mpl.rc_context({"svg.hashsalt": "qkv", "svg.fonttype": "path", "path.simplify": True}):
        figure.savefig(buffer, format=kind, dpi=dpi, metadata=metadata.get(kind))
    return buffer.getvalue()


def _expect_unknown(error: Exception) -> None:
    """Raise an error that says itself what it is."""
    if isinstance(error, QkvError | OSError):
        raise error
    got = out_of_memory_text(error)
    if got is not None:
        raise _no_room(got) from error


def _no_room(got: str) -> OutOfMemoryError:
    return OutOfMemoryError("picture", "enough memory for it", got, _LESS)


def _has_room() -> bool:
    try:
        bytearray(_RESERVE)
    except MemoryError:
        return False
    return True
