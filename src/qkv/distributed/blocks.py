"""Attention of some rows over some columns of a matrix that several processes share."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import log, prod
from typing import Any, final

import torch
from torch import Tensor

from qkv.biases import Bias
from qkv.distributed.layout import Layout
from qkv.distributed.placing import Block, bias_part, shifted_bias, visible_part
from qkv.engine.describe import Arguments, draw_seed, in_log_space, normalizer_for
from qkv.engine.dropout import keep_mask
from qkv.errors import UnsupportedError
from qkv.functional import (
    attention_alone,
    attention_with_state_alone,
    attention_with_weights_alone,
)
from qkv.masks.base import Grid, Mask, as_mask
from qkv.masks.lower import lower, matrix
from qkv.masks.patterns import dense
from qkv.normalizers.base import Normalizer
from qkv.normalizers.dense import Hard, Sigmoid
from qkv.normalizers.kinds import kind_of
from qkv.normalizers.row_state import RowState
from qkv.scores.base import Score, equation
from qkv.scores.free import as_score
from qkv.values.execution import readable
from qkv.values.parameters import Owner, of_items
from qkv.values.plain_modules import is_watched

TILE = 1 << 20
"""How many weights are computed at a time where dropout needs them."""
_EMPTY = {"softmax": -torch.inf, "hard": -torch.inf, "sparsemax": torch.inf, "entmax": torch.inf}
"""The state of a row that sees no key; 0 for the others."""


@final
@dataclass(frozen=True, eq=False)
class Mechanism:
    """A call without its query, key and value; mask and bias speak of positions in the whole sequence.

    Attributes:
        score, normalizer, mask, bias, dropout, enable_gqa, backend: as `qkv.attention` takes them.
        kind: the name of the normalizer.
        seed: of dropout, the same in every process.
        rounded: whether a log-sum-exp may be rounded to float32, as scores are, where nothing but a merge reads it.
    """

    score: Score
    normalizer: Normalizer
    kind: str
    mask: Mask | None
    bias: Tensor | Bias | None
    dropout: float
    seed: Tensor | None
    enable_gqa: bool
    backend: str
    rounded: bool

    @property
    def positional(self) -> bool:
        """Whether anything depends on positions, so that each run of positions is computed on its own."""
        return self.mask is not None or self.bias is not None or self.dropout > 0 or type(self.normalizer) is Hard

    def pieces(self, layout: Layout, rank: int) -> tuple[tuple[slice, range], ...]:
        """Return each run of a process that is computed on its own, with its place among the rows of the process."""
        if self.positional:
            return layout.pieces(rank)
        count = layout.counts[rank]  # nothing depends on positions: all at once, whatever they are
        return ((slice(0, count), range(count)),) if count else ()

    def learned(self) -> list[tuple[str, str]]:
        """Return where the tensors are that need a gradient: the value, and the name of its parameter."""
        places = []
        for name in ("score", "normalizer", "bias"):
            value = getattr(self, name)
            if isinstance(value, Tensor):
                places += [(name, "")] if value.requires_grad else []
                continue
            for part in getattr(value, "parameters", ()):
                x = getattr(value, part.name)
                places += [(name, part.name)] if isinstance(x, Tensor) and x.requires_grad else []
        return places

    def read(self, place: tuple[str, str]) -> Tensor:
        """Return the tensor at a place."""
        value, name = getattr(self, place[0]), place[1]
        tensor: Tensor = getattr(value, name) if name else value
        return tensor

    def replaced(self, places: Sequence[tuple[str, str]], tensors: Sequence[Tensor]) -> "Mechanism":
        """Return the same mechanism with other tensors at some places."""
        mechanism = self
        for (owner, name), tensor in zip(places, tensors, strict=True):
            value: Any = getattr(mechanism, owner)
            changes: dict[str, Any] = {owner: replace(value, **{name: tensor}) if name else tensor}
            mechanism = replace(mechanism, **changes)
        return mechanism

    def closed_over(self, query: Tensor, key: Tensor) -> list[Tensor]:
        """Return the leaves that a user-defined score or bias closes over and that need a gradient.

        Args:
            query, key: (..., Q, D) and (..., K, E), of which one row is read.
        """
        if not torch.is_grad_enabled():
            return []
        probes = []
        if self.score.core == "tile":
            one, other = (
                x.detach()[..., :1, :] if x.shape[-2] else x.new_zeros(*x.shape[:-2], 1, x.shape[-1])
                for x in (query, key)
            )
            if self.enable_gqa:
                other = other.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
            probes.append(equation(self.score, one, other))
        if isinstance(self.bias, Bias):
            first = torch.zeros(1, dtype=torch.int64, device=query.device)
            probes.append(self.bias.tile(first[:, None], first))
        known = {id(self.read(place)) for place in self.learned()}
        return [leaf for leaf in _leaves(probes) if id(leaf) not in known]


def mechanism_of(arguments: Arguments, device: torch.device, backend: str, also: str | None) -> Mechanism:
    """Return the mechanism of a call, with a seed drawn if there is dropout.

    Args:
        arguments: those of the call besides query, key and value.
        device: of the tensors.
        backend: by name.
        also: what the call returns besides the output; None for nothing.
    """
    bias = arguments.bias
    if isinstance(bias, Owner):
        if is_watched(bias):
            hint = "Remove the hook, or pass a value of qkv.biases."
            raise UnsupportedError("bias", "a bias whose parameters are read", "a module with hooks", hint)
        bias = bias.value()
    score = as_score(arguments.score)
    normalizer = normalizer_for(arguments.normalizer, score)
    score, normalizer = in_log_space(score, normalizer, bias is not None)
    mask = None if arguments.mask is None else as_mask(arguments.mask)
    seed = draw_seed(arguments.dropout, arguments.generator, device)
    gqa, kind = bool(arguments.enable_gqa), kind_of(normalizer)
    return Mechanism(score, normalizer, kind, mask, bias, arguments.dropout, seed, gqa, backend, also is None)


def _leaves(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the leaves on which tensors depend, each once."""
    pending = [x.grad_fn for x in tensors if x.grad_fn is not None]
    visited, leaves = set(pending), []
    for x in tensors:
        if x.grad_fn is None and x.requires_grad:
            leaves.append(x)
    while pending:
        node: Any = pending.pop()
        if hasattr(node, "variable"):
            leaves.append(node.variable)
        new = {parent for parent, _ in node.next_functions if parent is not None} - visited
        visited |= new
        pending += new
    return list({id(leaf): leaf for leaf in leaves}.values())


