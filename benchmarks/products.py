"""Products x·Wᵀ by every code that qkv may call: PyTorch's own, oneDNN's, and packed weights; and those of gradients.

    python -m benchmarks.products                two threads
    python -m benchmarks.products --threads 1

Contenders alternate in one run; figures are medians in microseconds, of processor time on one thread. "turned" is
PyTorch's product with the weight transposed beforehand, "panels" the packed weight of `qkv.linalg.packed`, "packed"
oneDNN's own layout.
Results go to benchmarks/results/products.json, by processor and threads; `qkv.linalg.matmul` decides by them.
"""

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
from benchmarks.engine.timing import microseconds
from benchmarks.kept import keep
from torch import Tensor
from torch.nn import functional as F

from qkv.linalg import mkl
from qkv.linalg.packed import PackedWeight

RESULTS = Path(__file__).parent / "results" / "products.json"
FEW = ((16, 512, 1536), (28, 512, 1536), (128, 512, 1536), (16, 1024, 1536), (16, 1536, 512), (16, 1536, 1024))
"""Rows, terms and columns of the steps of an RNN."""
STEP = ((64, 256, 256), (64, 256, 768), (64, 256, 1024), (64, 1024, 256), (64, 256, 8000), (320, 256, 8000))
"""The same for a decoder of `benchmarks.decode`, greedy; the last one by a beam of five."""
TRAINED = (
    *((192, 64, 256), (768, 64, 256), (128, 256, 512), (256, 256, 512)),
    *((1024, 256, 768), (1024, 256, 1024), (1024, 1024, 256), (1024, 256, 8000)),
)
"""The same for training steps: of small layers, and of `benchmarks.train`."""
TURNS, SECONDS = 15, 0.004


def runs(rows: int, terms: int, columns: int) -> dict[str, Callable[[], object]]:
    """Return the products of a layer: forward, and where it is trained, those of its gradients."""
    weight, bias, x = torch.randn(columns, terms), torch.randn(columns), torch.randn(rows, terms)
    grad, turned, panels = torch.randn(rows, columns), weight.mT.contiguous(), PackedWeight(weight)
    packed = torch.ops.mkldnn._reorder_linear_weight.default(weight, None)

    def onednn(left: Tensor, right: Tensor, added: Tensor | None = None) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise.default(left, right, added, "none", [], "")
        return product

    forward: dict[str, Callable[[], object]] = {
        "PyTorch": lambda: F.linear(x, weight, bias),
        "turned": lambda: torch.addmm(bias, x, turned),
        "panels": lambda: panels.times(x, bias),
        "oneDNN": lambda: onednn(x, weight, bias),
        "oneDNN, packed": lambda: onednn(x, packed, bias),
    }
    if (rows, terms, columns) not in TRAINED:
        return forward
    # oneDNN copies a column-major first operand, so it gets the smaller one first.
    by_weight = (lambda: onednn(x.mT, grad.mT).mT) if terms < columns else (lambda: onednn(grad.mT, x.mT))
    return forward | {
        "gradient of x, PyTorch": lambda: grad @ weight,
        "gradient of x, oneDNN": lambda: onednn(grad, weight.mT),
        "gradient of W, PyTorch": lambda: grad.mT @ x,
        "gradient of W, oneDNN": by_weight,
    }


def main() -> None:
    """Print the microseconds of each, store them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    threads = parser.parse_args().threads
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    report: dict[str, dict[str, int]] = {}
    with torch.inference_mode():
        for size in (*FEW, *STEP, *TRAINED):
            contenders = runs(*size)
            calls = {
                name: max(1, int(1e6 * SECONDS / min(microseconds(run, 1) for _ in "1234")))
                for name, run in contenders.items()
            }
            times: dict[str, list[float]] = {name: [] for name in contenders}
            for _ in range(TURNS):
                for name, run in contenders.items():
                    times[name].append(microseconds(run, calls[name]))
            name = " × ".join(map(str, size))
            report[name] = {each: round(statistics.median(own)) for each, own in times.items()}
            print(f"{name}: {', '.join(f'{each} {us}' for each, us in report[name].items())} µs", flush=True)
    keep(RESULTS, {"torch": torch.__version__, "MKL": mkl.optimized_for(), f"{threads} threads": report})


if __name__ == "__main__":
    main()
