"""Statistics of attention against the forward pass: received, entropy and the eight largest weights of each row.

    python -m benchmarks.statistics --length 65536

One head, float32, width 64. Forward and statistics alternate in one process; a ratio is that of neighbors. Memory is
the growth of the peak resident set beyond inputs and row state.
"""

import argparse
import resource
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from benchmarks.kept import keep

import qkv

RESULTS = Path(__file__).parent / "results" / "statistics.json"
WIDTH = 64


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def largest_resident() -> float:
    """Return the largest resident memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(length: int, rounds: int) -> dict[str, Any]:
    query, key, value = torch.randn(3, 1, length, WIDTH, generator=torch.Generator().manual_seed(0)).unbind()
    small = query[:, :256]
    qkv.attention_map(small, small).statistics("received", "entropy", topk=8)  # loads the kernels
    _, state = qkv.attention_with_state(query, key, value)
    before = largest_resident()
    rows = []
    for _ in range(rounds):
        forward, (_, state) = timed(lambda: qkv.attention_with_state(query, key, value))
        amap = qkv.attention_map(query, key, state=state)
        seconds, result = timed(partial(amap.statistics, "received", "entropy", topk=8))
        rows.append({"forward": forward, "statistics": seconds, "ratio": seconds / forward})
        print(f"{length:,}: forward {forward:.2f} s, statistics {seconds:.2f} s, ratio {seconds / forward:.2f}")
    ratios = [row["ratio"] for row in rows]
    return {
        "length": length,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "rounds": rows,
        "ratio": statistics.median(ratios),
        "spread": [min(ratios), max(ratios)],
        "memory growth, MiB": largest_resident() - before,
        "error of row sums": result.error,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, nargs="+", default=[8192, 65536])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    results = [measure(length, given.rounds) for length in given.length]
    keep(given.out, {f"length {result['length']}": result for result in results})
    for result in results:
        growth, ratio = result["memory growth, MiB"], result["ratio"]
        print(f"{result['length']:,}: ratio {ratio:.2f}, memory growth {growth:.0f} MiB")


if __name__ == "__main__":
    main()
