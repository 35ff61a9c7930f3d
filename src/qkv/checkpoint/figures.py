"""Figures that were measured on a checkpoint, as JSON beside it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, final

from qkv.checkpoint.plain import Plain, decode, encode
from qkv.errors import CheckpointError, complaint

_AGAIN = "It is not what was saved: use another checkpoint of this run, or get this one again from where it came."


class Figure(Protocol):
    """Anything that was measured: its name, its value, how it was measured, which direction is up."""

    @property
    def name(self) -> str:
        """What was measured, as in "bleu"."""

    @property
    def value(self) -> float:
        """The number."""

    @property
    def signature(self) -> str:
        """How it was measured, to the last option."""

    @property
    def higher_is_better(self) -> bool:
        """Which direction is up."""


@final
@dataclass(frozen=True)
class StoredFigure:
    """A figure that is kept with the checkpoint it was measured on.

    Args:
        name: what was measured, as in "bleu".
        value: the number.
        signature: how it was measured, to the last option.
        higher_is_better: which direction is up.
    """

    name: str
    value: float
    signature: str = ""
    higher_is_better: bool = True


def encode_figures(figures: Sequence[Figure]) -> bytes:
    """Write figures as JSON; a value that is not finite is written by its name.

    Args:
        figures: what was measured.

    Returns:
        The JSON.

    Example:
        >>> decode_figures(encode_figures([StoredFigure("loss", float("inf"))]), "figures.json")
        (StoredFigure(name='loss', value=inf, signature='', higher_is_better=True),)
    """
    return encode([_plain(figure) for figure in figures], "figures")


def decode_figures(data: bytes, path: str) -> tuple[StoredFigure, ...]:
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
        raise CheckpointError(complaint(path, "a list of figures", type(value).__name__, _AGAIN))
    return tuple(_figure(item, path) for item in value)


def _plain(figure: Figure) -> Plain:
    value = float(figure.value)
    return {
        "name": figure.name,
        "value": value if math.isfinite(value) else str(value),
        "signature": figure.signature,
        "higher_is_better": figure.higher_is_better,
    }


def _figure(value: object, path: str) -> StoredFigure:
    match value:
        case {
            "name": str(name),
            "value": float() | "nan" | "inf" | "-inf" as number,
            "signature": str(text),
            "higher_is_better": bool(up),
        }:
            return StoredFigure(name, float(number), text, up)
    raise CheckpointError(complaint(path, "a figure", repr(value)[:160], _AGAIN))
