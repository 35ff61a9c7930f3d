"""What all rows of the result table have: a name, a title, a settings file, and a folder with the stored figures."""

import sys
from dataclasses import dataclass
from pathlib import Path

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
