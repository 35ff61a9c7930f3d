"""What biases from positions cost beside the same attention without one: ALiBi, and relative tables, fixed and learned.

Contenders alternate in one process; figures are medians of processor time over rounds, with their extremes.

    python -m benchmarks.positions

Results go to benchmarks/results/positions.json.
"""

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmarks.kept import keep

import qkv
from qkv.nn.biases import alibi_slopes

RESULTS = Path(__file__).parent / "results" / "positions.json"
HEADS, WIDTH, REACH = 8, 64, 128
SIZES = ((16, 200), (512, 15), (2048, 5), (4096, 3))
"""Queries and keys, and how many rounds."""
CASES: dict[str, dict[str, Any]] = {
    "dot products": {},
    "dot products, causal": {"mask": qkv.masks.causal()},
    "squared distances": {"score": qkv.scores.SquaredDistance(8.0)},
    "additive": {"score": qkv.scores.Additive(torch.ones(WIDTH) / 8)},
}
BIASES = ("no bias", "alibi", "relative", "learned relative")


def _run(length: int, case: str, bias: str, gradient: bool) -> Callable[[], object]:
    tensors = [torch.randn(1, HEADS, length, WIDTH, requires_grad=gradient) for _ in range(3)]
    table = torch.randn(HEADS, 2 * REACH + 1, requires_grad=gradient and bias == "learned relative")
    slopes = torch.tensor(alibi_slopes(HEADS))
    added = {"no bias": None, "alibi": qkv.biases.alibi(slopes)}.get(bias, qkv.biases.relative(table))
    leaves = [*tensors, *([table] if table.requires_grad else [])]
    cotangent = torch.randn(1, HEADS, length, WIDTH)

    def run() -> object:
        output = qkv.attention(*tensors, bias=added, **CASES[case])
        return torch.autograd.grad(output, leaves, cotangent) if gradient else output

    return run


def measure(length: int, rounds: int, case: str, gradient: bool) -> dict[str, Any]:
    """Processor time of every bias, by turns."""
    names = [name for name in BIASES if gradient or name != "learned relative"]
    runs = {name: _run(length, case, name, gradient) for name in names}
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds + 1):
        for name, run in runs.items():
            start = time.process_time()
            run()
            if turn:
                times[name].append(time.process_time() - start)
    least = statistics.median(times["no bias"])
    return {
        name: {
            "ms": round(statistics.median(own) * 1e3, 3),
            "ratio": round(statistics.median(own) / least, 2),
            "extremes_ms": [round(min(own) * 1e3, 3), round(max(own) * 1e3, 3)],
        }
        for name, own in times.items()
    }


def main() -> None:
    """Measure, print, write JSON."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    report: dict[str, Any] = {"torch": torch.__version__, "threads": 1, "heads": HEADS, "width": WIDTH}
    for length, rounds in SIZES:
        for case in CASES:
            for gradient in (False, True):
                what = f"{case}, {'forward + backward' if gradient else 'forward'}, {length}"
                report[what] = measure(length, rounds, case, gradient)
                for name, row in report[what].items():
                    line = f"{row['ms']:10.3f} ms, {row['ratio']:6.2f} times no bias"
                    print(f"{what:50} {name:18} {line}", flush=True)
    keep(RESULTS, report)


if __name__ == "__main__":
    main()
