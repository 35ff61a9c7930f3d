"""The parts of a score, normalizer, mask and bias that belong to one head, and to some of its rows."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar, final

import torch
from torch import Tensor

from qkv.biases import Bias, BiasRows
from qkv.normalizers.base import Normalizer
from qkv.scores.base import Score
from qkv.scores.free import Learned
from qkv.values.parameters import item, pick

Owner = TypeVar("Owner", Score, Normalizer)


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
    def of_keys(self) -> int:
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
    return item(owner, owner.parameters, index.head, (index.heads,), index.of_keys)


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
