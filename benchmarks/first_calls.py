"""The wait for a first result in a fresh process, as a multiple of the time that `import torch` takes in it.

Each figure is what a process takes after `import torch` until the first result is there: the import of qkv, planning,
loading kernels, and the call. Cases:

    toy      a first look: 2 × 4 heads, 16 × 16, width 32, by PyTorch's operators
    kernels  2 × 4 heads, 256 × 256, width 64

    python -m benchmarks.first_calls                                every mechanism
    python -m benchmarks.first_calls --only Additive --case toy     some; others keep what was measured
    python -m benchmarks.first_calls --write                        docs/project/first_calls.md from what was measured

Rows take turns, so that changes of the machine's speed affect all of them; a figure is the median over rounds. Results
go to benchmarks/results/first_calls.json, by processor.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.kept import keep, processor, read

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "first_calls.json"
PAGE = ROOT / "docs" / "project" / "first_calls.md"
MECHANISMS = {
    "Dot": "Dot()",
    "ScaledDot": "ScaledDot()",
    "Softcap": "ScaledDot(softcap=5.0)",
    "Cosine": "Cosine()",
    "Bilinear": "Bilinear(matrix)",
    "Additive": "Additive(vector, matrix, matrix)",
    "Concat": "Concat(vector, vector)",
    "SquaredDistance": "SquaredDistance(8.0)",
    "Gaussian": "Gaussian(8.0)",
    "Boxcar": "Boxcar(8.0)",
    "Epanechnikov": "Epanechnikov(8.0)",
    "Uniform": "Uniform()",
    "lengths": "ScaledDot(), mask=masks.lengths(torch.tensor([16, 11]))",
    "causal": "ScaledDot(), mask=masks.causal()",
    "alibi": "ScaledDot(), bias=qkv.biases.alibi(0.1)",
    "dropout": "ScaledDot(), dropout=0.1",
    "Sink": "ScaledDot(), normalizer=Softmax(sink)",
    "Mean": "ScaledDot(), normalizer=Mean()",
    "Hard": "ScaledDot(), normalizer=Hard()",
    "Identity": "ScaledDot(), normalizer=Identity()",
    "Sigmoid": "ScaledDot(), normalizer=Sigmoid()",
    "Sparsemax": "ScaledDot(), normalizer=Sparsemax()",
    "Entmax": "ScaledDot(), normalizer=Entmax()",
}
"""What to call, by name: arguments of `qkv.attention` from `score=` on."""
DIRECTIONS = ("forward", "with backward")
SIZES = {"toy": (16, 32), "kernels": (256, 64)}

PROGRAM = """
import sys, time
started = time.perf_counter()
import torch
imported = time.perf_counter()
import qkv
from qkv import masks
from qkv.scores import *
from qkv.normalizers import *
length, width, gradient = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "with backward"
query, key, value = (torch.randn(2, 4, length, width, requires_grad=gradient) for _ in range(3))
vector, matrix, sink = (torch.randn(*shape, requires_grad=gradient) for shape in ((width,), (width, width), (4,)))
output = qkv.attention(query, key, value, score={arguments})
if gradient:
    output.sum().backward()
