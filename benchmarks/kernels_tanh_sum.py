"""Additive attention's kernels against the full tensor in PyTorch, and against the floor: their bare loops.

Contenders alternate within one run, so that a slow moment of the machine affects all of them. The floor is a lower
bound for this arithmetic: the division and multiply-add of every pair and hidden feature, and the multiply-adds of the
weighted sum, on the same threads, with nothing around them.

    python -m benchmarks.kernels_tanh_sum --threads 2 --out runs/kernels_tanh_sum.json [--compile]
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray

from qkv.algorithms.additive.direct import Upstream
from qkv.algorithms.additive.factored import backward, factor, forward
from qkv.compiled import thread_pool
from qkv.engine.key_ranges import Weighting, key_ranges

BARE: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    "fastmath": {"contract", "nsz", "reassoc", "arcp"},
    "_nrt": False,
}
Array = NDArray[np.float32]


@dataclass(frozen=True)
class Shape:
    """A problem: items, queries, keys, hidden width, value width."""

    name: str
    items: int
    queries: int
    keys: int
    width: int
    columns: int


SHAPES = (
    Shape("sentence, B 4, 512 x 512, A 128", 4, 512, 512, 128, 64),
    Shape("translation, B 64, 20 x 20, A 256", 64, 20, 20, 256, 256),
    Shape("decoder step, B 64, 1 x 50, A 256", 64, 1, 50, 256, 256),
    Shape("long, B 1, 4096 x 4096, A 64", 1, 4096, 4096, 64, 64),
    Shape("wide values, B 4, 512 x 512, A 128, V 1024", 4, 512, 512, 128, 1024),
    Shape("wide values, both directions, B 16, 119 x 121, A 256, V 1024", 16, 119, 121, 256, 1024),
)


@numba.njit("void(i8, i8, f4[:,::1], f4[:,::1], f4[::1], f4[:,::1])", **BARE)
def bare_scores(start: int, stop: int, left: Array, right: Array, vector: Array, scores: Array) -> None:
    """Compute v/(1 + EF) for every row, key and feature."""
    one = np.float32(1)
    for q in range(start, stop):
        s = scores[q]
        for a in range(0, left.shape[1], 4):
            e0, e1, e2, e3 = left[q, a], left[q, a + 1], left[q, a + 2], left[q, a + 3]
            v0, v1, v2, v3 = vector[a], vector[a + 1], vector[a + 2], vector[a + 3]
            f0, f1, f2, f3 = right[a], right[a + 1], right[a + 2], right[a + 3]
            for k in range(s.size):
                pair = v0 / (one + e0 * f0[k]) + v1 / (one + e1 * f1[k])
                s[k] += pair + (v2 / (one + e2 * f2[k]) + v3 / (one + e3 * f3[k]))


@numba.njit("void(i8, i8, f4[:,::1], f4[:,::1], f4[:,::1])", **BARE)
def bare_sum(start: int, stop: int, weights: Array, value: Array, out: Array) -> None:
    """Compute Σ p v for every row, key and value column."""
    for q in range(start, stop):
        o = out[q]
        for k in range(0, value.shape[0] - 7, 8):
            p0, p1, p2, p3 = weights[q, k], weights[q, k + 1], weights[q, k + 2], weights[q, k + 3]
            p4, p5, p6, p7 = weights[q, k + 4], weights[q, k + 5], weights[q, k + 6], weights[q, k + 7]
            v0, v1, v2, v3 = value[k], value[k + 1], value[k + 2], value[k + 3]
            v4, v5, v6, v7 = value[k + 4], value[k + 5], value[k + 6], value[k + 7]
            for c in range(o.size):
                one = (p0 * v0[c] + p1 * v1[c]) + (p2 * v2[c] + p3 * v3[c])
                o[c] += one + ((p4 * v4[c] + p5 * v5[c]) + (p6 * v6[c] + p7 * v7[c]))


def equation(a: torch.Tensor, b: torch.Tensor, v: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Additive attention as in Bahdanau et al. 2015, as every toolkit implements it."""
    return torch.softmax(torch.tanh(a[:, :, None] + b[:, None]) @ v, -1) @ value


def contenders(shape: Shape, compiled: bool) -> dict[str, Callable[[], object]]:
    random = np.random.default_rng(0)

    def draw(*size: int) -> np.ndarray:
        return random.normal(size=size).astype(np.float32)

    n, queries, keys, width, columns = shape.items, shape.queries, shape.keys, shape.width, shape.columns
    a, b, value, grad = draw(n, queries, width), draw(n, keys, width), draw(n, keys, columns), draw(n, queries, columns)
    v = draw(1, width) / np.float32(np.sqrt(width))
    ranges = key_ranges(np.dtype(np.float32), n, queries, keys)
    weighting = Weighting(ranges)
    leaves = [torch.from_numpy(x).requires_grad_() for x in (a, b, v[0], value)]
    g = torch.from_numpy(grad)

    def ours() -> object:
        return forward(factor(a, b, v, ranges), value, weighting)

    def ours_both() -> object:
        factors = factor(a, b, v, ranges)
        return backward(factors, v, value, weighting, forward(factors, value, weighting), Upstream(grad))

    def full(equation: Callable[..., torch.Tensor] = equation) -> object:
        with torch.no_grad():
            return equation(*leaves)

    def full_both(equation: Callable[..., torch.Tensor] = equation) -> object:
        return torch.autograd.grad(equation(*leaves), leaves, g)

    runs = {"ours": ours, "ours, both": ours_both, "floor": floor(shape, draw)}
    if n * queries * keys * width <= 1 << 28:
        runs |= {"full tensor": full, "full tensor, both": full_both}
        if compiled:
            fast = torch.compile(equation)
            runs |= {"torch.compile": lambda: full(fast), "torch.compile, both": lambda: full_both(fast)}
    return runs


