"""Figures that were measured on a checkpoint, as JSON beside it."""

import math
from collections.abc import Sequence

from qkv.checkpoint.plain import Plain, decode, encode
from qkv.errors import CheckpointError, error_message
from qkv.metrics.figure import Figure

_AGAIN = "It is not what was saved: use another checkpoint of this run, or get this one again from where it came."


def encode_figures(figures: Sequence[Figure]) -> bytes:
    """Write figures as JSON; a value that is not finite is written by its name.

    Args:
        figures: what was measured.

    Returns:
        The JSON.

    Example:
        >>> data = encode_figures([Figure("loss", float("inf"), "nats", higher_is_better=False)])
        >>> decode_figures(data, "figures.json")
        (Figure(name='loss', value=inf, signature='nats', higher_is_better=False),)
    """
    return encode([to_plain(figure) for figure in figures], "figures")


def decode_figures(data: bytes, path: str) -> tuple[Figure, ...]:
    """Read what `encode_figures` wrote.

    Args:
        data: JSON.
        path: the name that messages use.

    Returns:
        The figures.

    Raises:
        CheckpointError: it is not a list of figures.
    """
    value = decode(data, path)
    if not isinstance(value, list):
        raise CheckpointError(error_message(path, "a list of figures", type(value).__name__, _AGAIN))
    return tuple(from_plain(item, path) for item in value)


def to_plain(figure: Figure) -> dict[str, Plain]:
    """Write a figure as names and numbers; a value that is not finite is written by its name.

    Args:
        figure: what was measured.

    Returns:
        Its fields.
    """
    value = float(figure.value)
    return {
        "name": figure.name,
        "value": value if math.isfinite(value) else str(value),
        "signature": figure.signature,
        "higher_is_better": figure.higher_is_better,
    }


def from_plain(value: Plain, path: str) -> Figure:
    """Read what `to_plain` wrote, and believe nothing of it.

    Args:
        value: its fields.
        path: the name that messages use.

    Returns:
        The figure.

    Raises:
        CheckpointError: it is none.
    """
    match value:
        case {
            "name": str(name),
            "value": float() | "nan" | "inf" | "-inf" as number,
            "signature": str(text),
            "higher_is_better": bool(up),
        }:
            return Figure(name, float(number), text, up)
    raise CheckpointError(error_message(path, "a figure", repr(value)[:160], _AGAIN))
