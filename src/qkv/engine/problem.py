"""The input of an algorithm: a problem (a value without tensors) and the tensors that go with it."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from qkv.engine.tracing import Mode
from qkv.masks.lower import Kind, Visibility
from qkv.normalizers.base import Normalizer
from qkv.scores.base import Core, Score
from qkv.scores.pointwise import Pointwise
from qkv.shapes import Shape


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
        mode: how PyTorch executes the call.
        forward_mode: whether tensors may carry tangents of forward-mode derivatives.
        positioned: where the core is a tile of scores and of a bias of j − i that needs no gradient: the core of those
            scores.
        constant: whether every score is 1.
        threads: the number of threads that PyTorch uses; 1 where it is not known.
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
    mode: Mode = "eager"
    forward_mode: bool = False
    positioned: Core | None = None
    constant: bool = False
    threads: int = 1

    @property
    def empty(self) -> bool:
        """Whether any dimension has size 0."""
        return 0 in (self.rows, self.queries, self.keys, self.width, self.value_width)

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
        pointwise = "" if type(self.pointwise).__name__ == "Linear" else f" ({self.pointwise})"
        return f"{self.core}{pointwise} under {self.normalizer}, mask {self.mask}, {shape}, {self.dtype}, {self.device}"


class Call(NamedTuple):
    """The tensors that go with a problem.

    Attributes:
        query, key, value: (..., Q, D), (..., K, E), (..., K, V), leading shapes that broadcast to the problem's;
            keys and values that no query may see are zero, unless the algorithm does not read them.
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
