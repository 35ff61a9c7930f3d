"""Train and score rows of the result table, then write `docs/results.md`.

    python -m results --data FOLDER                        every row, one after another
    python -m results --data FOLDER --row multi30k_gru     one row
    python -m results                                      write the table from the figures kept

FOLDER holds a folder `multi30k` with train.de, train.en, val.de, ..., `tinyshakespeare` with input.txt,
`g2p_sigmorphon2021` with hun_train.tsv, hun_dev.tsv, ..., and `scan` with tasks_train_simple.txt, ...
"""

import argparse
import json
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

import qkv
from qkv.data.corpus import read_pairs
from qkv.tasks.drawing import draw
from results import language, transduction
from results.rows import ROWS, Row
from results.scoring import score
from results.table import write_table

ROOT = Path(__file__).parent.parent
QKV = Path(sys.executable).parent / "qkv"


def main() -> None:
    """Read the command line, run what it names, write the table."""
    parser = argparse.ArgumentParser(prog="python -m results", description=__doc__)
    parser.add_argument("--data", type=Path, help="the folder of the data sets")
    parser.add_argument("--row", choices=_names(), action="append", help="one row; all by default")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs", help="where run folders go")
    parser.add_argument("--score-only", action="store_true", help="score a finished run again")
    given = parser.parse_args()
    if given.data is not None:
        for row in ROWS:
            if given.row is None or row.name in given.row:
                run_row(row, given.data, given.runs / row.name, train=not given.score_only)
        for text_row in language.ROWS:
            if given.row is None or text_row.name in given.row:
                language.run_row(text_row, given.data, given.runs / text_row.name, train=not given.score_only)
        for short in transduction.ROWS:
            if given.row is None or short.name in given.row:
                transduction.run_row(short, given.data, given.runs / short.name, train=not given.score_only)
    write_table(ROOT / "docs" / "results.md")


def _names() -> list[str]:
    return [row.name for row in (*ROWS, *language.ROWS, *transduction.ROWS)]


def run_row(row: Row, data: Path, run: Path, *, train: bool) -> None:
    """Train a row, score it on its test set, and keep figures and logs in the repository."""
    folder = data / row.folder
    command = _command(row, folder, run)
    if train:
        subprocess.run(command, check=True)
    kept = row.record.parent
    kept.mkdir(parents=True, exist_ok=True)
    for name in ("metrics.jsonl", "loss.png"):
        shutil.copy(run / name, kept / name)
    pairs = read_pairs(folder / f"{row.test}.{row.source}", folder / f"{row.test}.{row.target}")
    translator = qkv.load(run)
    start = time.perf_counter()
    hypotheses = translator.translate([pair.source for pair in pairs])
    seconds = time.perf_counter() - start
    figures = score(hypotheses, [pair.target for pair in pairs], row.target)
    record: dict[str, Any] = {
        "figures": {figure.name: {"value": figure.value, "signature": figure.signature} for figure in figures},
        "training_seconds": _training_seconds(run / "metrics.jsonl"),
        "decoding_seconds": seconds,
        "parameters": sum(parameter.numel() for parameter in translator.model.parameters()),
        "command": " ".join(_shown(part) for part in command),
        "machine": f"{torch.get_num_threads()} threads, {platform.machine()}, PyTorch {torch.__version__}",
    }
    row.record.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    shown = translator.translate_fully([pair.source for pair in pairs[:8]], attention=True)
    draw(shown, kept / "alignment.html", terminal=False)
    draw(shown[:1], kept / "alignment.png", terminal=False)
    print(json.dumps(record["figures"], indent=2))


def _command(row: Row, folder: Path, run: Path) -> list[str]:
    files = {
        "--source": folder / f"train.{row.source}",
        "--target": folder / f"train.{row.target}",
        "--valid-source": folder / f"val.{row.source}",
        "--valid-target": folder / f"val.{row.target}",
        "--config": row.config,
        "--out": run,
    }
    return [str(QKV), "train", "translate", *(str(part) for pair in files.items() for part in pair)]


def _shown(part: str) -> str:
    """Names without this machine's folders."""
    path = Path(part)
    if path == QKV:
        return "qkv"
    if not path.is_absolute():
        return part
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else f"{path.parent.name}/{path.name}"


def _training_seconds(log: Path) -> float:
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    return max(line["seconds"] for line in lines if "seconds" in line)


if __name__ == "__main__":
    main()
