"""No tensor of size Q×K exists during forward or backward: every tensor that PyTorch allocates is counted."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.contract.calls import MECHANISMS, Call
from tests.contract.mechanisms import ON_CPU
from tests.contract.served import by_served
from tests.pairs import in_turn
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from qkv.biases import Bias, alibi, relative
from qkv.functional import attention, explain
from qkv.masks.patterns import causal, lengths, span, window
from qkv.planner.plan import QUADRATIC_LIMIT
from qkv.planner.registry import BACKENDS, algorithms_of
from qkv.scores.base import Score
from qkv.scores.kernels import SquaredDistance
from qkv.scores.products import ScaledDot
from qkv.scores.sums import Additive
from qkv.values.parameters import Parameter

N = 2100  # a mask of fewer pairs than 2²² may be written out for the fused kernel
LARGEST = N * N // 4
LINEAR = [name for name in BACKENDS if not any(each.quadratic for each in algorithms_of(name))]


class Largest(TorchDispatchMode):
    """Watches the storage behind every result."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers, self.operation = 0, ""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                numbers = leaf.untyped_storage().nbytes() // leaf.element_size()
                if numbers > self.numbers:
                    self.numbers, self.operation = numbers, str(func)
        return out


CHEAP = {"scaled_dot", "bilinear", "concat", "squared_distance", "epanechnikov_per_head", "uniform"}
KEPT = [(s, n) for s, n in MECHANISMS if s.name in CHEAP or (s.name == "additive_projected")]
MASKS = {"none": None, "causal": causal(), "lengths": lengths(N - 7), "span": span(7, N - 7), "window": window(20, 20)}


def long(mask: str) -> Iterator[Call]:
    for score, normalizer in KEPT:
        heads = (2,) if "per_head" in score.name or normalizer.shapes else ()
        yield Call.draw(score, normalizer, (heads, N, N), torch.float32, mask=MASKS[mask])


@by_served(
    lambda mask: (call.request() for call in long(mask)),
    [name for name in LINEAR if name in ON_CPU],
    mask=["none", *(pytest.param(mask, marks=pytest.mark.slow) for mask in list(MASKS)[1:])],
)
def test_no_tensor_grows_with_queries_times_keys(backend: str, mask: str) -> None:
    ran = 0
    for call in long(mask):
        if not call.serves(backend):
            continue
        if ran > 3 and "per_head" not in call.score.name and call.normalizer.name not in ("entmax", "hard"):
            continue  # one of each kind is enough: no other tests are as large
        ran += 1
        with Largest() as seen:
            call.gradients(backend)
        assert seen.numbers < LARGEST, f"{call}: {seen.operation} makes {seen.numbers:,} numbers"


class Squares(Bias):
    """A number that learns times a distance between blocks, no function of j − i."""

    parameters = (Parameter("slope", 0),)

    def __init__(self, slope: Tensor) -> None:
        self.slope = slope

    def tile(self, rows_Q1: Tensor, columns_K: Tensor) -> Tensor:
        return self.slope * (rows_Q1 // 3 - columns_K // 2).abs()


BIASES = {"alibi": alibi, "relative": lambda x: relative(x.expand(9)), "yours": Squares}


SCORES = (ScaledDot(), SquaredDistance(), Additive(torch.ones(8)))
PAIRS = [
    pytest.param(SCORES[score], bias, learns, id=f"{SCORES[score].core}-{bias}-{learns}", marks=marks)
    for (score, bias, learns), marks in ((case.values, case.marks) for case in in_turn(range(3), BIASES, (False, True)))
    if (SCORES[score].core, bias) != ("tanh_sum", "yours")  # takes half a minute
]


@pytest.mark.parametrize(("score", "bias", "learns"), PAIRS)
def test_biases_from_positions_never_become_a_matrix(score: Score, bias: str, learns: bool) -> None:
    query, key, value = torch.randn(3, N, 8).unbind()
    slope = torch.tensor(0.1, requires_grad=learns)
    leaves = [query.requires_grad_(), key.requires_grad_(), value.requires_grad_(), *([slope] if learns else [])]
    for backend in ("auto", "blocked") if score.core != "tanh_sum" else ("auto",):
        with Largest() as seen:
            output = attention(query, key, value, score=score, bias=BIASES[bias](slope), backend=backend)
            torch.autograd.grad(output.sum(), leaves)
        assert seen.numbers < LARGEST, f"{backend}: {seen.operation} makes {seen.numbers:,} numbers"


def test_unequal_widths_do_not_leave_the_fused_kernel() -> None:
    """PyTorch's own fallback for D ≠ V allocates the matrix."""
    call = Call.draw(*KEPT[0], ((), N, N), torch.float32, value_width=8)
    with Largest() as seen:
        call.gradients("auto")
    assert seen.numbers < LARGEST, seen.operation


@pytest.mark.parametrize("mask", MASKS)
def test_auto_takes_linear_memory_past_the_limit(mask: str) -> None:
    """Never the full matrix once Q·K per head exceeds the stated limit."""
    for score, normalizer in MECHANISMS:
        heads = (2,) if "per_head" in score.name or normalizer.shapes else ()
        call = Call.draw(score, normalizer, (heads, N, N), torch.float32, mask=MASKS[mask])
        tensors = [call.leaves[name] for name in ("query", "key", "value")]
        plan = explain(*tensors, **call.arguments(call.leaves))
        assert plan.problem.queries * plan.problem.keys > QUADRATIC_LIMIT
        assert not plan.candidates[0].quadratic, call


GROWTH = """
import re, torch, qkv
from pathlib import Path
torch.set_num_threads(1)
def status(field):
    return int(re.search(rf"{field}:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024
def run(queries, keys):
    query, key, value = (torch.randn(n, 64, requires_grad=True) for n in (queries, keys, keys))
    qkv.attention(query, key, value, score=lambda a, b: torch.tanh(a @ b.mT / 8)).sum().backward()
run(300, 700)
before = status("VmRSS")
Path("/proc/self/clear_refs").write_text("5")
run(4096, 8192)
print(status("VmHWM") - before)
"""


@pytest.mark.slow
def test_a_function_of_yours_leaves_no_tile_behind() -> None:
    """The heap used to retain 0.9 MiB per tile, which no count of tensors shows: 420 MiB here, now 170."""
    done = subprocess.run([sys.executable, "-c", GROWTH], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 260
