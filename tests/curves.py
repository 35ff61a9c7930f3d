"""Pictures of trainings, drawn once for each kind: to draw its losses takes most of a small training."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from qkv.training import curve


@contextmanager
def one_of_each_kind() -> Iterator[None]:
    """Draw one picture for each monitored figure and set of figures in the journal, and give it again."""
    real, drawn = curve.draw, dict[object, bytes]()

    def draw(lines: Sequence[Mapping[str, Any]], monitor: str | None = None) -> bytes:
        kind = monitor, frozenset((line["kind"], *(name for name in line if line[name] is not None)) for line in lines)
        if kind not in drawn:
            drawn[kind] = real(lines, monitor)
        return drawn[kind]

    with patch.object(curve, "draw", draw):
        yield
