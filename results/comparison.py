"""What `qkv compare` gives and costs: strings reversed, beside the same trainings and tests by hand."""

import csv
import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch

from results.mechanisms import CONTROLS
from results.row import QKV, ResultRow, parts_of_page
from results.transduction_data import short_parts, write
from results.usage import run as timed

ROWS = (ResultRow("comparison", "What a comparison costs"),)
_BY_HAND = 'run=$1 test=$2; shift 2; qkv train translate --out "$run" "$@" && qkv evaluate "$run" --data "$test" --json'


def run_row(row: ResultRow, data: Path, run: Path, *, train: bool) -> None:
    """Compare cells with one command, train and test each with two, and store table and cost in the repository.

    Args:
        row: the row to run.
        data: unused; the strings are generated here.
        run: where to create files and run folders; what is complete there stays.
        train: whether to train, or only store the figures of finished runs again.
    """
    settings = tomllib.loads(row.config.read_text(encoding="utf-8"))
    for name, pairs in short_parts(settings["data"])._asdict().items():
        write(pairs, run / f"{name}.tsv")
    # Both are commands of one thread, found by their names.
    os.environ |= {"OMP_NUM_THREADS": "1", "PATH": f"{QKV.parent}{os.pathsep}{os.environ['PATH']}"}
    files = {"data": run / "train.tsv", "valid_data": run / "valid.tsv"}
    common = _flags({**files, **settings["training"]})
    cells = [*product(settings["scores"], settings["normalizers"]), *((score, "") for score in CONTROLS)]
    if train:
        compared = {"test_data": run / "test.tsv", "out": run / "compared", "seeds": settings["seeds"]}
        varied = {"score": ",".join(settings["scores"]), "normalizer": ",".join(settings["normalizers"])}
        _once(["qkv", "compare", "translate", *common, *_flags({**compared, **varied})], run / "compared")
        for seed, (score, normalizer) in product(range(settings["by_hand"]), cells):
            by_hand = _by_hand(run, score, normalizer, seed)
            own = {"score": score, "seed": seed} | ({"normalizer": normalizer} if normalizer else {})
            files_of_run = [str(by_hand), str(run / "test.tsv")]
            _once(["sh", "-c", _BY_HAND + f" > {by_hand}.jsonl", "sh", *files_of_run, *common, *_flags(own)], by_hand)
    with (run / "compared" / "comparison.csv").open(encoding="utf-8", newline="") as lines:
        trainings = list(csv.DictReader(lines))
    twice = [line for line in trainings if int(line["seed"]) < settings["by_hand"]]
    hands = [_by_hand(run, line["score"], line["normalizer"], int(line["seed"])) for line in twice]
    record = {
        "table": (run / "compared" / "comparison.md").read_text(encoding="utf-8"),
        "settings": settings,
        "trainings": len(trainings),
        "trainings_by_hand": len(hands),
        "equal": sum(float(line["exact_match"]) == _exact_match(hand) for line, hand in zip(twice, hands, strict=True)),
        "training_seconds": sum(float(line["processor_seconds"]) for line in trainings),
        "compared": _usage([run / "compared"]),
        "by_hand": _usage(hands),
        "machine": f"{os.cpu_count()} cores, 1 thread, PyTorch {torch.__version__}",
    }
    row.kept.mkdir(parents=True, exist_ok=True)
    row.record.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(record, indent=1))


def _flags(settings: Mapping[str, object]) -> list[str]:
    return [part for name, value in settings.items() for part in (f"--{name.replace('_', '-')}", str(value))]


def _by_hand(run: Path, score: str, normalizer: str, seed: int) -> Path:
    return run / "-".join(filter(None, (score, normalizer, str(seed))))


def _once(command: Sequence[str], out: Path) -> None:
    """Run a command and keep its usage beside its folder, unless it has ended before."""
    ended = out.with_name(f"{out.name}.usage.json")
    if not ended.exists():
        unfinished = ended.with_suffix(".part")
        timed(list(command), unfinished)
        unfinished.rename(ended)


def _usage(outs: Sequence[Path]) -> dict[str, float]:
    usages = [json.loads(out.with_name(f"{out.name}.usage.json").read_text(encoding="utf-8")) for out in outs]
    return {name: round(sum(usage[name] for usage in usages), 1) for name in ("processor_seconds", "wall_seconds")}


def _exact_match(out: Path) -> float:
    lines = out.with_name(f"{out.name}.jsonl").read_text(encoding="utf-8").splitlines()
    return next(float(figure["value"]) for figure in map(json.loads, lines) if figure["name"] == "exact_match")


def section() -> str:
    """Return the section of the page on comparisons."""
    return parts_of_page(ROWS, _part)


def _part(row: ResultRow, record: Any) -> str:
    sizes, compared, by_hand = record["settings"]["data"], record["compared"], record["by_hand"]
    count, by_hands, steps = record["trainings"], record["trainings_by_hand"], record["settings"]["training"]["steps"]
    ratio = (compared["processor_seconds"] / count) / (by_hand["processor_seconds"] / by_hands)
    return f"""`qkv compare translate` on strings of {sizes["shortest"]} to {sizes["longest"]} letters to reverse,
tested on {sizes["test"]:,} others: {count} trainings of {steps} updates. By hand they are two commands each,
`qkv train` and `qkv evaluate`. Of {by_hands} that were done so too, {record["equal"]} give the same figure to the last
digit.

{record["table"]}
| | trainings | processor time | per training |
|---|---|---|---|
| `qkv compare`, one command | {_cost(compared, count)} |
| by hand, {2 * by_hands} commands | {_cost(by_hand, by_hands)} |

A training in the comparison took {ratio:.0%} of the processor time of one by hand; {record["training_seconds"]:.0f} s
were updates and validation, the rest tests, the table and its picture. Other programs ran on the machine meanwhile.

- command: `python -m results --data FOLDER --row {row.name}`
- settings: [`results/{row.name}.toml`](../../results/{row.name}.toml)
- machine: {record["machine"]}

"""


def _cost(usage: Mapping[str, float], trainings: int) -> str:
    return f"{trainings} | {usage['processor_seconds']:.0f} s | {usage['processor_seconds'] / trainings:.1f} s"
