"""Copying strings ten times as long as in training: which attention generalizes to longer inputs."""

import json
import os
import shutil
import statistics
from pathlib import Path
from typing import Any

import torch

from qkv.data.corpus import Pair
from qkv.metrics.edits import token_error_rate
from qkv.metrics.matches import exact_match
from qkv.tasks.drawing import alignments
from qkv.tasks.translate.decoding import Decoding
from qkv.tasks.translate.predict import Translator
from qkv.view.export import save
from results import reverse
from results.row import QKV, ResultRow
from results.transduction import shown
from results.transduction_data import write
from results.usage import run as timed

LONGEST, TIMES, SEEDS = 20, 10, (0, 1, 2)
_TESTED, _DRAWN = 50, 24

MECHANISMS = {
    "softmax, additive score": ("--score", "additive"),
    "softmax, location-sensitive score": ("--score", "location"),
    "hard monotonic, order 0": ("--alignment", "monotonic-0"),
    "hard monotonic, order 1": ("--alignment", "monotonic-1"),
}
"""What is compared, and the flags that choose it."""


ROWS = (ResultRow("long_copying", "Copying strings ten times as long as in training"),)


def strings(count: int, seed: int, shortest: int, longest: int) -> list[Pair]:
    """Draw random strings of letters, each with itself as target.

    Example:
        >>> pair = strings(1, 0, 3, 3)[0]
        >>> pair.source == pair.target, len(pair.source)
        (True, 3)
    """
    drawn = reverse.generate(count, seed, shortest=shortest, longest=longest)
    return [Pair(pair.source, pair.source, pair.line) for pair in drawn]


def run_row(row: ResultRow, data: Path, run: Path, *, train: bool) -> None:
    """Train each mechanism with each seed, and copy strings of both lengths; finished ones are not repeated.

    Args:
        row: the row.
        data: unused: the strings are generated.
        run: folder for files and run folders.
        train: whether to train, or only score finished runs again.
    """
    write(strings(20_000, 0, 1, LONGEST), run / "train.tsv")
    write(strings(200, 1, 1, LONGEST), run / "valid.tsv")
    tests = {"as in training": strings(_TESTED, 2, 1, LONGEST)}
    tests["ten times as long"] = strings(_TESTED, 3, TIMES * LONGEST, TIMES * LONGEST)
    record: dict[str, Any] = json.loads(row.record.read_text(encoding="utf-8")) if row.record.exists() else {}
    for seed in SEEDS:
        for mechanism, flags in MECHANISMS.items():
            place = run / f"{_name(flags)}-{seed}"
            command = [str(QKV), "train", "translate", "--data", str(run / "train.tsv")]
            command += ["--valid-data", str(run / "valid.tsv"), "--config", str(row.config)]
            command += [*flags, "--seed", str(seed), "--out", str(place)]
            if train:
                timed(command, place.with_suffix(".usage.json"))
            usage = json.loads(place.with_suffix(".usage.json").read_text(encoding="utf-8"))
            cell = {"figures": score(place, tests), "usage": usage, "command": " ".join(map(shown, command))}
            record.setdefault(mechanism, {})[str(seed)] = cell
            record["machine"] = f"{os.cpu_count()} cores, PyTorch {torch.__version__}"
            row.kept.mkdir(parents=True, exist_ok=True)
            row.record.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            if seed == SEEDS[0]:
                _draw(place, row.kept / f"{_name(flags)}.png")


def score(run: Path, tests: dict[str, list[Pair]]) -> dict[str, dict[str, float]]:
    """Copy strings greedily.

    Args:
        run: a run folder.
        tests: strings by name.

    Returns:
        By name, in percent: strings copied exactly, and wrong letters (edits per letter).
    """
    translator, found = Translator.load(run), {}
    for name, pairs in tests.items():
        copies = translator.translate_fully([pair.source for pair in pairs], Decoding())
        texts, right = [each.text for each in copies], [pair.target for pair in pairs]
        errors = token_error_rate([list(text) for text in texts], [list(text) for text in right])
        found[name] = {"exact": exact_match(texts, right).value, "letter_errors": errors.value}
    return found


def _name(flags: tuple[str, str]) -> str:
    return "-".join(flags).strip("-")


def _draw(run: Path, picture: Path) -> None:
    translator = Translator.load(run)
    made = picture.with_name("drawn.png")
    save(made, alignments(translator.translate_fully([strings(1, 4, _DRAWN, _DRAWN)[0].source], attention=True)))
    shutil.move(made, picture)


_HEAD = f"""## Copying ten times as long as in training

Strings of {LONGEST} random letters at most in training, {TIMES * LONGEST} in the test; a GRU of 64 that differs in its
attention alone. Percent of letters wrong (edits per letter) and of strings copied exactly: mean and range of the
seeds. Scores of content, under a softmax or monotonic of order 0, can tell equal letters apart only by counting, which
ends where training ended. What starts from the last position goes on at any length: convolved weights, and jumps.

| attention | seeds | wrong, up to {LONGEST} | exact | wrong, {TIMES * LONGEST} | exact | processor time |
|---|---|---|---|---|---|---|
"""


def section() -> str:
    """Return the section of `docs/project/results.md`."""
    (row,) = ROWS
    if not row.record.exists():
        return ""
    record = json.loads(row.record.read_text(encoding="utf-8"))
    lines = [_line(name, list(record[name].values())) for name in MECHANISMS if name in record]
    commands = "\n".join(f"  - `{record[name]['0']['command']}`" for name in MECHANISMS if name in record)
    return (
        f"{_HEAD}{''.join(lines)}\n- commands of seed 0; `python -m results --data FOLDER --row {row.name}` writes "
        f"the files and runs all\n{commands}\n"
        f"- settings: [`results/{row.config.name}`](../../results/{row.config.name})\n"
        f"- machine: {record['machine']}, {record[next(iter(MECHANISMS))]['0']['usage']['threads']} thread\n\n"
    )


def _line(name: str, cells: list[dict[str, Any]]) -> str:
    columns = [
        _spread([cell["figures"][test][figure] for cell in cells])
        for test in ("as in training", "ten times as long")
        for figure in ("letter_errors", "exact")
    ]
    minutes = statistics.mean(cell["usage"]["processor_seconds"] for cell in cells) / 60
    return f"| {name} | {len(cells)} | {' | '.join(columns)} | {minutes:.1f} min |\n"


def _spread(values: list[float]) -> str:
    return f"{statistics.mean(values):.1f} ({min(values):.1f} to {max(values):.1f})"
