"""Corpora on disk: what preparing one takes, what a training from it takes, and how fast both kinds of training read.

    python -m benchmarks.corpora                       texts of 1 and 4 GB, made here: 10 GB of disk
    python -m benchmarks.corpora --gigabytes 0.25      another size; none after the flag: speed and padding alone
    python -m benchmarks.corpora --turns 0             sizes alone

Each command is a process of its own, whose processor time and largest process the kernel counts. Speed is measured by
turns: one training from memory and one from the same text on disk, each update with and without the model. The padding
is that of sentences whose lengths are those of the lines of the text. Results go to benchmarks/results/corpora.json.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.kept import keep

from qkv.data.batches import FRAME, Example, token_batches
from qkv.tasks.corpora.pairs import PairBatches, PreparedPairs
from qkv.tasks.corpora.prepared import PreparedCorpus
from qkv.tasks.generate.recipe import RECIPE
from qkv.tasks.prepare.preparing import prepare
from qkv.training.trainer import Trainer

RESULTS = Path(__file__).parent / "results" / "corpora.json"
BLOCK = 1 << 20
"""Words that are drawn at a time."""
UPDATES, TOKENS, CONTEXT = 12, 4096, 128
MODEL = {"layers": 1, "width": 64, "heads": 2, "feed_forward": 128, "context": CONTEXT}
SMALL_TEXT, PAIRS = 2e7, 200_000
"""Bytes of the text of which the speed is measured, and pairs of which the padding is."""
GLOBAL_SORT, WINDOWS = "sorted as a whole", "sorted in windows"


_COUNTED = """
import resource, subprocess, sys
status = subprocess.call(sys.argv[1:])
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime, used.ru_maxrss)
sys.exit(status)
"""
"""Run a command, and count what its processes use from a small one: a new process counts from the size of the old."""


def _lines(seed: int) -> Iterator[str]:
    """Draw lines for ever: 20,000 words, the n-th of them 1/n as often as the first, 22 in a line on average."""
    random = np.random.default_rng(seed)
    letters = np.array(list("etaoinshrdlucmfwypvbgkjqxz"))
    words = np.array(["".join(letters[random.geometric(0.12, 1 + n % 9) % 26]) for n in range(20_000)])
    weights = 1 / np.arange(1, len(words) + 1)
    while True:
        drawn = words[random.choice(len(words), BLOCK, p=weights / weights.sum())].tolist()
        ends = np.cumsum(random.geometric(1 / 22, BLOCK // 22)).clip(max=BLOCK).tolist()
        for start, end in zip([0, *ends], ends, strict=False):
            if start < end:
                yield " ".join(drawn[start:end]) + "\n"


def write_text(path: Path, size: float) -> None:
    """Write a text of so many bytes, to the end of a line."""
    written = 0
    with path.open("w", encoding="ascii", newline="\n") as stream:
        for line in _lines(0):
            written += stream.write(line)
            if written >= size:
                return


def run(*arguments: str) -> dict[str, float]:
    """Run `qkv` with arguments; return seconds, processor seconds and the MiB of the largest process."""
    command = [sys.executable, "-I", "-S", "-c", _COUNTED, sys.executable, "-m", "qkv", *arguments]
    start = time.perf_counter()
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - start
    if process.returncode:
        raise RuntimeError(f"qkv {' '.join(arguments)} ended with {process.returncode}: {process.stderr}")
    processor_seconds, kib = map(float, process.stdout.splitlines()[-1].split())
    return {"seconds": round(seconds, 1), "processor_seconds": round(processor_seconds, 1), "mib": round(kib / 1024)}


def commands(folder: Path, gigabytes: float, processes: int) -> dict[str, Any]:
    """Prepare a text made here and train from it, by the command line."""
    text, corpus = folder / "text.txt", folder / "corpus"
    write_text(text, gigabytes * 1e9)
    options = ["--tokenizer", "char", "--processes", f"{processes}"]
    row: dict[str, Any] = {"gigabytes": gigabytes, "processes": processes}
    row["prepare"] = run("prepare", str(text), "--out", str(corpus), *options)
    text.unlink()
    model = [f"--{name.replace('_', '-')}={value}" for name, value in MODEL.items()]
    updates = ["--steps", f"{UPDATES}", "--batch-tokens", f"{TOKENS}", "--out", str(folder / "run")]
    row["train"] = run("train", "generate", str(corpus), *model, *updates)
    shutil.rmtree(corpus)
    return row


def _updates(data: dict[str, Any], *, compute: bool) -> Callable[[], int]:
    """Return one update of a language model, or only the reading of its batch: a function that returns its tokens."""
    tables = {"data": data, "tokenizer": {"tokenizer": "char"}, "model": MODEL, "training": {"batch_tokens": TOKENS}}
    settings = RECIPE.load_settings(tables)
    task = RECIPE.read(settings, None)
    model = task.build()
    trainer = Trainer(task, model, settings.training, {})
    trainer.go_to(0, 0)

    def update() -> int:
        batch = task.collate(trainer.take(1)[0], torch.device("cpu"))
        if compute:
            task.objective(model, batch)[0].backward()
        return int(batch[:, 1:].numel())

    return update


def speeds(folder: Path, turns: int) -> list[dict[str, Any]]:
    """Return rows of tokens per second from memory and from disk, by turns."""
    text = folder / "small.txt"
    write_text(text, SMALL_TEXT)
    prepare(text, out=folder / "small", tokenizer="char", quiet=True)
    rows = []
    for compute, seconds in ((True, 1.0), (False, 0.2)):
        sources = {"memory": {"text": text}, "disk": {"prepared": folder / "small"}}
        updates = {name: _updates(data, compute=compute) for name, data in sources.items()}
        measured: dict[str, list[float]] = {name: [] for name in updates}
        for turn in range(turns + 1):
            for name, update in updates.items():
                tokens, start = 0, time.perf_counter()
                while (taken := time.perf_counter() - start) < seconds:
                    tokens += update()
                if turn:  # the first one warms up
                    measured[name].append(tokens / taken)
        ratios = [disk / memory for memory, disk in zip(measured["memory"], measured["disk"], strict=True)]
        quarters = statistics.quantiles(ratios, n=4)
        rows.append(
            {
                "what": "updates" if compute else "batches alone",
                "tokens_per_second": {name: round(statistics.median(each)) for name, each in measured.items()},
                "disk_over_memory": [round(quarter, 3) for quarter in quarters],
            }
        )
    return rows


def _padding(batches: Sequence[Sequence[int]], lengths: Sequence[tuple[int, int]]) -> float:
    """Return which share of the ids of all batches is padding."""
    ids = sum(sum(lengths[index]) for batch in batches for index in batch)
    sides = [zip(*(lengths[index] for index in batch), strict=True) for batch in batches]
    taken: int = sum(len(batch) * sum(map(max, side)) for batch, side in zip(batches, sides, strict=True))
    return 1 - ids / taken


def _listed(batches: PairBatches) -> list[list[int]]:
    """Return all batches of an epoch."""
    listed, position = [], 0
    while position < batches.end:
        listed.append(batches.at(position))
        position = batches.after(position)
    return listed


def padding(folder: Path) -> dict[str, Any]:
    """Return the share of padding in batches of pairs, sorted as a whole and in windows."""
    path, lines = folder / "pairs.tsv", _lines(1)
    random = np.random.default_rng(0)
    with path.open("w", encoding="ascii", newline="\n") as stream:
        for _ in range(PAIRS):
            words = next(lines).split()[:80]
            target = words[: max(1, round(len(words) * random.uniform(0.7, 1)))]
            stream.write(f"{' '.join(words)}\t{' '.join(target)}\n")
    prepare(path, out=folder / "pairs", pairs=True, tokenizer="word", quiet=True)
    pairs = PreparedPairs(PreparedCorpus.load(folder / "pairs", "pairs"))
    sizes = pairs.lengths_of(np.arange(len(pairs)))
    lengths = list(zip(sizes.source.tolist(), (sizes.target + FRAME).tolist(), strict=True))
    examples = [Example((0,) * source, (0,) * (target - FRAME), n) for n, (source, target) in enumerate(lengths)]
    shares = {
        GLOBAL_SORT: _padding(token_batches(examples, TOKENS, 0, 0), lengths),
        WINDOWS: _padding(_listed(pairs.batches(TOKENS, 0, 0)), lengths),
    }
    return {"pairs": len(pairs), **{name: round(share, 5) for name, share in shares.items()}}


def main() -> None:
    """Measure, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, nargs="*", default=[1.0, 4.0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--turns", type=int, default=15, help="of the speed; 0 to leave it out")
    given = parser.parse_args()
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if given.turns:
            figures |= {"speed": speeds(folder, given.turns), "padding": padding(folder)}
        for gigabytes in given.gigabytes:
            with tempfile.TemporaryDirectory(dir=folder) as inner:
                figures[f"{gigabytes:g} GB"] = commands(Path(inner), gigabytes, given.processes)
    print(json.dumps(figures, indent=1))
    keep(RESULTS, figures)


if __name__ == "__main__":
    main()