def floor(shape: Shape, draw: Callable[..., np.ndarray]) -> Callable[[], None]:
    rows = shape.items * shape.queries
    left, right = np.exp(draw(rows, shape.width)), np.exp(draw(shape.width, shape.keys))
    vector, scores = draw(shape.width), draw(rows, shape.keys)
    value, out = draw(shape.keys, shape.columns), draw(rows, shape.columns)

    def work(chunk: int) -> None:
        start, stop = thread_pool.share(chunk, 8, rows)
        bare_scores(start, stop, left, right, vector, scores)
        bare_sum(start, stop, scores, value, out)

    return lambda: thread_pool.run(work, 8, rows * shape.keys * shape.width * 6e-5)


def measure(
    runs: dict[str, Callable[[], object]], rounds: int, seconds: float, clock: Callable[[], float]
) -> dict[str, list[float]]:
    """Time each contender in milliseconds, alternating; slow ones get fewer turns."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    begin = time.perf_counter()
    for round_ in range(rounds):
        for name, run in runs.items():
            if round_ >= 3 and time.perf_counter() - begin > seconds and len(times[name]) >= 3:
                continue
            start = clock()
            run()
            times[name].append(1e3 * (clock() - start))
    return times


def spread(numerator: list[float], denominator: list[float]) -> dict[str, float]:
    """Return the ratio of medians, and the quartiles of the ratios of neighboring turns."""
    ratios = sorted(x / y for x, y in zip(numerator, denominator, strict=False))
    quarter = len(ratios) // 4
    middle = statistics.median(numerator) / statistics.median(denominator)
    return {"ratio": middle, "low": ratios[quarter], "high": ratios[-1 - quarter]}


def report(shape: Shape, times: dict[str, list[float]]) -> dict[str, object]:
    pairs = {
        "floor / ours": ("floor", "ours"),
        "full tensor / ours": ("full tensor", "ours"),
        "full tensor / ours, both": ("full tensor, both", "ours, both"),
        "torch.compile / ours": ("torch.compile", "ours"),
        "torch.compile / ours, both": ("torch.compile, both", "ours, both"),
    }
    ratios = {name: spread(times[x], times[y]) for name, (x, y) in pairs.items() if x in times}
    print(shape.name)
    for name, values in times.items():
        print(f"  {name:22s} {statistics.median(values):10.3f} ms  (least {min(values):.3f}, {len(values)} runs)")
    for name, ratio in ratios.items():
        print(f"  {name:28s} {ratio['ratio']:7.2f}  ({ratio['low']:.2f} to {ratio['high']:.2f})")
    return {"shape": asdict(shape), "milliseconds": times, "ratios": ratios}


def plot(results: list[dict[str, object]], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    bars = [
        (f"{r['shape']['name']}\n{name}", ratio) for r in results for name, ratio in r["ratios"].items()  # type: ignore[index, attr-defined]
    ]  # fmt: skip
    figure, axes = plt.subplots(figsize=(9, 0.5 * len(bars) + 1), layout="constrained")
    middles = [ratio["ratio"] for _, ratio in bars]
    sides = [[m - r["low"] for m, (_, r) in zip(middles, bars, strict=True)]]
    sides.append([r["high"] - m for m, (_, r) in zip(middles, bars, strict=True)])
    axes.barh([name for name, _ in bars], middles, xerr=np.abs(sides))
    axes.set(xscale="log", xlabel="relative to ours (floor / ours: fraction of the floor)")
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="seconds per problem, after which slow contenders stop"
    )
    parser.add_argument("--compile", action="store_true", help="also measure torch.compile of the full tensor")
    parser.add_argument("--cpu", action="store_true", help="measure processor time, for a machine that is not idle")
    parser.add_argument("--only", default="", help="problems whose name contains this")
    parser.add_argument("--out", type=Path, default=Path("runs/kernels_tanh_sum.json"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    clock = time.process_time if options.cpu else time.perf_counter
    results = []
    for shape in SHAPES:
        if options.only in shape.name:
            runs = contenders(shape, options.compile)
            results.append(report(shape, measure(runs, options.rounds, options.seconds, clock)))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"threads": options.threads, "results": results}, indent=1))
    plot(results, options.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
