"""Extracting one row of the batch from a recorded call."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from qkv.biases import Bias
from qkv.errors import ShapeError
from qkv.masks.base import as_mask
from qkv.normalizers.base import Normalizer
from qkv.normalizers.row_state import RowState
from qkv.recording.calls import RecordedCall
from qkv.scores.base import Score
from qkv.shapes import Shape, show
from qkv.values.parameters import item, pick


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
    operands = call.query, call.key, call.value
    rank = max(tensor.ndim for tensor in operands) - 2
    if rank not in (1, 2):
        got = show(tuple(call.query.shape))
        raise ShapeError("query", "(B, H, Q, D) or (B, Q, D)", got, "Record a model that processes batches.")
    batch = max(tensor.shape[0] for tensor in (call.query, call.key))
    leading = (batch, call.query.shape[-3])[:rank]
    tensors = [pick(tensor.detach(), row, rank + 2) for tensor in operands]
    query, key, value = (tensor if rank == 2 else tensor.unsqueeze(0) for tensor in tensors)
    options = {name: _option(name, option, row, leading) for name, option in call.options.items()}
    state = None if call.state is None else call.state.map(lambda x: x[row].reshape(query.shape[:2]))
    return CallItem(query, key, value, options, state)


def _option(name: str, option: Any, row: int, leading: Shape) -> Any:
    if name == "mask":
        return as_mask(option).item(row, leading)
    if isinstance(option, Bias):
        return option.item(row, leading)
    if isinstance(option, Score | Normalizer):
        return item(option, option.parameters, row, leading)
    return pick(option.detach(), row, len(leading) + 2) if isinstance(option, Tensor) else option