def row_counts(mechanism: Mechanism, layout: Layout, rank: int, grid: Grid) -> Tensor:
    """Return how many keys each row of this process may see, int64, broadcasts to (..., Q)."""
    counts = []
    for _, run in layout.pieces(rank):
        block = Block(run, range(grid.keys), grid)
        mask = None if mechanism.mask is None else visible_part(mechanism.mask, block)
        if mask is None or isinstance(mask, bool):
            full = 0 if mask is False else grid.keys
            counts.append(torch.full((len(run),), full, device=grid.device))
        else:
            count = lower(mask, block.size, grid.device.type == "cpu").count()
            counts.append(count.expand(*count.shape[:-1], len(run)))
    if not counts:
        return torch.zeros(0, dtype=torch.int64, device=grid.device)
    leading = torch.broadcast_shapes(*[count.shape[:-1] for count in counts])
    return torch.cat([count.expand(*leading, count.shape[-1]) for count in counts], -1)


def with_counted_bias(mechanism: Mechanism, layout: Layout, rank: int, grid: Grid) -> tuple[Mechanism, Tensor | None]:
    """Return a sigmoid with its default bias, −log n, as numbers: n counts the keys of all processes.

    Args:
        mechanism: of any normalizer; only a sigmoid without a bias of its own is changed.
        layout, rank: of the queries.
        grid: the sizes of the whole matrix.

    Returns:
        The mechanism, and what is to be added to the scores of each row, (..., Q); None for nothing.
    """
    if not (type(mechanism.normalizer) is Sigmoid and mechanism.normalizer.bias is None):
        return mechanism, None
    if mechanism.mask is None:
        return replace(mechanism, normalizer=Sigmoid(-log(max(grid.keys, 1)))), None
    counts = row_counts(mechanism, layout, rank, grid)
    return replace(mechanism, normalizer=Sigmoid(0.0)), -counts.clamp(min=1).double().log()


def compute(
    mechanism: Mechanism, query: Tensor, key: Tensor, value: Tensor, block: Block, shift: Tensor | None = None
) -> tuple[Tensor, RowState] | None:
    """Compute a block; None if none of it is visible.

    Args:
        mechanism: the call.
        query, key, value: those of the block.
        block: where it is.
        shift: added to the scores of each row, (..., Q), beside the bias.

    Returns:
        Output and row state of the block.
    """
    mask = None if mechanism.mask is None else visible_part(mechanism.mask, block)
    if mask is False:
        return None
    arguments = arguments_of(mechanism, block, mask, shift)
    rounded = mechanism.rounded and not mechanism.dropout
    output, state = attention_with_state_alone(query, key, value, arguments, mechanism.backend, rounded)
    if mechanism.dropout:
        output = dropped(mechanism, query, key, value, block, shift)
    return output, state