print(imported - started, time.perf_counter() - imported)
"""


class Row(NamedTuple):
    """One figure of the table."""

    mechanism: str
    direction: str
    case: str

    def __str__(self) -> str:
        return f"{self.mechanism}, {self.direction}, {self.case}"


def first_call(row: Row) -> tuple[float, float]:
    """Return how long a first result takes in a fresh process: as a multiple of importing PyTorch, and in seconds."""
    program = PROGRAM.replace("{arguments}", MECHANISMS[row.mechanism])
    arguments = [str(size) for size in SIZES[row.case]]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments, row.direction],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{row}: {done.stderr[-2000:]}")
    imported, waited = map(float, done.stdout.split())
    return waited / imported, waited


def measure(rows: list[Row], rounds: int) -> Iterator[tuple[Row, list[tuple[float, float]]]]:
    """Yield each row with what was measured so far, round by round."""
    figures: dict[Row, list[tuple[float, float]]] = {row: [] for row in rows}
    for _ in range(rounds):
        for row in rows:
            figures[row].append(first_call(row))
            yield row, figures[row]


def table(results: dict[str, dict[str, Any]]) -> str:
    """Return what was measured as a Markdown table: mechanism and direction down, cases across."""
    lines = [f"| mechanism | {' | '.join(SIZES)} |", f"|---|{'---|' * len(SIZES)}"]
    for name in MECHANISMS:
        for direction in DIRECTIONS:
            found = [results.get(str(Row(name, direction, case))) for case in SIZES]
            if any(found):
                cells = ["" if each is None else _cell(each) for each in found]
                lines.append(f"| {name}, {direction} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(figure: dict[str, Any]) -> str:
    multiple, seconds = figure["times import torch"], figure.get("seconds")
    return f"{multiple:.2f}" if seconds is None else f"{multiple:.2f} ({seconds:.2g} s)"


HEAD = """# How long the first call takes

How long a fresh process waits for its first result after `import torch`, as a multiple of the time that `import torch`
took in the same process: importing qkv, planning, loading kernels, and the call itself. Nothing is compiled: kernels
come with the package. Each of {count} mechanisms ran in its own process. `python -m benchmarks.first_calls` measures
and prints each of them and keeps it in `benchmarks/results/first_calls.json`; `--write` writes this page from there.

| processor | call | pass | median | shortest | longest |
|---|---|---|---|---|---|
"""
CALLS = {"toy": "2 × 4 heads, 16 × 16, width 32", "kernels": "2 × 4 heads, 256 × 256, width 64"}


def page(kept: dict[str, dict[str, Any]]) -> str:
    """Return docs/project/first_calls.md: the median over mechanisms and the range, by processor, call and pass."""
    lines = [
        _summary(name, case, direction, results)
        for name, results in kept.items()
        for case in SIZES
        for direction in DIRECTIONS
    ]
    return HEAD.replace("{count}", str(len(MECHANISMS))) + "".join(lines)


def _summary(name: str, case: str, direction: str, results: dict[str, Any]) -> str:
    rows = {key: results.get(str(Row(key, direction, case))) for key in MECHANISMS}
    figures = sorted((figure["times import torch"], key) for key, figure in rows.items() if figure is not None)
    if not figures:
        return ""
    median = statistics.median(multiple for multiple, _ in figures)
    ends = " | ".join(f"{multiple:.2f}: {key}" for multiple, key in (figures[0], figures[-1]))
    return f"| {name} | {CALLS[case]} | {direction} | {median:.2f} | {ends} |\n"


def main() -> None:
    """Measure, write JSON, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(MECHANISMS), default=list(MECHANISMS), metavar="MECHANISM")
    parser.add_argument("--case", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--direction", nargs="+", choices=DIRECTIONS, default=DIRECTIONS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--write", action="store_true", help="write docs/project/first_calls.md and measure nothing")
    given = parser.parse_args()
    if given.write:
        PAGE.write_text(page(read(given.out)), encoding="utf-8")
        return
    rows = [Row(name, direction, case) for case in given.case for name in given.only for direction in given.direction]
    for row, figures in measure(rows, given.rounds):
        multiples, seconds = zip(*figures, strict=True)
        kept = {
            "times import torch": round(statistics.median(multiples), 2),
            "seconds": round(statistics.median(seconds), 2),
            "rounds": [round(each, 2) for each in multiples],
        }
        keep(given.out, {str(row): kept})
        print(f"{time.strftime('%H:%M:%S')} {row}: {multiples[-1]:.2f} × import torch", file=sys.stderr, flush=True)
    print(table(read(given.out)[processor()]))


if __name__ == "__main__":
    main()
