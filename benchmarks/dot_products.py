"""Plain and causal dot products under softmax beside PyTorch's own call: 64 to 4,096 keys, 1 to 64 heads, width 64.

Both calls alternate in one process, so that changes of the machine's speed affect both. A ratio is PyTorch's time over
qkv's, the median of paired turns, with its quartiles; a difference is the median of paired turns too. A cell is slower
where PyTorch takes at least 400 µs and even the upper quartile of the ratios is below 0.97, or where it takes less and
even the lower quartile of the differences is above 10 µs: a call beside itself has medians from 0.93 to 1.07.

    python -m benchmarks.dot_products                     two threads
    python -m benchmarks.dot_products --most 4194304      at most 2²² pairs over all heads
    python -m benchmarks.dot_products --processor         processor time on one thread, on a shared machine

Results go to benchmarks/results/dot_products.json, by processor, threads and clock. A later call adds what is missing.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from benchmarks.engine.timing import Patience, by_turns, ratio
from torch.nn import functional as F

import qkv
from benchmarks import kept

RESULTS = Path(__file__).parent / "results" / "dot_products.json"
KEYS = (64, 128, 256, 512, 1024, 2048, 4096)
HEADS = (1, 4, 8, 16, 64)
WIDTH = 64
DIRECTIONS = ("forward", "with backward")
LONG = 0.4
"""Milliseconds of PyTorch's call from which on the ratio counts."""
LEAST, MOST_MICROSECONDS = 0.97, 10.0


class Cell(NamedTuple):
    """One comparison.

    Attributes:
        keys, heads: sizes; as many queries as keys.
        mask: "plain" or "causal".
        direction: one of `DIRECTIONS`.
    """

    keys: int
    heads: int
    mask: str
    direction: str

    def __str__(self) -> str:
        return f"{self.keys} keys, {self.heads} heads, {self.mask}, {self.direction}"


def cells(most: int) -> Iterator[Cell]:
    """Yield every cell whose heads have at most `most` pairs of a query and a key together."""
    for keys in KEYS:
        for heads in HEADS:
            for mask in ("plain", "causal"):
                for direction in DIRECTIONS:
                    if heads * keys * keys <= most:
                        yield Cell(keys, heads, mask, direction)


def contenders(cell: Cell) -> tuple[dict[str, Callable[[], object]], str]:
    """Return both calls, with the backward pass where it is wanted, and the algorithm that qkv chooses."""
    torch.manual_seed(0)
    learns, causal = cell.direction == DIRECTIONS[1], cell.mask == "causal"
    query, key, value = (torch.randn(1, cell.heads, cell.keys, WIDTH, requires_grad=learns) for _ in range(3))
    upstream, mask = torch.randn(1, cell.heads, cell.keys, WIDTH), qkv.masks.causal() if causal else None

    def theirs() -> torch.Tensor:
        return F.scaled_dot_product_attention(query, key, value, is_causal=causal)

    def ours() -> torch.Tensor:
        return qkv.attention(query, key, value, mask=mask)

    def with_backward(attend: Callable[[], torch.Tensor]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(attend(), (query, key, value), upstream)

    calls: dict[str, Callable[[], object]] = {"PyTorch": theirs, "qkv": ours}
    if learns:
        calls = {name: with_backward(call) for name, call in (("PyTorch", theirs), ("qkv", ours))}
    return calls, qkv.explain(query, key, value, mask=mask).algorithm


def measure(cell: Cell, seconds: float, clock: Callable[[], float]) -> dict[str, Any]:
    """Return the times of one cell, the ratio with its quartiles, and whether it is slower than it may be."""
    calls, algorithm = contenders(cell)
    times = by_turns(calls, dict.fromkeys(calls, Patience(seconds, 9, 41)), clock)
    theirs, ours = times["PyTorch"], times["qkv"]
    compared = ratio(theirs, ours)
    middle = sorted(theirs)[len(theirs) // 2]
    longer = sorted(1e3 * (b - a) for a, b in zip(theirs, ours, strict=False))
    slower = compared.high < LEAST if middle >= LONG else longer[len(longer) // 4] > MOST_MICROSECONDS
    return {
        "algorithm": algorithm,
        "PyTorch, ms": round(middle, 4),
        "times as fast": [round(part, 2) for part in (compared.middle, compared.low, compared.high)],
        "microseconds longer": round(longer[len(longer) // 2], 1),
        "slower": slower,
    }


def main() -> None:
    """Measure, print a row per cell, store them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--processor", action="store_true", help="processor time on one thread")
    parser.add_argument("--again", action="store_true", help="measure cells that were measured before")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each contender in a cell")
    parser.add_argument("--most", type=int, default=1 << 27, help="pairs of a query and a key, over all heads")
    parser.add_argument("--only", default="", help="cells whose name holds this text")
    given = parser.parse_args()
    threads, clock = (1, time.process_time) if given.processor else (given.threads, time.perf_counter)
    torch.set_num_threads(threads)
    name = f"{threads} threads, {'processor' if given.processor else 'wall'} time"
    for cell in cells(given.most):
        measured = kept.read(RESULTS).get(kept.processor(), {}).get(name, {})
        if given.only not in str(cell) or (str(cell) in measured and not given.again):
            continue
        row = measure(cell, given.seconds, clock)
        middle, low, high = row["times as fast"]
        print(
            f"{cell!s:42} {row['PyTorch, ms']:9.3f} ms {row['algorithm']:12} {middle:5.2f} [{low:.2f}, {high:.2f}]"
            f" {row['microseconds longer']:+8.1f} µs{'  slower' if row['slower'] else ''}",
            flush=True,
        )
        # Stored cell by cell, so that a run may be interrupted.
        kept.keep(RESULTS, {"torch": torch.__version__, name: {**measured, str(cell): row}})


if __name__ == "__main__":
    main()
