"""The cost of ALiBi against the same attention without a bias: causal, width-64 dot products under softmax.

Contenders alternate in one process; figures are medians of processor time over rounds, with their extremes.

    python -m benchmarks.positions

Results go to benchmarks/results/positions.json.
"""

import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

import qkv
from qkv.nn.biases import alibi_slopes

RESULTS = Path(__file__).parent / "results" / "positions.json"
HEADS, WIDTH = 8, 64
CASES = (("forward", 1024, 3), ("forward + backward", 1024, 3), ("forward", 4096, 1))
"""What to measure, at which length, with how many rounds."""
CONTENDERS = {"no bias": ("auto", False), "toeplitz": ("toeplitz", True), "tile by tile": ("blocked", True)}


def _run(length: int, backend: str, biased: bool, gradient: bool) -> float:
    """Return the processor time of one call in seconds."""
    tensors = [torch.randn(1, HEADS, length, WIDTH, requires_grad=gradient) for _ in range(3)]
    bias = qkv.biases.alibi(torch.tensor(alibi_slopes(HEADS))) if biased else None
    start = time.process_time()
    output = qkv.attention(*tensors, mask=qkv.masks.causal(), bias=bias, backend=backend)
    if gradient:
        output.sum().backward()
    return time.process_time() - start


def measure(length: int, rounds: int, gradient: bool) -> dict[str, Any]:
    times: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    _run(64, "toeplitz", True, gradient)
    for _ in range(rounds):
        for name, (backend, biased) in CONTENDERS.items():
            times[name].append(_run(length, backend, biased, gradient))
    least = statistics.median(times["no bias"])
    return {
        name: {
            "ms": round(statistics.median(own) * 1e3, 1),
            "ratio": round(statistics.median(own) / least, 2),
            "extremes_ms": [round(min(own) * 1e3, 1), round(max(own) * 1e3, 1)],
        }
        for name, own in times.items()
    }


def main() -> None:
    """Measure, print, write JSON."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    report: dict[str, Any] = {"torch": torch.__version__, "threads": 1, "heads": HEADS, "width": WIDTH}
    for what, length, rounds in CASES:
        report[f"{what}, {length}"] = rows = measure(length, rounds, what != "forward")
        for name, row in rows.items():
            line = f"{row['ms']:10.1f} ms, {row['ratio']:6.2f} times no bias"
            print(f"{length:6} {what:20} {name:14} {line}", flush=True)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
