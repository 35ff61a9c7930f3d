"""Rules between another library's tensors and ours: names, and a change of layout that can be undone."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, final

import torch
from torch import Tensor

from qkv.models.parts import TransformerParts


class LayoutChange(Protocol):
    """A change of layout, in both directions; exact, because numbers are only moved."""

    def to_ours(self, parts: list[Tensor], config: TransformerParts) -> Tensor:
        """Make our tensor from theirs."""
        ...

    def to_theirs(self, tensor: Tensor, config: TransformerParts) -> list[Tensor]:
        """Make their tensors from ours."""
        ...


@final
@dataclass(frozen=True)
class Same:
    """No change; or they store it transposed, as (in, out); or with one more dimension in front."""

    transposed: bool = False
    row: bool = False

    def to_ours(self, parts: list[Tensor], config: TransformerParts) -> Tensor:
        """Return their tensor in our layout."""
        (tensor,) = parts
        tensor = tensor[0] if self.row else tensor
        return tensor.mT if self.transposed and tensor.ndim == 2 else tensor

    def to_theirs(self, tensor: Tensor, config: TransformerParts) -> list[Tensor]:
        """Return our tensor in their layout."""
        tensor = tensor.mT if self.transposed and tensor.ndim == 2 else tensor
        return [tensor[None] if self.row else tensor]


@final
@dataclass(frozen=True)
class Heads:
    """Query, key and value projections, which we store as one matrix.

    Their rotary positions rotate feature j with feature j + D/2; ours rotate neighbors. So the rows of queries and keys
    are permuted.

    Args:
        fused: how theirs are stored: three matrices (""), one below the other ("rows"), or alternating for each head
            ("heads").
        transposed: whether they are stored as (in, out).
    """

    fused: str = ""
    transposed: bool = False

    def to_ours(self, parts: list[Tensor], config: TransformerParts) -> Tensor:
        """Stack the three below each other, neighbors paired."""
        if self.fused:
            (joined,) = parts
            joined = joined.mT if self.transposed and joined.ndim == 2 else joined
            if self.fused == "heads":
                return self._paired(list(_by_head(joined, config).unbind(1)), config)
            parts = list(joined.split_with_sizes(_sizes(config)))
        return self._paired([_heads(part, config) for part in parts], config)

    def to_theirs(self, tensor: Tensor, config: TransformerParts) -> list[Tensor]:
        """Undo it."""
        order = halves(config)
        parts = [_heads(part, config) for part in tensor.split_with_sizes(_sizes(config))]
        parts = [part[:, order] if index < 2 else part for index, part in enumerate(parts)]
        if self.fused == "heads":
            return [torch.stack(parts, 1).reshape(tensor.shape)]
        flat = [part.flatten(0, 1) for part in parts]
        if not self.fused:
            return flat
        joined = torch.cat(flat)
        return [joined.mT if self.transposed and joined.ndim == 2 else joined]

    def _paired(self, parts: list[Tensor], config: TransformerParts) -> Tensor:
        order = pairs(config)
        return torch.cat([(part[:, order] if index < 2 else part).flatten(0, 1) for index, part in enumerate(parts)])


@final
@dataclass(frozen=True)
class Half:
    """The upper or the lower half of the rows of one of their tensors; the rule of the upper half comes first.

    Args:
        index: 0 for the upper one, 1 for the lower one.
    """

    index: int

    def to_ours(self, parts: list[Tensor], config: TransformerParts) -> Tensor:
        """Return the half."""
        return parts[0].chunk(2)[self.index]

    def to_theirs(self, tensor: Tensor, config: TransformerParts) -> list[Tensor]:
        """Return it, which `to_theirs` puts below the other one."""
        return [tensor]


@final
@dataclass(frozen=True)
class HeadGain:
    """The gain of a norm of each head's queries or keys, permuted like these."""

    def to_ours(self, parts: list[Tensor], config: TransformerParts) -> Tensor:
        """Pair neighbors."""
        return parts[0][pairs(config)]

    def to_theirs(self, tensor: Tensor, config: TransformerParts) -> list[Tensor]:
        """Undo it."""
        return [tensor[halves(config)]]


@final
@dataclass(frozen=True)
class WeightRule:
    """One of our tensors, and those of theirs that it consists of.

    Args:
        ours: its name in our model.
        theirs: their names.
        layout: the change of layout.
    """

    ours: str
    theirs: tuple[str, ...]
    layout: LayoutChange = Same()


def pairs(config: TransformerParts) -> Tensor:
    """Return their index of each of our features of a head (D,), in which rotated pairs are neighbors.

    Example:
        >>> from qkv.models.parts import PositionParts
        >>> pairs(TransformerParts(9, 8, 1, 1, 8, 8, 1, positions=PositionParts("rotary"))).tolist()
        [0, 4, 1, 5, 2, 6, 3, 7]
    """
    width, positions = config.head_width, config.positions
    if positions.kind != "rotary":
        return torch.arange(width, device="cpu")
    rotated = int(width * positions.share)
    order = torch.arange(rotated, device="cpu").view(2, -1).T.flatten()
    return torch.cat([order, torch.arange(rotated, width, device="cpu")])


def halves(config: TransformerParts) -> Tensor:
    """Return our index of each of their features of a head (D,): the inverse of `pairs`."""
    return pairs(config).argsort()


def named(ours: str, theirs: str, kinds: Iterable[str], layout: LayoutChange = Same()) -> list[WeightRule]:
    """Return the rules of a layer's tensors.

    Example:
        >>> [rule.theirs for rule in named("norm", "ln_f", ("weight", "bias"))]
        [('ln_f.weight',), ('ln_f.bias',)]
    """
    return [WeightRule(f"{ours}.{kind}", (f"{theirs}.{kind}",), layout) for kind in kinds]


def to_ours(rules: Iterable[WeightRule], theirs: Mapping[str, Tensor], config: TransformerParts) -> dict[str, Tensor]:
    """Return our tensors, made from theirs."""
    return {rule.ours: rule.layout.to_ours([theirs[name] for name in rule.theirs], config) for rule in rules}


def to_theirs(rules: Iterable[WeightRule], ours: Mapping[str, Tensor], config: TransformerParts) -> dict[str, Tensor]:
    """Return their tensors, made from ours."""
    theirs: dict[str, Tensor] = {}
    for rule in rules:
        for name, tensor in zip(rule.theirs, rule.layout.to_theirs(ours[rule.ours], config), strict=True):
            theirs[name] = torch.cat([theirs[name], tensor]) if name in theirs else tensor
    return theirs


def _sizes(config: TransformerParts) -> list[int]:
    keys = config.key_heads * config.head_width
    return [config.heads * config.head_width, keys, keys]


def _heads(part: Tensor, config: TransformerParts) -> Tensor:
    return part.view(-1, config.head_width, *part.shape[1:])


def _by_head(joined: Tensor, config: TransformerParts) -> Tensor:
    return joined.view(config.heads, 3, config.head_width, *joined.shape[1:])
