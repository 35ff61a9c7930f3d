"""The overhead of a call: `qkv.attention` against the bare PyTorch operations at n = 16.

Contenders alternate in one process, so that changes of the machine's speed affect all of them; figures are medians over
rounds, with their quartiles.

    python -m benchmarks.overhead

Results go to benchmarks/results/overhead.json.
"""

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import qkv

RESULTS = Path(__file__).parent / "results" / "overhead.json"
ROUNDS, CALLS = 60, 60
LIMIT_US = {"forward": 30.0, "forward + backward": 60.0}


def bare(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return torch.softmax(query @ key.mT * query.shape[-1] ** -0.5, -1) @ value


CONTENDERS: dict[str, Callable[..., Tensor]] = {
    "bare composition": bare,
    "qkv": qkv.attention,
    "qkv, reference": lambda *tensors: qkv.attention(*tensors, backend="reference"),
}


def _time(call: Callable[[], object]) -> float:
    """Return the processor time of one call in microseconds, averaged over a round; other processes do not count."""
    start = time.process_time()
    for _ in range(CALLS):
        call()
    return (time.process_time() - start) / CALLS * 1e6


def measure(gradient: bool) -> dict[str, Any]:
    """Return medians and quartiles of every contender, and the differences from the first."""
    query, key, value = (torch.randn(2, 8, 16, 64, requires_grad=gradient) for _ in range(3))
    g = torch.ones(2, 8, 16, 64)

    def call(attend: Callable[..., Tensor]) -> Callable[[], object]:
        if gradient:
            return lambda: torch.autograd.grad(attend(query, key, value), (query, key, value), g)
        return lambda: attend(query, key, value)

    calls = {name: call(attend) for name, attend in CONTENDERS.items()}
    for run in calls.values():
        _time(run)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, run in calls.items():
            times[name].append(_time(run))
    first = next(iter(times))
    return {name: _summary(own, times[first]) for name, own in times.items()}


def _summary(own: list[float], first: list[float]) -> dict[str, Any]:
    beyond = [mine - theirs for mine, theirs in zip(own, first, strict=True)]
    low, middle, high = statistics.quantiles(beyond, n=4)
    return {
        "us": round(statistics.median(own), 1),
        "beyond_bare_us": round(middle, 1),
        "quartiles_us": [round(low, 1), round(high, 1)],
        "ratio": round(statistics.median(own) / statistics.median(first), 2),
    }


def main() -> None:
    """Measure, print, write JSON."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    report: dict[str, Any] = {"torch": torch.__version__, "threads": 1, "n": 16, "batch x heads": [2, 8], "width": 64}
    for what, gradient in (("forward", False), ("forward + backward", True)):
        report[what] = measure(gradient)
        for name, row in report[what].items():
            low, high = row["quartiles_us"]
            line = f"{row['us']:8.1f} µs, {row['beyond_bare_us']:6.1f} [{low}, {high}] µs more than the bare operations"
            print(f"{what:20} {name:18} {line} (limit {LIMIT_US[what]:.0f})")
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
