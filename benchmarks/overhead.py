"""Small calls: every mechanism at 16 keys against the same lines in eager PyTorch, where overhead is what counts.

Contenders alternate in one process, so that changes of the machine's speed affect all of them; figures are medians over
rounds, and the quartiles of their ratios.

    python -m benchmarks.overhead                  every mechanism, with the algorithm that `auto` takes
    python -m benchmarks.overhead --only gaussian  some of them; others keep what was measured
    python -m benchmarks.overhead --every          also every other algorithm that serves; printed, not kept

Results go to benchmarks/results/overhead.json, by processor.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmarks.engine.mechanisms import MECHANISMS, Mechanism, Size
from benchmarks.kept import keep
from torch.nn import functional as F

import qkv
from qkv.planner.registry import ALGORITHMS

RESULTS = Path(__file__).parent / "results" / "overhead.json"
SIZE = Size((2, 8), 16, 16, 64, 64)
ROUNDS, SECONDS = 40, 0.002
DIRECTIONS = ("forward", "with backward")


def _lengths(size: Size) -> tuple[torch.Tensor, ...]:
    return (torch.tensor([16, 11]),)


ROWS: dict[str, Mechanism] = {
    "SDPA": Mechanism(F.scaled_dot_product_attention),
    "SDPA, lengths": Mechanism(
        F.scaled_dot_product_attention, lambda lengths: {"mask": qkv.masks.lengths(lengths)}, _lengths
    ),
    **{name: row for name, row in MECHANISMS.items() if not name.endswith("_line")},
}


def _contenders(name: str, gradient: bool, every: bool) -> dict[str, Callable[[], object]]:
    """Return the lines in eager PyTorch, what `auto` takes, and the other algorithms where they are wanted."""
    torch.manual_seed(0)
    row, shape = ROWS[name], (*SIZE.leading, SIZE.queries, SIZE.width)
    tensors = tuple(torch.randn(shape) for _ in range(3))
    drawn = row.parameters(SIZE)
    leaves = [x.requires_grad_() for x in (*tensors, *drawn) if x.is_floating_point()] if gradient else []
    drawn = drawn if gradient else tuple(x.detach() for x in drawn)
    upstream = torch.randn(shape)
    options = {"dropout": row.dropout, **row.given(*drawn)}

    def with_backward(attend: Callable[[], torch.Tensor]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(attend(), leaves, upstream, allow_unused=True) if leaves else attend()

    def lines() -> torch.Tensor:
        if name == "SDPA, lengths":
            return F.scaled_dot_product_attention(*tensors, attn_mask=seen)
        return row.full(*tensors, *drawn, **({"dropout": row.dropout} if row.dropout else {}))

    seen = torch.arange(SIZE.keys) < drawn[0][:, None, None, None] if name == "SDPA, lengths" else None
    found = {"eager": with_backward(lines), "auto": with_backward(lambda: qkv.attention(*tensors, **options))}
    problem = qkv.explain(*tensors, **options).problem
    for algorithm in ALGORITHMS if every else ():
        if algorithm.refuses(problem) is None:
            found[algorithm.name] = with_backward(
                lambda own=algorithm.name: qkv.attention(*tensors, backend=own, **options)  # type: ignore[misc]
            )
    found["auto"]()
    return found


def _time(call: Callable[[], object], count: int) -> float:
    """Return the microseconds of one call, averaged over a round."""
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count * 1e6


def measure(name: str, gradient: bool, every: bool) -> dict[str, Any]:
    """Return each contender's median, and its ratio to the eager lines with quartiles."""
    calls = _contenders(name, gradient, every)
    counts = {own: max(4, int(SECONDS * 1e6 / min(_time(run, 3) for _ in range(3)))) for own, run in calls.items()}
    times: dict[str, list[float]] = {own: [] for own in calls}
    for _ in range(ROUNDS):
        for own, run in calls.items():
            times[own].append(_time(run, counts[own]))
    eager = times["eager"]
    report = {}
    for own, row in times.items():
        low, middle, high = statistics.quantiles([mine / theirs for mine, theirs in zip(row, eager, strict=True)], n=4)
        report[own] = {"us": round(statistics.median(row), 1), "ratio": [round(x, 2) for x in (low, middle, high)]}
    return report


def main() -> None:
    """Measure, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="mechanisms whose name holds this text")
    parser.add_argument("--every", action="store_true", help="time every algorithm that serves")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows: dict[str, Any] = {}
    for name in [each for each in ROWS if given.only in each]:
        for direction in DIRECTIONS:
            report = measure(name, direction == DIRECTIONS[1], given.every)
            line = "   ".join(f"{own} {row['us']:.0f} us ({row['ratio'][1]:.2f})" for own, row in report.items())
            print(f"{name}, {direction}: {line}", flush=True)
            rows[f"{name}, {direction}"] = {own: report[own] for own in ("eager", "auto")}
    if not given.every:
        keep(RESULTS, rows)


if __name__ == "__main__":
    main()
