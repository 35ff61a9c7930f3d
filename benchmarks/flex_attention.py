"""`qkv.flex_attention` beside the full matrix in PyTorch: time forward and backward, first call, and memory.

The full matrix is what the same score function costs without FlexAttention: scores, bias or mask, softmax, values, by
autograd; PyTorch's own flex_attention has no backward pass on the CPU.

    python -m benchmarks.flex_attention            # processor time at 4,096 positions, two heads of width 64, by turns
    python -m benchmarks.flex_attention --memory   # growth of resident memory at 4,096, 8,192 and 16,384

Results go to benchmarks/results/flex_attention.json.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmarks.kept import keep
from torch import Tensor

import qkv

RESULTS = Path(__file__).parent / "results" / "flex_attention.json"
HEADS, WIDTH, LENGTH, ROUNDS = 2, 64, 4096, 7
SIZES = (4096, 8192, 16384)
Score = Callable[..., Tensor]
INFINITY = float("inf")


class Case:
    """A score function on scalars, and the same on whole matrices.

    Args:
        name: of the case.
        length: the number of positions.
    """

    def __init__(self, name: str, length: int) -> None:
        torch.manual_seed(0)
        self.slopes = torch.tensor([2.0**-4, 2.0**-8])
        self.table = torch.randn(HEADS, 2 * length, requires_grad=True)
        self.length = length
        self.score: Score = getattr(self, name)
        self.matrix: Callable[[Tensor], Tensor] = getattr(self, f"{name}_matrix")
        self.learned = [self.table] if name in ("relative", "generic") else []

    def causal(self, score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return torch.where(i >= j, score, -INFINITY)

    def causal_matrix(self, score: Tensor) -> Tensor:
        i = torch.arange(self.length)
        return score.masked_fill(i[:, None] < i, -INFINITY)

    def alibi(self, score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return torch.where(i >= j, score + self.slopes[h] * (j - i), -INFINITY)

    def alibi_matrix(self, score: Tensor) -> Tensor:
        i = torch.arange(self.length)
        score = score + self.slopes[:, None, None] * (i - i[:, None])
        return score.masked_fill(i[:, None] < i, -INFINITY)

    def softcap(self, score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return 20 * torch.tanh(score / 20)

    def softcap_matrix(self, score: Tensor) -> Tensor:
        return 20 * torch.tanh(score / 20)

    def relative(self, score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score + self.table[h, i - j + self.length]

    def relative_matrix(self, score: Tensor) -> Tensor:
        i = torch.arange(self.length)
        return score + self.table[:, i[:, None] - i + self.length]

    def generic(self, score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score * torch.sigmoid(score + self.table[h, j])

    def generic_matrix(self, score: Tensor) -> Tensor:
        return score * torch.sigmoid(score + self.table[:, None, : self.length])


CASES = ("causal", "alibi", "softcap", "relative", "generic")
Inputs = tuple[Tensor, Tensor, Tensor]


def _inputs(length: int) -> Inputs:
    torch.manual_seed(1)
    query, key, value = (torch.randn(1, HEADS, length, WIDTH, requires_grad=True) for _ in range(3))
    return query, key, value


def _ours(case: Case, inputs: Inputs) -> tuple[Tensor, ...]:
    output = qkv.flex_attention(*inputs, score_mod=case.score)
    assert isinstance(output, Tensor)
    return torch.autograd.grad(output.sum(), [*inputs, *case.learned])


def _matrix(case: Case, inputs: Inputs) -> tuple[Tensor, ...]:
    query, key, value = inputs
    scores = case.matrix(query @ key.mT * WIDTH**-0.5)
    return torch.autograd.grad((scores.softmax(-1) @ value).sum(), [*inputs, *case.learned])


def times(name: str) -> dict[str, Any]:
    """Time one case against the full matrix, by turns."""
    case, inputs = Case(name, LENGTH), _inputs(LENGTH)
    runs = {"qkv": _ours, "full matrix": _matrix}
    found: dict[str, list[float]] = {each: [] for each in runs}
    for turn in range(ROUNDS + 1):
        for each, run in runs.items():
            start = time.process_time()
            run(case, inputs)
            if turn:
                found[each].append(time.process_time() - start)
    ratios = sorted(b / a for a, b in zip(*found.values(), strict=True))
    return {
        "ms": {each: round(statistics.median(own) * 1e3, 1) for each, own in found.items()},
        "ratio": round(statistics.median(ratios), 2),
        "extremes": [round(ratios[0], 2), round(ratios[-1], 2)],
    }


def first_call(name: str) -> dict[str, float]:
    """Time the first call in this process, forward and backward, at 256 positions, with qkv imported."""
    case, inputs = Case(name, 256), _inputs(256)
    start = time.perf_counter()
    _ours(case, inputs)
    return {"seconds": round(time.perf_counter() - start, 3)}


def growth(name: str, length: int) -> dict[str, float]:
    """Measure how much resident memory one forward and backward pass adds in this process."""
    _ours(Case(name, 600), _inputs(600))
    case, inputs = Case(name, length), _inputs(length)
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    _ours(case, inputs)
    return {"mib": round((_status("VmHWM") - before) / 1024, 1)}


def _status(field: str) -> int:
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1])


def _in_fresh_process(*what: str) -> Any:
    command = [sys.executable, "-m", "benchmarks.flex_attention", "--child", *what]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main() -> None:
    """Measure, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memory", action="store_true", help="measure memory instead of time")
    parser.add_argument("--only", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        kind, name, *length = given.child
        print(json.dumps(growth(name, int(*length)) if kind == "memory" else first_call(name)))
        return
    torch.set_num_threads(1)
    report: dict[str, Any] = {}
    for name in given.only:
        if given.memory:
            sizes = {str(size): _in_fresh_process("memory", name, str(size))["mib"] for size in SIZES}
            report[f"{name}, MiB"] = sizes
        else:
            report[name] = {**times(name), "first call": _in_fresh_process("first", name)}
        print(name, *(report[f"{name}, MiB"] if given.memory else report[name]).items(), flush=True)
    keep(RESULTS, {"torch": torch.__version__, "threads": torch.get_num_threads(), **report})


if __name__ == "__main__":
    main()
