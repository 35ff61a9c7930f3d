"""Storage of finished rows: one JSON file per processor, rewritten after each row, so that a stopped run can resume."""

import json
import os
from pathlib import Path
from typing import Any

from benchmarks import kept

FOLDER = Path(__file__).parent.parent / "results"
RESULTS = FOLDER / f"engine-{kept.processor()}.json"
"""The rows of this processor."""


def read(path: Path = RESULTS) -> dict[str, Any]:
    """Load the finished rows, by name.

    Args:
        path: the file; it need not exist.
    """
    rows: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return rows


def every() -> dict[str, dict[str, Any]]:
    """Load the rows of every processor, by its name, the one that was measured last first."""
    measured = {path.stem.removeprefix("engine-"): read(path) for path in sorted(FOLDER.glob("engine-*.json"))}
    return dict(sorted(measured.items(), key=lambda item: max(row["day"] for row in item[1].values()), reverse=True))


def keep(name: str, record: dict[str, Any], path: Path = RESULTS) -> None:
    """Add or replace a finished row; rows added by other runs in the meantime are kept.

    Args:
        name: name of the row.
        record: the measurements.
        path: the file.
    """
    rows = {**read(path), name: record}
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    lines = [f"{json.dumps(key)}: {json.dumps(rows[key])}" for key in sorted(rows)]
    fresh.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    os.replace(fresh, path)
