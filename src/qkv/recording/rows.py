"""Extracting one row of the batch from a recorded call."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, TypeVar, final

from torch import Tensor

from qkv.biases import Bias
from qkv.errors import ShapeError
from qkv.masks.base import Both, Dense, Either, Grid, Inverse, Mask, as_mask
from qkv.masks.patterns import Causal, Documents, Lengths, Span, Window
from qkv.normalizers.base import Normalizer
from qkv.normalizers.row_state import RowState
from qkv.recording.calls import RecordedCall
from qkv.scores.base import Score
from qkv.shapes import show

_PER_ITEM = (Causal, Lengths, Span, Window, Documents)
Owner = TypeVar("Owner", bound=Score | Normalizer | Bias)


@final
@dataclass(frozen=True, eq=False)
class _OfItem(Mask):
    """One item of a user-defined mask over a batch."""

    mask: Mask
    row: int
    batch: int
    rank: int

    def visible(self, grid: Grid, rows_Q1: Tensor, columns_K: Tensor) -> Tensor:
        """Return the item's part of the whole."""
        leading = (self.batch, *grid.leading)[: self.rank]
        seen = self.mask.visible(grid._replace(leading=leading), rows_Q1, columns_K)
        return _item(seen, self.row, self.rank + 2)


class CallItem(NamedTuple):
    """One item of a call: (H, Q, D), (G, K, E), (G, K, V), its options, and its row state (H, Q)."""

    query: Tensor
    key: Tensor
    value: Tensor
    options: Mapping[str, Any]
    state: RowState | None


def item_of(call: RecordedCall, row: int) -> CallItem:
    """Extract one row of a call's batch; a call without heads gets one head.

    Args:
        call: with query (B, H, Q, D), or (B, Q, D).
        row: its index in the call's batch.

    Returns:
        The item.

    Raises:
        ShapeError: the call has more dimensions, or no batch dimension.
    """
    rank = max(tensor.ndim for tensor in (call.query, call.key, call.value)) - 2
    if rank not in (1, 2):
        got = show(tuple(call.query.shape))
        raise ShapeError("query", "(B, H, Q, D) or (B, Q, D)", got, "Record a model that processes batches.")
    batch = max(tensor.shape[0] for tensor in (call.query, call.key))
    tensors = [_item(tensor, row, rank + 2) for tensor in (call.query, call.key, call.value)]
    query, key, value = (tensor if rank == 2 else tensor.unsqueeze(0) for tensor in tensors)
    options = {name: _option(name, option, row, rank, batch) for name, option in call.options.items()}
    kept = None if call.state is None else call.state.map(lambda x: x[row].reshape(query.shape[:2]))
    return CallItem(query, key, value, options, kept)


def _option(name: str, option: Any, row: int, rank: int, batch: int) -> Any:
    if name == "mask":
        return _mask(as_mask(option), row, rank, batch)
    if isinstance(option, Score | Normalizer | Bias):
        return _owner(option, row, rank)
    return _item(option, row, rank + 2) if isinstance(option, Tensor) else option


def _item(tensor: Tensor, row: int, rank: int) -> Tensor:
    """Extract the item of a tensor that has a batch dimension; dimensions align from the right."""
    return tensor.detach() if tensor.ndim < rank else tensor.detach()[0 if tensor.shape[0] == 1 else row]


def _owner(owner: Owner, row: int, rank: int) -> Owner:
    found = {name: (getattr(owner, name), own) for name, own, _ in owner.parameters}
    changes = {
        name: _item(parameter, row, rank + own)
        for name, (parameter, own) in found.items()
        if isinstance(parameter, Tensor)
    }
    return replace(owner, **changes) if changes else owner  # type: ignore[type-var]


def _mask(mask: Mask, row: int, rank: int, batch: int) -> Mask:
    match mask:
        case Both(left, right) | Either(left, right):
            return type(mask)(_mask(left, row, rank, batch), _mask(right, row, rank, batch))
        case Inverse(inner):
            return Inverse(_mask(inner, row, rank, batch))
        case Dense(tensor):
            return Dense(_item(tensor, row, rank + 2))
        case _ if not isinstance(mask, _PER_ITEM):
            return _OfItem(mask, row, batch, rank)
    own = 1 if isinstance(mask, Documents) else 0
    given = {part.name: getattr(mask, part.name) for part in fields(mask)}
    changes: dict[str, Any] = {
        name: tensor[0 if tensor.shape[0] == 1 else row]
        for name, tensor in given.items()
        if isinstance(tensor, Tensor) and tensor.ndim > own
    }
    return replace(mask, **changes) if changes else mask
