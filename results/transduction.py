"""Rows of short texts that are right or wrong as a whole: dates, reversed symbols, actions."""

import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from qkv.data.corpus import Pair
from qkv.metrics.edits import token_error_rate
from qkv.metrics.matches import accuracy, exact_match
from qkv.metrics.translation import tokenized_bleu
from qkv.tasks.drawing import alignments
from qkv.tasks.translate.predict import Translation, Translator
from qkv.view.export import save
from results.row import QKV, ROOT, ResultRow
from results.transduction_data import Parts, date_parts, reverse_parts, scan_parts, write
from results.usage import run as timed

_SHOWN = 8


@dataclass(frozen=True)
class ShortRow(ResultRow):
    """One line of the table.

    Args:
        name, what: as for any row.
        published: the published figure, as text.
        source: where the published figure is from.
        asked: the target, as text.
        parts: makes the pairs from the data folder.
        symbols: splits a target into symbols.
        average: number of last checkpoints whose weights are averaged; 1 takes the best checkpoint.
        note: further notes for the reader.
    """

    published: str
    source: str
    asked: str
    parts: Callable[[Path], Parts]
    symbols: Callable[[str], list[str]] = list
    average: int = 1
    note: str = ""


_LAKE = "Lake and Baroni 2018, the best model of the experiment"
_CORNERS = (
    "A turn and the following action form one target word (`I_TURN_LEFT I_WALK` is `LW`), so an action around a corner "
    "is as long as the turn alone."
)

ROWS = (
    ShortRow(
        "dates",
        "Dates, exact",
        "99.99 % of characters",
        "ageron/handson-ml3, chapter 16, LSTM without attention, 10,000 dates",
        "99.9 (aim 100)",
        lambda data: date_parts(),
        note="Neither the texts nor the days of the 10,000 test dates occur in training.",
    ),
    ShortRow(
        "reverse",
        "Reverse, exact",
        "95.2 BLEU",
        "Joey NMT's tutorial, LSTM of 64 with Luong's attention",
        "99 (aim 100)",
        lambda data: reverse_parts(),
        note="As in the tutorial, test sequences have up to 30 symbols and training ones up to 25.",
    ),
    ShortRow(
        "scan_simple",
        "SCAN, simple split, exact",
        "99.8",
        _LAKE,
        "99.8 (aim 100)",
        lambda data: scan_parts(data / "scan", "simple"),
        symbols=str.split,
        average=2,
        note=_CORNERS,
    ),
    ShortRow(
        "scan_length",
        "SCAN, length split, exact",
        "20.8",
        f"{_LAKE}: a GRU of 50 with attention",
        "20.8 (aim 50)",
        lambda data: scan_parts(data / "scan", "length"),
        symbols=str.split,
        average=2,
        note=f"{_CORNERS} Four of five test commands contain an action around a corner three times, which no training "
        "command does: the model must transfer the counting from `turn around left thrice`, which training has.",
    ),
)


def run_row(row: ShortRow, data: Path, run: Path, *, train: bool) -> None:
    """Train a row, score it on its test pairs, and store figures, logs and a map in the repository.

    Args:
        row: the row to run.
        data: folder with the data sets.
        run: folder for its files and run folders.
        train: whether to train, or only score a finished run again.
    """
    parts = row.parts(data)
    for name, pairs in parts._asdict().items():
        write(pairs, run / f"{name}.tsv")
    model, usage = run / "seed-0", row.kept / "usage.json"
    command = _command(row, run, model)
    if train and not model.exists():
        usage.unlink(missing_ok=True)
    if train:
        timed(command, usage)
    for name in ("metrics.jsonl", "loss.png"):
        shutil.copy(model / name, row.kept / name)
    translator = Translator.load(model, average=row.average)
    start = time.perf_counter()
    found = translator.translate_fully([pair.source for pair in parts.test])
    record: dict[str, Any] = {
        "figures": judge(found, parts.test, row.symbols),
        "usage": json.loads(usage.read_text(encoding="utf-8")),
        "decoding_seconds": round(time.perf_counter() - start, 1),
        "parameters": sum(parameter.numel() for parameter in translator.model.parameters()),
        "commands": [" ".join(map(shown, command)), _decoding(row)],
        "machine": f"{os.cpu_count()} cores, PyTorch {torch.__version__}",
    }
    row.record.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    drawn = translator.translate_fully([pair.source for pair in parts.test[:_SHOWN]], attention=True)
    save(row.kept / "alignment.html", alignments(drawn))
    save(row.kept / "alignment.png", alignments(drawn[:1]))
    print(json.dumps(record["figures"], indent=1))


def judge(
    found: Sequence[Translation], pairs: Sequence[Pair], symbols: Callable[[str], list[str]] = list
) -> dict[str, float]:
    """Score texts.

    Args:
        found: model outputs.
        pairs: sources and correct targets.
        symbols: splits a target into symbols.

    Returns:
        In percent: exact texts; correct symbols by position and symbol errors; BLEU over symbols; and the
        number of texts that were cut at the length limit.
    """
    hypotheses, references = [each.text for each in found], [pair.target for pair in pairs]
    ours, theirs = [symbols(text) for text in hypotheses], [symbols(text) for text in references]
    places = [
        (h[at] if at < len(h) else None, symbol)
        for h, r in zip(ours, theirs, strict=True)
        for at, symbol in enumerate(r)
    ]
    return {
        "exact": exact_match(hypotheses, references).value,
        "symbols_in_place": accuracy(*zip(*places, strict=True)).value,
        "symbol_errors": token_error_rate(ours, theirs).value,
        "symbol_bleu": tokenized_bleu(ours, theirs).value,
        "unfinished": sum(not each.finished for each in found),
    }


def _command(row: ShortRow, run: Path, model: Path) -> list[str]:
    flags = {
        "--data": run / "train.tsv",
        "--valid-data": run / "valid.tsv",
        "--config": row.config,
        "--seed": 0,
        "--out": model,
    }
    return [str(QKV), "train", "translate", *(str(part) for pair in flags.items() for part in pair)]


def _decoding(row: ShortRow) -> str:
    average = f" --average {row.average}" if row.average > 1 else ""
    return f"cut -f 1 runs/{row.name}/test.tsv | qkv translate runs/{row.name}/seed-0{average}"


def shown(part: str) -> str:
    """Strip this machine's folders from a part of a command."""
    path = Path(part)
    if path == QKV:
        return "qkv"
    if not path.is_absolute():
        return part
    # Runs can be anywhere; the page names them as if they were here.
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else f"runs/{path.parent.name}/{path.name}"
