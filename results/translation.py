"""Translation rows: trained by `qkv train translate`, decoded greedily and with a beam, scored in two ways."""

import json
import os
import platform
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import qkv
from qkv.checkpoint.disk import replace_file
from qkv.data.corpus import Pair, read_pairs
from qkv.metrics.figure import Figure
from qkv.tasks.drawing import alignments
from qkv.tasks.translate.decoding import Decoding
from qkv.tasks.translate.predict import Translator
from qkv.view.export import save
from results.row import QKV, ROOT
from results.rows import ROWS, Row
from results.scoring import score
from results.usage import run as timed

_SHOWN = 8
__all__ = ["ROWS", "decoded", "run_row"]


def run_row(row: Row, data: Path, run: Path, *, train: bool) -> None:
    """Train a row, score it on its test set, and store figures and logs in the repository.

    Args:
        row: the row to run.
        data: folder with the data sets.
        run: the run folder.
        train: whether to train, or only score a finished run again.
    """
    folder, kept = data / row.folder, row.record.parent
    runs = [run, *(run.with_name(f"{run.name}_then") for _ in row.configs[1:])]
    commands = _commands(row, folder, runs)
    if train:
        if row.either_way:
            _write_either_way(row, folder, run)
        if not run.exists():
            (kept / "usage.json").unlink(missing_ok=True)
        for command in commands:
            timed(command, kept / "usage.json")
    kept.mkdir(parents=True, exist_ok=True)
    for each, ending in zip(runs, ("", "-then"), strict=False):
        for name in ("metrics.jsonl", "loss.png"):
            stem, kind = name.split(".")
            shutil.copy(each / name, kept / f"{stem}{ending}.{kind}")
    pairs = read_pairs(folder / f"{row.test}.{row.source}", folder / f"{row.test}.{row.target}")
    translator = qkv.load(runs[-1], task="translate")
    record = {
        **decoded(translator, pairs, row, row.beam),
        "also": {"beam": 5, **decoded(translator, pairs, row, 5)} if row.beam == 1 else None,
        "usage": json.loads((kept / "usage.json").read_text(encoding="utf-8")),
        "training_seconds": sum(_training_seconds(each / "metrics.jsonl") for each in runs),
        "parameters": sum(parameter.numel() for parameter in translator.model.parameters()),
        "commands": [
            " ".join(_shown(part, runs) for part in command) for command in (*_joining(row, folder, run), *commands)
        ],
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, PyTorch {torch.__version__}",
    }
    row.record.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    shown = translator.translate_fully([pair.source for pair in pairs[:_SHOWN]], attention=True)
    save(kept / "alignment.html", alignments(shown))
    save(kept / "alignment.png", alignments(shown[:1]))
    print(json.dumps(record["figures"], indent=2))


def decoded(translator: Translator, pairs: Sequence[Pair], row: Row, beam: int) -> dict[str, Any]:
    """Translate and score.

    Args:
        translator: a trained model.
        pairs: sources and human translations.
        row: defines the tokenization.
        beam: beam width.

    Returns:
        The figures, and the decoding time in seconds.
    """
    start = time.perf_counter()
    how = Decoding(beam, length_penalty=row.length_penalty if beam > 1 else 1.0)
    hypotheses = translator.translate([pair.source for pair in pairs], how)
    seconds = time.perf_counter() - start
    figures = score(hypotheses, [pair.target for pair in pairs], row.target, row.words)
    return {"figures": {figure.name: _figure_record(figure) for figure in figures}, "decoding_seconds": seconds}


def _figure_record(figure: Figure) -> dict[str, Any]:
    return {"value": figure.value, "signature": figure.signature}


def _commands(row: Row, folder: Path, runs: Sequence[Path]) -> list[list[str]]:
    files = {
        "--source": folder / f"train.{row.source}",
        "--target": folder / f"train.{row.target}",
        "--valid-source": folder / f"val.{row.source}",
        "--valid-target": folder / f"val.{row.target}",
    }
    commands = []
    for place, (config, run) in enumerate(zip(row.configs, runs, strict=True)):
        joined = _either_way(run) if row.either_way and not place else (files["--source"], files["--target"])
        flags = (
            files
            | dict(zip(("--source", "--target"), joined, strict=True))
            | {"--config": config}
            | ({"--from": runs[0]} if place else {})
            | {"--out": run}
        )
        commands.append([str(QKV), "train", "translate", *(str(part) for pair in flags.items() for part in pair)])
    return commands


def _either_way(run: Path) -> tuple[Path, Path]:
    """Return the files with the sources and the targets of all pairs in both directions."""
    return run.with_name(f"{run.name}.source"), run.with_name(f"{run.name}.target")


def _joined(row: Row, folder: Path, run: Path) -> list[tuple[Path, Path, Path]]:
    """List which files are concatenated, and into which file."""
    first, second = (folder / f"train.{language}" for language in (row.source, row.target))
    source, target = _either_way(run)
    return [(first, second, source), (second, first, target)]


def _write_either_way(row: Row, folder: Path, run: Path) -> None:
    for first, second, joined in _joined(row, folder, run):
        joined.parent.mkdir(parents=True, exist_ok=True)
        replace_file(joined, first.read_bytes() + second.read_bytes())


def _joining(row: Row, folder: Path, run: Path) -> list[list[str]]:
    """Return the equivalent command lines."""
    parts = _joined(row, folder, run) if row.either_way else []
    return [["cat", str(first), str(second), ">", str(joined)] for first, second, joined in parts]


def _shown(part: str, runs: Sequence[Path]) -> str:
    """Strip this machine's folders from file names."""
    path = Path(part)
    if path == QKV:
        return "qkv"
    if path in runs or path in _either_way(runs[0]):
        return f"runs/{path.name}"
    if not path.is_absolute():
        return part
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else f"{path.parent.name}/{path.name}"


def _training_seconds(log: Path) -> float:
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    seconds: float = max(line["seconds"] for line in lines if "seconds" in line)
    return seconds
