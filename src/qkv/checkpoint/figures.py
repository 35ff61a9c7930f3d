"""Metrics of a checkpoint, stored as JSON next to it."""

import math
from collections.abc import Sequence

from qkv.checkpoint.manifest import ALTERED
from qkv.checkpoint.plain import Plain, decode, encode
from qkv.errors import CheckpointError
from qkv.metrics.figure import Figure


def encode_figures(figures: Sequence[Figure]) -> bytes:
    """Serialize figures as JSON; a value that is not finite is written by name.

    Args:
        figures: the figures.

    Returns:
        The JSON.

    Example:
        >>> data = encode_figures([Figure("loss", float("inf"), "nats", higher_is_better=False)])
        >>> decode_figures(data, "figures.json")
        (Figure(name='loss', value=inf, signature='nats', higher_is_better=False),)
    """
    return encode([to_plain(figure) for figure in figures], "figures")


def decode_figures(data: bytes, path: str) -> tuple[Figure, ...]:
    """Parse the output of `encode_figures`.

    Args:
        data: JSON.
        path: its name in messages.

    Returns:
        The figures.

    Raises:
        CheckpointError: it is not a list of figures.
    """
    value = decode(data, path)
    if not isinstance(value, list):
        raise CheckpointError(path, "a list of figures", type(value).__name__, ALTERED)
    return tuple(from_plain(item, path) for item in value)


def to_plain(figure: Figure) -> dict[str, Plain]:
    """Convert a figure to names and numbers; a value that is not finite is written by name.

    Args:
        figure: the figure.

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
    """Parse and validate the output of `to_plain`.

    Args:
        value: its fields.
        path: its name in messages.

    Returns:
        The figure.

    Raises:
        CheckpointError: it is not a figure.
    """
    match value:
        case {
            "name": str(name),
            "value": float() | "nan" | "inf" | "-inf" as number,
            "signature": str(text),
            "higher_is_better": bool(up),
        }:
            return Figure(name, float(number), text, up)
    raise CheckpointError(path, "a figure", repr(value)[:160], ALTERED)