def arguments_of(mechanism: Mechanism, block: Block, mask: Any, shift: Tensor | None = None) -> Arguments:
    """Return the arguments of `qkv.attention` for a block, without dropout."""
    bias = bias_part(mechanism.bias, block)
    if mask is False:
        mask = dense(torch.zeros(1, 1, dtype=torch.bool, device=block.grid.device))
    bias = bias if shift is None else shifted_bias(bias, shift)
    return Arguments(mechanism.score, mechanism.normalizer, mask, bias, 0.0, None, mechanism.enable_gqa)


def compute_whole_rows(mechanism: Mechanism, query: Tensor, key: Tensor, value: Tensor, block: Block) -> Tensor:
    """Compute a block of whole rows, whose normalizer may be any."""
    if mechanism.dropout:
        return dropped(mechanism, query, key, value, block)
    mask = None if mechanism.mask is None else visible_part(mechanism.mask, block)
    return attention_alone(query, key, value, arguments_of(mechanism, block, mask), mechanism.backend)


def dropped(
    mechanism: Mechanism, query: Tensor, key: Tensor, value: Tensor, block: Block, shift: Tensor | None = None
) -> Tensor:
    """Compute a block with the weights dropped that one process drops, whose rows and columns count globally."""
    assert mechanism.seed is not None
    leading = block.size.leading
    step = max(1, TILE // max(1, prod(leading) * len(block.columns)))
    outputs = []
    for rows in _slices(len(block.rows), step):
        part = block._replace(rows=block.rows[rows])
        mask = None if mechanism.mask is None else visible_part(mechanism.mask, part)
        arguments = arguments_of(mechanism, part, mask, None if shift is None else shift[..., rows])
        weights = attention_with_weights_alone(query[..., rows, :], key, value, arguments, mechanism.backend)[1]
        factor = kept_factor(mechanism, part).to(wide_type(weights.dtype))
        seen = _seen(None if arguments.mask is None else as_mask(arguments.mask), part)
        values = value if seen is None else torch.where(seen.unsqueeze(-1), value, value.new_zeros(()))
        if mechanism.enable_gqa:
            values = values.repeat_interleave(leading[-1] // value.shape[-3], -3)
        outputs.append((weights.to(factor.dtype) * factor @ values.to(factor.dtype)).to(query.dtype))
    return torch.cat(outputs, -2) if outputs else query.new_zeros(*leading, 0, value.shape[-1])


def _slices(count: int, step: int) -> Iterator[slice]:
    return (slice(start, min(start + step, count)) for start in range(0, count, step))


def kept_factor(mechanism: Mechanism, block: Block) -> Tensor:
    """Return 0 or 1/(1 − dropout) for each weight of a block."""
    assert mechanism.seed is not None
    device = block.grid.device
    leading, queries = block.grid.leading, block.grid.queries
    items = of_items(torch.arange(prod(leading), device=device).view(*leading, 1), block.items, 1) * queries
    rows, columns = block.places(*(torch.arange(len(x), device=device) for x in (block.rows, block.columns)))
    return keep_mask(mechanism.seed, items + rows, columns, mechanism.dropout).double() / (1 - mechanism.dropout)


def _seen(mask: Mask | None, block: Block) -> Tensor | None:
    """Return which keys of a block any of its rows may see, (..., K); None if all."""
    if mask is None:
        return None
    seen = matrix(mask, len(block.rows), len(block.columns), block.size.leading).any(-2)
    return None if readable(seen) and bool(seen.all()) else seen


def empty_part(mechanism: Mechanism, grid: Grid, rows: int, width: int, dtype: torch.dtype) -> tuple[Tensor, RowState]:
    """Return output and state of rows that see no key."""
    output = torch.zeros(*grid.leading, rows, width, dtype=dtype, device=grid.device)
    state = torch.full((*grid.leading, rows), _EMPTY.get(mechanism.kind, 0.0), dtype=torch.float64, device=grid.device)
    winner = torch.full_like(state, -1, dtype=torch.int64) if mechanism.kind == "hard" else None
    return output, RowState(mechanism.kind, state, winner, grid.keys if winner is not None else None)  # type: ignore[arg-type]


def wide_type(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which parts are merged and gradients are summed: at least float32."""
    return torch.promote_types(dtype, torch.float32)
