"""What the stored rows show: cells slower than the full tensor, missed targets, wrong choices of backend."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from benchmarks.engine.comparison import OURS
from benchmarks.engine.rivals import FULL
from benchmarks.engine.rows import TABLE, TABLE_SIZES

SLOWEST = 1 / 1.05
"""A cell is an open defect if qkv's speedup over the full tensor is below this."""
SMALL = 16
"""Up to this many queries and keys the fixed cost of a call dominates."""


class Cell(NamedTuple):
    """One contender of one pass of one row, compared with qkv."""

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
    """Yield the figures of all comparison rows."""
    for name, row in rows.items():
        for what, kept in row.get("passes", {}).items():
            ours = kept["times"][OURS]["ms"]
            for rival, x in kept["times"].items():
                if rival != OURS:
                    figures = (x["ms"], ours, x["middle"], x["low"], x["high"], x.get("asked"))
                    yield Cell(name, what, rival, kept["backend"], *figures)


def slow(rows: Rows) -> list[Cell]:
    """Return the cells of the table above n = 16 that are slower than the full tensor."""
    names = {f"{name}_{n}" for name in TABLE for n in TABLE_SIZES if n > SMALL}
    return [cell for cell in cells(rows) if cell.row in names and cell.rival == FULL and cell.middle < SLOWEST]


def missed(rows: Rows) -> list[Cell]:
    """Return the figures that miss their target."""
    return [cell for cell in cells(rows) if cell.asked is not None and cell.middle < cell.asked]


def wrongly_chosen(rows: Rows) -> list[Cell]:
    """Return where another backend was faster than the one that `auto` chose, quartiles included."""
    others = (cell for cell in cells(rows) if cell.rival.startswith(f"{OURS}, "))
    return [cell for cell in others if cell.middle < SLOWEST and cell.high < 1]
