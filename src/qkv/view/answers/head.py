"""One head of a layer as a separate problem, with all or some of its rows."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar, final

import torch
from torch import Tensor

from qkv.biases import Bias, BiasRows
from qkv.engine.describe import Arguments, in_log_space
from qkv.functional import attention_with_weights
from qkv.introspect.lazy_map import AttentionMap, map_of
from qkv.masks.base import Bounds, Grid, Mask, MaskRows, as_mask
from qkv.normalizers.base import Normalizer
from qkv.normalizers.dense import Softmax, Sum
from qkv.normalizers.kinds import kind_of
from qkv.normalizers.row_state import RowState
from qkv.scores.base import Score
from qkv.scores.free import Learned, as_score
from qkv.scores.products import ScaledDot
from qkv.values.parameters import item, pick
from qkv.view.scene import Layer

Owner = TypeVar("Owner", Score, Normalizer)


class AttendedRow(NamedTuple):
    """What a head computes for one query.

    Attributes:
        output: (V).
        weights: (K).
    """

    output: Tensor
    weights: Tensor


@final
@dataclass(frozen=True, eq=False)
class Head:
    """The inputs of one head, and the position of its rows in the layer.

    Args:
        query: (Q, D), all rows.
        key: (K, E).
        value: (K, V).
        score, normalizer, mask, bias: those of this head; no mask or bias is None.
        state: row state of all rows, if known.

    Example:
        >>> import torch
        >>> head = head_of(Layer("one", "self", "text", "text", *torch.randn(3, 4, 10, 8)), 2)
        >>> head.map().shape, head.map(torch.tensor([3, 7])).shape
        ((10, 10), (2, 10))
    """

    query: Tensor
    key: Tensor
    value: Tensor
    score: Score
    normalizer: Normalizer
    mask: Mask | None
    bias: Tensor | Bias | None
    state: RowState | None

    @property
    def shape(self) -> tuple[int, int]:
        """(Q, K)."""
        return self.query.shape[-2], self.key.shape[-2]

    @property
    def kind(self) -> str:
        """The normalizer's name."""
        return kind_of(self.normalizer)

    @property
    def non_negative(self) -> bool:
        """Whether no weight can be negative, so that a row has an entropy."""
        return self.normalizer.convex or self.normalizer.non_negative

    @property
    def depth(self) -> int:
        """How many numbers a pair takes while its score is computed."""
        if self.score.core not in ("tanh_sum", "distance"):
            return 1
        operands = self.score.prepare(self.query[:1], self.key[:1])
        return max(1, int(operands[0].shape[-1]))

    def options(self, rows: Tensor | None = None) -> dict[str, Any]:
        """Return the mechanism as arguments of `qkv.attention`, for all rows or some."""
        mask = self.mask if self.mask is None or rows is None else MaskRows(self.mask, rows, self.shape[0])
        return {
            "score": self.score,
            "normalizer": self.normalizer,
            "mask": mask,
            "bias": rows_of(self.bias, rows),
        }

    def map(self, rows: Tensor | None = None, state: Tensor | None = None) -> AttentionMap:
        """Return the weights (Q, K) as a lazy matrix.

        Args:
            rows: positions of the queries to select, in any order; None for all.
            state: row state of these rows; None to use the layer's, or to compute it when it is needed.
        """
        query = self.query if rows is None else self.query[rows]
        row_state = None if state is None else RowState(self.in_log_space().kind, state)  # type: ignore[arg-type]
        if row_state is None and self.state is not None:
            row_state = self.state if rows is None else self.state.map(lambda x: x[rows])
        # A scene checks its tensors, and many maps are made of one.
        options = Arguments(**self.options(rows), dropout=0.0, generator=None, enable_gqa=False)
        return map_of(query, self.key, options, row_state, lazily=True)

    def in_log_space(self) -> "Head":
        """Return the head as attention computes it: a Gaussian under its sum is a softmax of squared distances."""
        score, normalizer = in_log_space(self.score, self.normalizer, self.bias is not None)
        return self if score is self.score else replace(self, score=score, normalizer=normalizer)

    def attend(self, query: int) -> AttendedRow:
        """Return the output of one query and its weights."""
        rows = torch.tensor([query], device=self.query.device)
        result = attention_with_weights(self.query[rows], self.key, self.value, **self.options(rows))
        return AttendedRow(result[0][0], result[1][0])

    def bounds(self) -> Bounds | None:
        """Return the keys each query may see as an interval, if the mask is one."""
        return None if self.mask is None else self.mask.bounds(Grid((), *self.shape, self.query.device))

    def visible(self, query: int) -> Tensor:
        """Return which keys a query may see: bool (K)."""
        keys, device = self.shape[1], self.query.device
        if self.mask is None:
            return torch.ones(keys, dtype=torch.bool, device=device)
        grid = Grid((), self.shape[0], keys, device)
        rows, columns = torch.tensor([[query]], device=device), torch.arange(keys, device=device)
        table = self.mask.visible(grid, rows, columns)
        visible: Tensor = table.expand(1, keys)[0]
        return visible


