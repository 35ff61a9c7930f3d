"""Language model rows: trained on tiny Shakespeare, timed, with a sample of generated text."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import qkv
from qkv.data.text import divide, read_text
from results.row import QKV, ResultRow
from results.usage import run as timed

_PROMPT, _SAMPLE = "KING RICHARD III:\n", 400


@dataclass(frozen=True)
class TextRow(ResultRow):
    """One line of the table.

    Args:
        name, what: as for any row.
        published: the published figure, as text.
        asked: the target validation loss.
        against: whether nanoGPT's training is timed in the same run.
    """

    published: str
    asked: float
    against: bool


ROWS = (
    TextRow(
        "shakespeare_race",
        "Shakespeare characters, time to a validation loss of 1.88",
        "nanoGPT: 2,000 updates of 768 characters",
        1.88,
        True,
    ),
    TextRow(
        "shakespeare_15min",
        "Shakespeare characters, 15 minutes",
        "nanoGPT: 1.47 (one A100, 3 minutes)",
        1.60,
        False,
    ),
)


def run_row(row: TextRow, data: Path, run: Path, *, train: bool) -> None:
    """Train a row, score it on the held-out text, and store figures, logs and a sample in the repository."""
    text = data / "tinyshakespeare" / "input.txt"
    config = row.config
    if train:
        # At the same time, so that other load on the machine affects both.
        nanogpt = [sys.executable, "-m", "results.nanogpt", str(text), str(row.kept / "nanogpt.json")]
        nanogpt_run = subprocess.Popen(nanogpt) if row.against else None
        command = [str(QKV), "train", "generate", "--text", str(text), "--config", str(config), "--out", str(run)]
        timed(command, row.kept / "usage.json")
        if nanogpt_run is not None and nanogpt_run.wait():
            raise SystemExit(nanogpt_run.returncode)
    for name in ("metrics.jsonl", "loss.png"):
        shutil.copy(run / name, row.kept / name)
    generator = qkv.load(run, task="generate")
    (sample,) = generator.generate([_PROMPT], tokens=_SAMPLE, temperature=0.8, seed=1)
    record: dict[str, Any] = {
        "figures": {
            figure.name: {"value": figure.value, "signature": figure.signature}
            for figure in generator.evaluate(divide(read_text(text), 0.1)[1])
        },
        "usage": json.loads((row.kept / "usage.json").read_text(encoding="utf-8")),
        "parameters": sum(parameter.numel() for parameter in generator.model.parameters()),
        "sample": sample,
        "machine": f"{os.cpu_count()} cores, PyTorch {torch.__version__}",
    }
    if row.against:
        record["nanogpt"] = json.loads((row.kept / "nanogpt.json").read_text(encoding="utf-8"))
    row.record.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(json.dumps(record["figures"], indent=1))


def section() -> str:
    """Return the section of the page on language models."""
    lines = "".join(_line(row) for row in ROWS)
    return f"{_HEAD}{lines}\n{''.join(_details(row) for row in ROWS if row.record.exists())}"


_HEAD = """## Language models

Loss is in nats per character over the whole held-out tenth of tiny Shakespeare (nanoGPT's split). Each character is
predicted once, in adjacent windows of the model's context length. Processor time is that of the whole command on one
thread, including startup and validation. Wall time depends on the load of the shared machine, given in parentheses.

| row | published | loss | target | parameters | processor time | wall time (load) |
|---|---|---|---|---|---|---|
"""


def _line(row: TextRow) -> str:
    if not row.record.exists():
        return f"| {row.what} | {row.published} | not run | {row.asked:.2f} | | | |\n"
    record = json.loads(row.record.read_text(encoding="utf-8"))
    usage = record["usage"]
    wall = f"{usage['wall_seconds']:.0f} s ({usage['load'][1]:.0f} on {usage['cores']} cores)"
    line = (
        f"| {row.what} | {row.published} | **{record['figures']['loss']['value']:.3f}** | {row.asked:.2f} "
        f"| {record['parameters'] / 1e6:.1f} M | {usage['processor_seconds']:.0f} s | {wall} |\n"
    )
    if "nanogpt" not in record:
        return line
    other = record["nanogpt"]
    wall = f"{other['wall_seconds']:.0f} s"
    theirs = f"| nanoGPT, same machine | | {other['loss']:.3f} | | 0.8 M | {other['processor_seconds']:.0f} s "
    return line + f"{theirs}| {wall} |\n"


def _details(row: TextRow) -> str:
    record = json.loads(row.record.read_text(encoding="utf-8"))
    folder = f"../../results/runs/{row.name}"
    quoted = "\n".join(f"> {line}  " if line else ">" for line in record["sample"].splitlines())
    compared = ""
    if "nanogpt" in record:
        share = record["usage"]["processor_seconds"] / record["nanogpt"]["processor_seconds"]
        compared = (
            f"\n- processor time: {share:.2f} of that of nanoGPT's 2,000 updates (excluding its startup and validation)"
        )
    return f"""### {row.what}

- command: `python -m results --data FOLDER --row {row.name}`
- settings: [`results/{row.name}.toml`](../../results/{row.name}.toml), seed 0{compared}
- machine: {record["machine"]}, {record["usage"]["threads"]} thread
- log: [`metrics.jsonl`]({folder}/metrics.jsonl)

![Loss of training and validation]({folder}/loss.png)

What it writes, at temperature 0.8:

{quoted}

"""
