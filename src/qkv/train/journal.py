"""The figures of a run as lines of JSON, one per event, without duplicates after an interruption.

{"step": 50, "kind": "train", "loss": 5.1, "learning_rate": 1e-4, ...}
{"step": 500, "kind": "validation", "bleu": 12.3, "better": true}
"""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any, final

from qkv.checkpoint.disk import replace_file, typed
from qkv.errors import DataError, error_message
from qkv.train.events import Event, Logged, Validated

NAME = "metrics.jsonl"


@final
class Journal:
    """Appends to `metrics.jsonl`, each line flushed.

    Args:
        run: an existing run folder.
        step: number of completed updates; later lines, written by a killed process, are removed.
        validated: step of the last validation that counts; later ones are removed, because they will be repeated.

    Raises:
        CheckpointError: the file cannot be written.
    """

    def __init__(self, run: Path, step: int, validated: int) -> None:
        """Remove lines after the step, then open the file."""
        path = run / NAME
        kept = [line for line in read_journal(path) if line["step"] <= (step if _trains(line) else validated)]
        self.seconds = max((float(line.get("seconds") or 0.0) for line in kept), default=0.0)
        replace_file(path, "".join(map(_text, kept)).encode())
        with typed(path, "a writable file"):
            self._stream = path.open("a", encoding="utf-8")
        self._path = path

    def __call__(self, event: Event) -> None:
        """Write the line of a log or validation event."""
        match event:
            case Logged():
                line = {"step": event.step, "kind": "train"} | asdict(event)
            case Validated(step, figures, better):
                values = {figure.name: figure.value for figure in figures}
                line = {"step": step, "kind": "validation"} | values | {"better": better}
            case _:
                return
        with typed(self._path, "a writable file"):
            self._stream.write(_text(line))
            self._stream.flush()

    def close(self) -> None:
        """Close the file."""
        self._stream.close()


def read_journal(path: Path) -> list[dict[str, Any]]:
    """Read the lines of a run's `metrics.jsonl`; a truncated last line is skipped.

    Args:
        path: the file, existing or not.

    Returns:
        One mapping per line, each with "step" and "kind".

    Raises:
        DataError: a line is invalid.
    """
    if not path.exists():
        return []
    with typed(path, "a readable file"):
        lines = path.read_bytes().split(b"\n")
    found = []
    # Text after the last line feed was truncated when its process ended.
    for number, text in enumerate(lines[:-1], start=1):
        try:
            line = json.loads(text)
            ours = _ours(line) and bool(_text(line).encode())
        except (ValueError, RecursionError, OverflowError):
            ours = False
        if not ours:
            got, hint = repr(text[:60]), "Remove this line, or the file: training will write it again."
            raise DataError(error_message(f"{path}:{number}", "a line with step, kind and figures", got, hint))
        found.append(line)
    return found


def _ours(line: Any) -> bool:
    """Return whether a line has a step, a kind, and otherwise figures: finite numbers, or null for others."""
    if not isinstance(line, dict):
        return False
    figures = [figure for name, figure in line.items() if name != "kind" and figure is not None]
    placed = type(step := line.get("step")) is int and step >= 0 and isinstance(line.get("kind"), str)
    return placed and all(isinstance(figure, int | float) and math.isfinite(figure) for figure in figures)


def _trains(line: dict[str, Any]) -> bool:
    return bool(line["kind"] == "train")


def _text(line: dict[str, Any]) -> str:
    # JSON has no infinity.
    finite = {name: None if isinstance(x, float) and not math.isfinite(x) else x for name, x in line.items()}
    return json.dumps(finite, ensure_ascii=False, allow_nan=False) + "\n"