def head_of(layer: Layer, head: int) -> Head:
    """Extract one head of a layer.

    Args:
        layer: the layer.
        head: index of the head, from 0.

    Returns:
        The head; tensors are views of the layer's.
    """
    options = dict(layer.options)
    groups = layer.key.shape[0]
    index = HeadIndex(layer.heads, groups, head)
    score = as_score(options.get("score") or ScaledDot())
    normalizer = options.get("normalizer") or default_normalizer(score)
    mask, state = options.get("mask"), layer.state
    return Head(
        layer.query[head].detach(),
        layer.key[index.key_head].detach(),
        layer.value[index.key_head].detach(),
        part_of(score, index),
        part_of(normalizer, index),
        None if mask is None else as_mask(mask).item(head, (layer.heads,)),
        bias_of(options.get("bias"), index),
        None if state is None or state.kind == "hard" else state.map(lambda x: x[head].detach()),
    )


def default_normalizer(score: Score) -> Normalizer:
    """Return the normalizer that `qkv.attention` uses by default."""
    return Sum() if score.non_negative else Softmax()


def norms(layer: Layer, head: int) -> Tensor:
    """Return the norm of each value after the output projection, ‖W_O v‖: the contribution of a weight of one.

    Returns:
        (K,); the norm of the value itself if the layer has no output projection.
    """
    value = layer.value[head * layer.key.shape[0] // layer.heads].detach()
    value = value.double()
    if layer.output is None:
        return value.square().sum(-1).sqrt()
    width = value.shape[-1]
    weight = layer.output[0].detach()[:, head * width : (head + 1) * width].double()
    # ‖Wv‖² = vᵀ(WᵀW)v: the projected values themselves would take M numbers per key.
    gram = weight.mT @ weight
    return ((value @ gram) * value).sum(-1).clamp(min=0).sqrt()


@final
@dataclass(frozen=True, eq=False)
class HeadIndex:
    """One head of a layer.

    Args:
        heads: H of the layer.
        groups: G, the heads of its keys.
        head: index of the head.
    """

    heads: int
    groups: int
    head: int

    @property
    def key_head(self) -> int:
        """The index of the head of the keys."""
        return self.head * self.groups // self.heads


@final
@dataclass(frozen=True, eq=False)
class _OneHead:
    """Evaluate a function that expects all heads for one of them."""

    function: Callable[[Tensor, Tensor], Tensor]
    index: HeadIndex

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        all_heads = (x.expand(self.index.heads, *x.shape[-2:]) for x in (query, key))
        return pick(self.function(*all_heads), self.index.head, 3)


def part_of(owner: Owner, index: HeadIndex) -> Owner:
    """Return a score or normalizer with the parameters of one head."""
    if isinstance(owner, Learned):
        return replace(owner, module=_OneHead(owner.module, index))
    return item(owner, owner.parameters, index.head, (index.heads,), index.key_head)


def bias_of(bias: Tensor | Bias | None, index: HeadIndex) -> Tensor | Bias | None:
    """Return a layer's bias for one head."""
    if isinstance(bias, Bias):
        return bias.item(index.head, (index.heads,))
    return None if bias is None else pick(bias, index.head, 3)


def rows_of(bias: Tensor | Bias | None, rows: Tensor | None) -> Tensor | Bias | None:
    """Return a head's bias for some rows; None for all."""
    if bias is None or rows is None:
        return bias
    if isinstance(bias, Bias):
        return BiasRows(bias, rows)
    several = bias.ndim > 1 and bias.shape[-2] > 1
    return bias.index_select(-2, torch.as_tensor(rows, device=bias.device)) if several else bias
