"""Compiled rows between matrix products against the full matrix, in processor time of one thread.

Contenders alternate in one process; processor time excludes other processes. Distances are measured twice: with
single-precision products, where the guard allows them, and in double precision, the safe form.

    python -m benchmarks.rowwise

Results go to benchmarks/results/rowwise.json.
"""

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import entmax
import torch
from torch import Tensor
from torch.nn import functional as F

import qkv
from qkv.algorithms.rowwise import rowwise
from qkv.normalizers import Entmax, Sparsemax
from qkv.scores import Boxcar, Epanechnikov, Gaussian, SquaredDistance

RESULTS = Path(__file__).parent / "results" / "rowwise.json"
ROUNDS, HEADS, N, WIDTH = 3, 2, 2048, 64
BANDWIDTH = 12.0
NEAR = rowwise.NEAR


def shares(weights: Tensor) -> Tensor:
    return weights / weights.sum(-1, keepdim=True).clamp(min=1e-30)


def x(query: Tensor, key: Tensor) -> Tensor:
    return (torch.cdist(query, key) / BANDWIDTH).square()


FULL: dict[str, tuple[Callable[..., Tensor], dict[str, Any]]] = {
    "squared distance": (lambda q, k, v: torch.softmax(x(q, k) / -2, -1) @ v, {"score": SquaredDistance(BANDWIDTH)}),
    "gaussian": (lambda q, k, v: shares(torch.exp(x(q, k) / -2)) @ v, {"score": Gaussian(BANDWIDTH)}),
    "boxcar": (lambda q, k, v: shares((x(q, k) <= 1).to(q.dtype)) @ v, {"score": Boxcar(BANDWIDTH)}),
    "epanechnikov": (lambda q, k, v: shares(F.relu(1 - x(q, k))) @ v, {"score": Epanechnikov(BANDWIDTH)}),
    "entmax 1.5": (lambda q, k, v: entmax.entmax15(q @ k.mT / 8, -1) @ v, {"normalizer": Entmax()}),
    "sparsemax": (lambda q, k, v: entmax.sparsemax(q @ k.mT / 8, -1) @ v, {"normalizer": Sparsemax()}),
    "dropout": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.1), {"dropout": 0.1}),
}


def seconds(attend: Callable[..., Tensor], tensors: list[Tensor], gradient: bool) -> float:
    leaves = [tensor.detach().requires_grad_(gradient) for tensor in tensors]
    start = time.process_time()
    output = attend(*leaves)
    if gradient:
        torch.autograd.grad(output, leaves, torch.ones_like(output), allow_unused=True)
    return time.process_time() - start


def measure(name: str, gradient: bool, near: float) -> dict[str, Any]:
    """Return the speedup over the full matrix: the median over rounds, and the extremes."""
    torch.manual_seed(0)
    tensors = [torch.randn(1, HEADS, N, WIDTH) for _ in range(3)]
    full, given = FULL[name]

    def ours(*leaves: Tensor) -> Tensor:
        return qkv.attention(*leaves, backend="rowwise", **given)

    rowwise.NEAR = near
    seconds(ours, tensors, gradient)
    ratios = [seconds(full, tensors, gradient) / seconds(ours, tensors, gradient) for _ in range(ROUNDS)]
    rowwise.NEAR = NEAR
    return {"times": round(statistics.median(ratios), 2), "spread": [round(min(ratios), 2), round(max(ratios), 2)]}


def main() -> None:
    """Measure, print, write JSON."""
    torch.set_num_threads(1)
    report: dict[str, Any] = {"torch": torch.__version__, "threads": 1, "heads": HEADS, "n": N, "width": WIDTH}
    for name, (_, given) in FULL.items():
        for what, gradient in (("forward", False), ("forward + backward", True)):
            for products, near in (("single", NEAR), ("double", 0.0)) if "score" in given else (("single", NEAR),):
                row = report[f"{name}, {what}, {products}"] = measure(name, gradient, near)
                RESULTS.parent.mkdir(exist_ok=True)
                RESULTS.write_text(json.dumps(report, indent=1) + "\n")
                print(f"{name:18} {what:18} {products} {row['times']:6.2f} × {row['spread']}", flush=True)


if __name__ == "__main__":
    main()
