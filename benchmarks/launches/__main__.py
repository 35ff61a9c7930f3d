"""What every mechanism launches on a GPU, counted without one: `python -m benchmarks.launches [mechanism ...]`.

Each row is a call of `qkv.attention` with 8 heads of 2,048 queries and keys of width 64, beside the equation on the
full matrix (`backend="reference"`). It needs a C++ compiler; see `counting`.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmarks.engine.mechanisms import MECHANISMS, Size
from benchmarks.launches.counting import Counter, fake_cuda, guarded, has_guard
from torch import Tensor

import qkv

RESULTS = Path(__file__).parents[1] / "results/launches.json"
N = 2048
SIZE = Size((1, 8), N, N, 64, 64)
LINE = SIZE._replace(width=1)


def _mechanism(name: str) -> Callable[[], dict[str, Any]]:
    mechanism = MECHANISMS[name]
    return lambda: {**mechanism.given(*mechanism.parameters(SIZE)), "dropout": mechanism.dropout}


def _scores(query: Tensor, key: Tensor) -> Tensor:
    return (query @ key.mT).square()


_s, _n, _m, _b = qkv.scores, qkv.normalizers, qkv.masks, qkv.biases
CASES: dict[str, Callable[[], dict[str, Any]]] = {
    **{name.replace("_", " "): _mechanism(name) for name in MECHANISMS},
    "lengths": lambda: {"mask": _m.lengths(torch.tensor([N - 3]))},
    "window": lambda: {"mask": _m.window(128, 0)},
    "documents": lambda: {"mask": _m.documents(torch.arange(N) // 100)},
    "dense mask": lambda: {"mask": torch.ones(N, N, dtype=torch.bool)},
    "predicate": lambda: {"mask": _m.window(128, 0) | _m.lengths(2)},
    "causal sink": lambda: {"mask": _m.causal(), "normalizer": _n.Softmax(torch.zeros(8).requires_grad_())},
    "causal softcap": lambda: {"mask": _m.causal(), "score": _s.ScaledDot(softcap=10.0)},
    "causal alibi": lambda: {"mask": _m.causal(), "bias": _b.alibi(torch.ones(8))},
    "causal relative": lambda: {"mask": _m.causal(), "bias": _b.relative(torch.zeros(8, 257).requires_grad_())},
    "causal gaussian": lambda: {"mask": _m.causal(), "score": _s.Gaussian(8.0)},
    "causal additive": lambda: {**_mechanism("additive")(), "mask": _m.causal()},
    "causal mean": lambda: {"mask": _m.causal(), "score": _s.Dot(), "normalizer": _n.Mean()},
    "causal entmax": lambda: {"mask": _m.causal(), "normalizer": _n.Entmax()},
    "entmax learned": lambda: {"normalizer": _n.Entmax(torch.full((8,), 1.3).requires_grad_())},
    "triangle": lambda: {"score": _s.Epanechnikov(12.0, 1)},
    "sum of dots": lambda: {"score": _s.Gaussian(8.0), "normalizer": _n.Mean()},
    "user-defined score": lambda: {"score": _scores},
}


def count(name: str, backend: str) -> dict[str, Any]:
    """Count the launches, numbers read and copies of a call and of its backward pass.

    Args:
        name: one of `CASES`.
        backend: as `qkv.attention` takes it.
    """
    size = LINE if name.endswith("line") else SIZE
    with fake_cuda():
        with torch.device("cuda"):
            options = CASES[name]()
            shapes = (size.queries, size.width), (size.keys, size.width), (size.keys, size.value_width)
            x = [torch.randn(*size.leading, *shape, requires_grad=True) for shape in shapes]
        with Counter() as forward:
            output = qkv.attention(*x, **options, backend=backend)
        with Counter() as backward:
            output.sum().backward()
        algorithm = qkv.explain(*x, **options, backend=backend).algorithm
    assert output.is_cuda
    assert all(t.grad is None or t.grad.is_cuda for t in x)
    row: dict[str, Any] = {"algorithm": algorithm}
    for direction, counter in (("forward", forward), ("backward", backward)):
        totals = (sum(part.values()) for part in (counter.launches, counter.reads, counter.copies))
        row |= dict(zip((direction, f"{direction} reads", f"{direction} copies"), totals, strict=True))
    return row


def write(names: list[str]) -> None:
    """Count mechanisms in this process, print and store them."""
    rows: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    for name in names:
        composed = count(name, "reference")
        rows[name] = {**count(name, "auto"), "composed": [composed["forward"], composed["backward"]]}
        print(f"{name}: {rows[name]}", flush=True)
    lines = [f"{json.dumps(name)}: {json.dumps(rows[name])}" for name in CASES if name in rows]
    RESULTS.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def main() -> None:
    """Count in a process with a guard for CUDA."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.launches", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"some of {', '.join(CASES)}; default: all")
    names = parser.parse_args().names or list(CASES)
    if has_guard():
        write(names)
        return
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(guarded([sys.executable, "-m", "benchmarks.launches", *names], Path(folder)).returncode)


if __name__ == "__main__":
    main()
