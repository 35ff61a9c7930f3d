"""The input of a backend: a problem (a value without tensors), the tensors that go with it, and the plan."""

from dataclasses import dataclass
from textwrap import fill
from typing import Literal, NamedTuple, final

import torch
from torch import Tensor

from qkv.masks.lower import Kind, Visibility
from qkv.normalizers.base import Normalizer
from qkv.scores.base import Core, Score
from qkv.scores.pointwise import Pointwise
from qkv.shapes import Shape, show


class Problem(NamedTuple):
    """Everything that decides how attention is computed, and nothing else.

    Attributes:
        core: the function on pairs.
        pointwise: what follows it.
        normalizer: the normalizer's name, of `normalizers.kinds`.
        sink: whether the softmax has a sink.
        mask: the kind of the lowered mask.
        bias: whether scores get a bias, and whether that needs a gradient.
        dropout: whether weights are dropped.
        gradient: whether any gradient is wanted.
        state: whether the row state is wanted.
        leading: the leading shape, grouped heads as (G, H/G).
        queries, keys: Q and K.
        width, value_width: of the prepared operands (F), and of values (V).
        dtype, device: of query, key and value.
        transformed: whether a transformation of `torch.func`, such as vmap, or a tracer such as `make_fx` is at work.
        forward_mode: whether tangents may travel with tensors, which only PyTorch's own operations pass on.
        positioned: where the core is a tile of scores and of a bias of j − i that needs no gradient: the core of those
            scores.
        constant: whether every score is 1.
    """

    core: Core
    pointwise: Pointwise
    normalizer: str
    sink: bool
    mask: Kind
    bias: Literal["none", "fixed", "learned"]
    dropout: bool
    gradient: bool
    state: bool
    leading: Shape
    queries: int
    keys: int
    width: int
    value_width: int
    dtype: torch.dtype
    device: str
    transformed: bool = False
    forward_mode: bool = False
    positioned: Core | None = None
    constant: bool = False

    @property
    def rows(self) -> int:
        """How many (batch, head) problems there are."""
        count = 1
        for size in self.leading:
            count = count * size
        return count

    def __str__(self) -> str:
        """One line that a reader of an error can use."""
        lead = "".join(f"{size}×" for size in self.leading)
        shape = f"{lead}{self.queries} queries × {self.keys} keys, widths {self.width} and {self.value_width}"
        pointwise = "" if type(self.pointwise).__name__ == "Linear" else f" {self.pointwise}"
        return f"{self.core}{pointwise} under {self.normalizer}, mask {self.mask}, {shape}, {self.dtype}, {self.device}"


class Call(NamedTuple):
    """The tensors that go with a problem.

    Attributes:
        query, key, value: (..., Q, D), (..., K, E), (..., K, V), leading shapes that broadcast to the problem's;
            keys and values that no query may see are zero, unless the backend handles them itself.
        score, normalizer: the mechanism, parameters laid out as the leading shape.
        visibility: the lowered mask.
        bias: added to the scores, broadcasts to (..., Q, K).
        dropout: the probability of dropping a weight.
        seed: one int64 tensor; which weights are dropped is a function of (seed, row, key).
    """

    query: Tensor
    key: Tensor
    value: Tensor
    score: Score
    normalizer: Normalizer
    visibility: Visibility
    bias: Tensor | None = None
    dropout: float = 0.0
    seed: Tensor | None = None


class Cost(NamedTuple):
    """What a backend expects a problem to take.

    Attributes:
        operations: floating-point operations.
        bytes: memory beyond inputs and outputs.
        time: the predicted time in microseconds, for comparing backends.
    """

    operations: int
    bytes: int
    time: float


@final
@dataclass(frozen=True)
class Plan:
    """Which backend computes a problem, and why.

    Attributes:
        problem: what was asked.
        backend: the name of the backend.
        why: the reason in one sentence.
        cost: what it expects to take.
        refusals: every other backend with its reason.
    """

    problem: Problem
    backend: str
    why: str
    cost: Cost
    refusals: tuple[tuple[str, str], ...]

    @property
    def operations(self) -> int:
        """Floating-point operations."""
        return self.cost.operations

    @property
    def bytes(self) -> int:
        """Memory beyond inputs and outputs."""
        return self.cost.bytes

    def __str__(self) -> str:
        """A small table for people."""
        problem = self.problem
        rows = [
            ("problem", str(problem)),
            ("leading shape", show(problem.leading)),
            ("backend", self.backend),
            ("why", self.why),
            ("operations", f"{self.cost.operations:.3g}"),
            ("memory", f"{_readable(self.cost.bytes)} beyond inputs and output"),
            *((f"not {name}", reason) for name, reason in self.refusals),
        ]
        width = max(len(name) for name, _ in rows) + 2
        return "\n".join(fill(f"{name:<{width}}{text}", 80, subsequent_indent=" " * width) for name, text in rows)


def _readable(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} TiB"
