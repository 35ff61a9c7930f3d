"""Products of few rows with a repeated weight, as in the steps of a loop: PyTorch's, with the weight transposed, and
packed.

    python -m benchmarks.few_rows

Contenders alternate in one run; times are medians of wall time on two threads.
"""

import statistics
import time

import torch
from torch.nn import functional as F

from qkv.linalg.packed import PackedWeight

SIZES = ((16, 512, 1536), (28, 512, 1536), (128, 512, 1536), (16, 1024, 1536), (16, 1536, 512), (16, 1536, 1024))
TURNS, CALLS = 15, 40


def main() -> None:
    """Print the microseconds of each, and of packing the weight."""
    torch.set_num_threads(2)
    torch.manual_seed(0)
    with torch.inference_mode():
        for rows, terms, columns in SIZES:
            weight, bias, x = torch.randn(columns, terms), torch.randn(columns), torch.randn(rows, terms)
            turned, paneled = weight.mT.contiguous(), PackedWeight(weight)
            runs = {
                "linear": lambda x=x, weight=weight, bias=bias: F.linear(x, weight, bias),
                "turned": lambda x=x, turned=turned, bias=bias: torch.addmm(bias, x, turned),
                "panels": lambda x=x, paneled=paneled, bias=bias: paneled.times(x, bias),
            }
            times: dict[str, list[float]] = {name: [] for name in runs}
            for _ in range(TURNS):
                for name, run in runs.items():
                    start = time.perf_counter()
                    for _ in range(CALLS):
                        run()
                    times[name].append(1e6 * (time.perf_counter() - start) / CALLS)
            start = time.perf_counter()
            PackedWeight(weight)
            laid = 1e6 * (time.perf_counter() - start)
            shown = ", ".join(f"{name} {statistics.median(found):.0f}" for name, found in times.items())
            print(f"{rows} × {terms} × {columns}: {shown} µs; packed in {laid:.0f}")


if __name__ == "__main__":
    main()
