"""The figures of a run as lines of JSON, one per event, without duplicates after an interruption.

{"step": 50, "kind": "train", "loss": 5.1, "learning_rate": 1e-4, ...}
{"step": 500, "kind": "validation", "bleu": 12.3, "better": true}
"""

import errno
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

from qkv.checkpoint.disk import replace_file, typed, write_all
from qkv.errors import DataError, Place, quantity
from qkv.files import read_file
from qkv.strict_json import parse_json
from qkv.system import flush, open_for_appending
from qkv.training.events import Event, Logged, Saving, Validated, as_row

NAME = "metrics.jsonl"
_LARGEST = 1 << 30


@final
class Journal:
    """Appends to `metrics.jsonl`, line by line; before a checkpoint is written, its lines are on disk.

    Args:
        run: an existing run folder.
        step: number of completed updates; later lines, written by a killed process, are removed.
        validated: step of the last validation that counts; later ones are removed, because they will be repeated.
        say: called with a message if lines are dropped because a process or the power ended while they were written.

    Raises:
        CheckpointError: the file cannot be written.
    """

    def __init__(self, run: Path, step: int, validated: int, say: Callable[[str], None] | None = None) -> None:
        """Remove lines after the step, then open the file."""
        path = run / NAME
        lines = [
            line for line in read_journal(path, say) if line["step"] <= (step if line["kind"] == "train" else validated)
        ]
        self.seconds = max((float(line.get("seconds") or 0.0) for line in lines), default=0.0)
        replace_file(path, "".join(map(_as_json, lines)).encode())
        with typed(path, "a writable file"):
            self._handle: int | None = open_for_appending(path)
        self._path = path

    def __call__(self, event: Event) -> None:
        """Write the line of a log or validation event."""
        match event:
            case Logged() | Validated():
                line = {"step": event.step, **(as_row(event) or {})}
            case Saving():
                # A power failure never leaves a checkpoint newer than the lines before it.
                with typed(self._path, "a writable file"):
                    flush(self._open)
                return
            case _:
                return
        with typed(self._path, "a writable file"):
            write_all(self._open, _as_json(line).encode())

    def close(self) -> None:
        """Close the file; the lines are on disk."""
        handle, self._handle = self._handle, None
        if handle is not None:
            with typed(self._path, "a writable file"):
                try:
                    flush(handle)
                finally:
                    os.close(handle)

    @property
    def _open(self) -> int:
        if self._handle is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return self._handle


def read_journal(path: Path, say: Callable[[str], None] | None = None) -> list[dict[str, Any]]:
    """Read the lines of a run's `metrics.jsonl`, without those torn by a killed process or a power failure.

    Args:
        path: the file, existing or not.
        say: called with one message if lines are dropped.

    Returns:
        One mapping per line, each with "step" and "kind".

    Raises:
        DataError: a line is invalid.
    """
    if not os.path.lexists(path):
        return []
    with typed(path, "a readable file"):
        lines = read_file(path, _LARGEST, links=False).split(b"\n")
    # Text after the last line feed was truncated, unless it is complete but for the line feed.
    unfinished = len(lines) if lines[-1] else 0
    rows, torn = [], 0
    for number, text in enumerate(lines if unfinished else lines[:-1], start=1):
        try:
            line = parse_json(text)
            valid = _is_entry(line) and bool(_as_json(line).encode())
        except (ValueError, RecursionError, OverflowError):
            valid = False
        if valid:
            rows.append(line)
        elif number == unfinished or _is_torn(text):
            torn += 1
        else:
            got, hint = repr(text[:60]), "Remove this line, or the file: training will write it again."
            raise DataError(Place(path, number), "a line with step, kind and figures", got, hint)
    if torn and say is not None:
        say(f"Dropping {quantity(torn, 'damaged line')} of {path}: the process, power or disk failed.")
    return rows


def _is_torn(text: bytes) -> bool:
    """Return whether an invalid line is what a power failure leaves: zeros, or a part of a line that qkv wrote."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return not text or b"\0" in text or text.startswith(b'{"') or text.endswith(b"}")
    return False


def _is_entry(line: Any) -> bool:
    """Return whether a line has a step, a kind, and otherwise figures: finite numbers, or null for others."""
    if not isinstance(line, dict):
        return False
    figures = [figure for name, figure in line.items() if name != "kind" and figure is not None]
    has_step = type(step := line.get("step")) is int and step >= 0 and isinstance(line.get("kind"), str)
    return has_step and all(isinstance(figure, int | float) and math.isfinite(figure) for figure in figures)


def _as_json(line: dict[str, Any]) -> str:
    # JSON has no infinity.
    finite = {name: None if isinstance(x, float) and not math.isfinite(x) else x for name, x in line.items()}
    return json.dumps(finite, ensure_ascii=False, allow_nan=False) + "\n"
