"""Train each kind of model for a few hundred updates at several learning rates, to choose the defaults.

    python -m results.learning_rates --data FOLDER                  train what has no stored figures
    python -m results.learning_rates --data FOLDER --set sst2       one data set; may be given several times

FOLDER is as for `python -m results`. The settings, in `learning_rates.toml`, are the defaults of each task but for the
sizes given there. Figures are those of the best checkpoint, on validation data; they are stored in
`results/runs/learning_rates` after each training, so that the command can be interrupted and continued. `python -m
results` then writes docs/project/results.md.
"""

import argparse
import json
import os
import re
import tempfile
import time
import tomllib
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch

import qkv
from qkv.tasks.settings import LEARNING_RATE
from results.row import ROOT

KEPT = ROOT / "results" / "runs" / "learning_rates"
_SENTENCE = re.compile(r"[A-Z][^.!?]{20,200}[.!?]")


class Cell(NamedTuple):
    """One training.

    Attributes:
        data: the name of the data set.
        model: the kind of model.
        rate: the learning rate.
    """

    data: str
    model: str
    rate: float

    @property
    def key(self) -> str:
        """The key of its figures."""
        return f"{self.model} {self.rate:g}"


def settings() -> dict[str, Any]:
    """Read `results/learning_rates.toml`."""
    return tomllib.loads((ROOT / "results" / "learning_rates.toml").read_text(encoding="utf-8"))


def read(data: str) -> dict[str, Any]:
    """Return the stored figures of a data set: settings, machine, and figures by model and rate."""
    path = KEPT / f"{data}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"cells": {}}


def _store(cell: Cell, row: Mapping[str, Any], figures: Mapping[str, Any]) -> None:
    record, used = read(cell.data), {name: row[name] for name in ("task", "figure", "settings")}
    if record.setdefault("settings", used) != used:
        raise SystemExit(f"{KEPT / cell.data}.json has figures of other settings: delete it, or restore the settings.")
    record["machine"] = f"{os.cpu_count()} cores, 1 thread, PyTorch {torch.__version__}"
    record["cells"][cell.key] = figures
    KEPT.mkdir(parents=True, exist_ok=True)
    new = KEPT / f"{cell.data}.new"
    new.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    new.replace(KEPT / f"{cell.data}.json")


def train(cell: Cell, row: Mapping[str, Any], files: Mapping[str, Any]) -> dict[str, Any]:
    """Train one model, and return its best validation figure."""
    start = time.process_time()
    options = {"validate_every": row["settings"]["steps"] // 2, "monitor": row["figure"], "seed": 0, "quiet": True}
    with tempfile.TemporaryDirectory() as folder:
        options |= {"out": Path(folder) / "run", "model": cell.model, "learning_rate": cell.rate}
        run = qkv.train(row["task"], **options, **files, **row["settings"])
    best = run.outcome.best
    assert best is not None
    return {row["figure"]: round(best.value, 4), "processor_seconds": round(time.process_time() - start, 1)}


def files_of(data: str, folder: Path) -> dict[str, Any]:
    """Return the training and validation files of a data set, as settings."""
    match data:
        case "multi30k" | "multi30k_long":
            return {"data": _pairs(folder, "train", 5000), "valid_data": _pairs(folder, "val", 200)}
        case "pronunciation":
            g2p = folder / "g2p_sigmorphon2021"
            return {"data": g2p / "fre_train.tsv", "valid_data": g2p / "fre_dev.tsv"}
        case "shakespeare":
            return {"text": folder / "tinyshakespeare" / "input.txt", "holdout": 0.01}
        case "sst2":
            lines = _lines(folder / "sst2" / "train.tsv")
            texts = [(label, text) for label, _, text in (line.partition("\t") for line in lines)]
            return {"data": texts[:6000], "valid_data": texts[6000:]}
        case _:
            text = " ".join((folder / "war_and_peace" / "war_and_peace.txt").read_text(encoding="utf-8").split())
            sentences = [match.group().split() for match in islice(_SENTENCE.finditer(text), 3500)]
            tagged = [[(word.lower(), _capital(word)) for word in words] for words in sentences]
            return {"data": tagged[:3000], "valid_data": tagged[3000:]}


def _capital(word: str) -> str:
    return "capital" if word[:1].isupper() else "small"


def _pairs(folder: Path, part: str, count: int) -> list[tuple[str, str]]:
    sides = (_lines(folder / "multi30k" / f"{part}.{language}") for language in ("de", "en"))
    return list(islice(zip(*sides, strict=True), count))


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def section() -> str:
    """Return the section of the page on learning rates."""
    sets = settings()["sets"]
    count = sum(len(rates) for row in sets.values() for rates in row["rates"].values())
    done = sum(len(read(data)["cells"]) for data in sets)
    machines = sorted({record["machine"] for data in sets if "machine" in (record := read(data))})
    tables = "".join(_table(data, row) for data, row in sets.items() if read(data)["cells"])
    return f"""## Learning rates of short trainings

Best figure on validation data, one seed, by kind of model and learning rate; what is not given below is a default of
the task. Of {count} trainings {done} were run. By default, recurrent translators, classifiers and taggers train at
{LEARNING_RATE["gru"]:g}, others at {LEARNING_RATE["others"]:g}.

{tables}- command: `python -m results.learning_rates --data FOLDER`, which can be interrupted and continued
- settings: [`results/learning_rates.toml`](../../results/learning_rates.toml); figures:
  [`results/runs/learning_rates`](../../results/runs/learning_rates)
- machine: {"; ".join(machines) or "none"}
"""


def _table(data: str, row: Mapping[str, Any]) -> str:
    cells = read(data)["cells"]
    rates = sorted({rate for of_model in row["rates"].values() for rate in of_model})
    lines = [f"| model | {' | '.join(f'{rate:g}' for rate in rates)} |", f"|---|{'---|' * len(rates)}"]
    for model in row["rates"]:
        found = [cells.get(Cell(data, model, rate).key, {}).get(row["figure"]) for rate in rates]
        lines.append(f"| {model} | {' | '.join('' if x is None else f'{x:.4g}' for x in found)} |")
    options = ", ".join(f"{name} {value}" for name, value in row["settings"].items() if name != "target_sep")
    return f"### {row['what']}: {row['figure']}\n\n`{row['task']}`, {options}.\n\n" + "\n".join(lines) + "\n\n"


def main() -> None:
    """Parse the command line and train."""
    sets = settings()["sets"]
    parser = argparse.ArgumentParser(prog="python -m results.learning_rates", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with the data sets")
    parser.add_argument("--set", choices=sets, action="append", help="one data set; all by default")
    parser.add_argument("--model", action="append", help="one kind of model; all by default")
    parser.add_argument("--rate", type=float, action="append", help="one learning rate; all by default")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for data in options.set or sets:
        files = files_of(data, options.data)
        for cell in (Cell(data, model, rate) for model, rates in sets[data]["rates"].items() for rate in rates):
            chosen = cell.model in (options.model or [cell.model]) and cell.rate in (options.rate or [cell.rate])
            if chosen and cell.key not in read(data)["cells"]:
                figures = train(cell, sets[data], files)
                _store(cell, sets[data], figures)
                print(data, cell.key, figures, flush=True)


if __name__ == "__main__":
    main()
