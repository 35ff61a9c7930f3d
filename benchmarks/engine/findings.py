"""What the kept rows say: cells slower than the full tensor, figures that are missed, backends chosen wrongly."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from benchmarks.engine.comparison import OURS
from benchmarks.engine.rivals import FULL
from benchmarks.engine.rows import TABLE, TABLE_SIZES

SLOWEST = 1 / 1.05
"""A cell is an open defect where qkv is not even so many times as fast as the full tensor."""
SMALL = 16
"""At so many queries and keys a call's fixed cost decides."""


class Cell(NamedTuple):
    """One contender of one pass of one row, beside qkv."""

    row: str
    what: str
    rival: str
    backend: str
    ms: float
    ours_ms: float
    middle: float
    low: float
    high: float
    asked: float | None


Rows = Mapping[str, Any]


def cells(rows: Rows) -> Iterator[Cell]:
    """All figures of rows that compare."""
    for name, row in rows.items():
        for what, kept in row.get("passes", {}).items():
            ours = kept["times"][OURS]["ms"]
            for rival, x in kept["times"].items():
                if rival != OURS:
                    figures = (x["ms"], ours, x["middle"], x["low"], x["high"], x.get("asked"))
                    yield Cell(name, what, rival, kept["backend"], *figures)


def slow(rows: Rows) -> list[Cell]:
    """Cells of the table above n = 16 that are slower than the full tensor."""
    names = {f"{name}_{n}" for name in TABLE for n in TABLE_SIZES if n > SMALL}
    return [cell for cell in cells(rows) if cell.row in names and cell.rival == FULL and cell.middle < SLOWEST]


def missed(rows: Rows) -> list[Cell]:
    """Figures that were asked for and not reached."""
    return [cell for cell in cells(rows) if cell.asked is not None and cell.middle < cell.asked]


def wrongly_chosen(rows: Rows) -> list[Cell]:
    """Where another backend was faster than the one that `auto` chose, quartiles and all."""
    others = (cell for cell in cells(rows) if cell.rival.startswith(f"{OURS}, "))
    return [cell for cell in others if cell.middle < SLOWEST and cell.high < 1]
