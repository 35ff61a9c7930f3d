"""The exact weights of one head at any rows and columns, with cached row states."""

import threading
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from qkv.introspect.lazy_map import AttentionMap
from qkv.view.answers.head import Head
from qkv.view.answers.row_states import softmax_states

SMALL = 1 << 22
"""Maps of at most this many numbers have their row states computed at once."""


@final
class HeadWeights:
    """Weights of one head, or their contributions.

    If the layer has no row states, they are computed for requested rows and cached.

    Args:
        head: the head.
        scale: factor of each key's weights, (K,); None for the weights themselves.
    """

    def __init__(self, head: Head, scale: Tensor | None = None) -> None:
        self.head = head
        self._scale = scale
        self._lock = threading.Lock()
        self._bounds = head.bounds()
        self._map_of_all: AttentionMap | None = None
        queries = head.shape[0]
        self._known = torch.zeros(queries, dtype=torch.bool)
        self._state: Tensor | None = None
        if head.state is not None or queries * head.shape[1] * head.depth <= SMALL:
            self._map_of_all = head.map()

    @property
    def bytes(self) -> int:
        """Maximum memory beyond the layer's tensors: keys with masked ones zeroed, and row states."""
        keys = self.head.key
        return keys.numel() * keys.element_size() + 9 * self.head.shape[0]

    @property
    def ready(self) -> bool:
        """Whether the states of all rows are known."""
        return self._map_of_all is not None

    def sees(self, rows: slice, columns: slice) -> bool:
        """Return whether any of these queries may see any of these keys, as far as the mask is an interval."""
        if self._bounds is None:
            return True
        first, last = (bound if bound is None or len(bound) == 1 else bound[rows] for bound in self._bounds)
        after = first is not None and columns.stop <= int(first.min())
        before = last is not None and columns.start >= int(last.max())
        return not (after or before)

    def tile(self, rows: slice, columns: slice) -> Tensor:
        """Compute adjacent rows: (rows, columns)."""
        if self._map_of_all is not None:
            return self._scaled(self._map_of_all[rows, columns], columns)
        return self.rows(rows)(columns)

    def rows(self, rows: slice | Tensor) -> Callable[[slice], Tensor]:
        """Compute some rows, one tile after another: returns a function of the columns."""
        if self._map_of_all is not None and isinstance(rows, slice):
            return lambda columns: self.tile(rows, columns)
        part = self._map(rows)
        return lambda columns: self._scaled(part[:, columns], columns)

    def _scaled(self, weights: Tensor, columns: slice) -> Tensor:
        return weights if self._scale is None else weights * self._scale[columns].to(weights.dtype)

    def _map(self, part: slice | Tensor) -> AttentionMap:
        rows = torch.arange(*part.indices(self.head.shape[0])) if isinstance(part, slice) else part
        if self.head.kind == "hard":  # its map stores the winners, which must be computed over whole rows
            return self.head.map(rows)
        with self._lock:
            known = self._state[rows] if self._state is not None and bool(self._known[rows].all()) else None
        missing = known is None and self.head.state is None
        if missing and isinstance(part, slice):
            known = softmax_states(self.head, self._bounds, part)
        rows_map = self.head.map(rows, known)
        if missing:
            self._remember(rows, rows_map.state.value)
        return rows_map

    def _remember(self, rows: Tensor, state: Tensor) -> None:
        with self._lock:
            if self._state is None:
                self._state = state.new_zeros(self.head.shape[0])
            self._state[rows] = state
            self._known[rows] = True
