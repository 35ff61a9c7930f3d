"""What all rows of the result table have: a name, a title, a settings file, and a folder with the stored figures."""

import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
QKV = Path(sys.executable).parent / "qkv"
"""The command, of the environment that runs the rows."""


@dataclass(frozen=True)
class ResultRow:
    """One line of the table.

    Args:
        name: the row's name for `python -m results`.
        what: title shown to the reader.
    """

    name: str
    what: str

    @property
    def config(self) -> Path:
        """The settings."""
        return ROOT / "results" / f"{self.name}.toml"

    @property
    def kept(self) -> Path:
        """The folder with the stored figures."""
        return ROOT / "results" / "runs" / self.name

    @property
    def record(self) -> Path:
        """The file with the stored figures."""
        return self.kept / "figures.json"


def parts_of_page(rows: Iterable[ResultRow], text: Callable[[ResultRow, Any], str]) -> str:
    """Return the parts of the page for rows, each with its title.

    Args:
        rows: the rows.
        text: returns the text of a row, from its stored figures.
    """
    return "".join(f"## {row.what}\n\n{_text(row, text)}" for row in rows)


def _text(row: ResultRow, text: Callable[[ResultRow, Any], str]) -> str:
    return text(row, json.loads(row.record.read_text(encoding="utf-8"))) if row.record.exists() else "Not run.\n\n"
