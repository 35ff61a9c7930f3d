"""The exact weights of one head at any rows and columns, with cached row states."""

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import final

import torch
from torch import Tensor

from qkv.functional import attention_with_state
from qkv.introspect.lazy_map import AttentionMap
from qkv.masks.base import Bounds
from qkv.normalizers.dense import Softmax
from qkv.view.answers.head import Head

SMALL = 1 << 22
"""Maps of at most this many numbers have the row states of all rows computed together."""
_MASKED = 1 << 22
"""The most pairs for which a mask is written out."""


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
        self._has_state = torch.zeros(queries, dtype=torch.bool, device="cpu")
        self._state: Tensor | None = None
        if head.state is not None or queries * head.shape[1] * head.depth <= SMALL:
            self._map_of_all = head.map()

    @property
    def depth(self) -> int:
        """How many numbers a pair takes while its weight is computed."""
        return self.head.depth

    @property
    def bytes(self) -> int:
        """Maximum memory beyond the layer's tensors: keys with masked ones zeroed, and row states."""
        keys = self.head.key
        return keys.numel() * keys.element_size() + 9 * self.head.shape[0]

    @property
    def ready(self) -> bool:
        """Whether the states of all rows are known."""
        return self._map_of_all is not None

    def any_visible(self, rows: slice, columns: slice) -> bool:
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
        rows = torch.arange(*part.indices(self.head.shape[0]), device="cpu") if isinstance(part, slice) else part
        if self.head.kind == "hard":  # its map stores the winners, which must be computed over whole rows
            return self.head.map(rows)
        with self._lock:
            states = self._state[rows] if self._state is not None and bool(self._has_state[rows].all()) else None
        missing = states is None and self.head.state is None and self._map_of_all is None
        if missing and isinstance(part, slice):
            states = softmax_states(self.head, self._bounds, part)
        rows_map = self.head.map(rows, states)
        if missing:
            self._cache_states(rows, rows_map.state.value)
        return rows_map

    def _cache_states(self, rows: Tensor, state: Tensor) -> None:
        with self._lock:
            if self._state is None:
                self._state = state.new_zeros(self.head.shape[0])
            self._state[rows] = state
            self._has_state[rows] = True


@final
class MeanWeights:
    """The mean over the heads of a layer, of weights or of contributions, as `HeadWeights` gives those of one head.

    Args:
        heads: those of all heads.
    """

    def __init__(self, heads: Sequence[HeadWeights]) -> None:
        self._heads = heads
        self.head = heads[0].head

    @property
    def depth(self) -> int:
        """As for one head."""
        return self.head.depth

    @property
    def bytes(self) -> int:
        """Maximum memory beyond the layer's tensors."""
        return sum(weights.bytes for weights in self._heads)

    @property
    def ready(self) -> bool:
        """Whether the states of all rows are known."""
        return all(weights.ready for weights in self._heads)

    def any_visible(self, rows: slice, columns: slice) -> bool:
        """Return whether any of these queries may see any of these keys, in any head."""
        return any(weights.any_visible(rows, columns) for weights in self._heads)

    def tile(self, rows: slice, columns: slice) -> Tensor:
        """Compute adjacent rows: (rows, columns)."""
        return _mean(weights.tile(rows, columns) for weights in self._heads)

    def rows(self, rows: slice | Tensor) -> Callable[[slice], Tensor]:
        """Compute some rows, one tile after another: returns a function of the columns."""
        parts = [weights.rows(rows) for weights in self._heads]
        return lambda columns: _mean(part(columns) for part in parts)


@final
class GivenWeights:
    """A matrix that is known, as `HeadWeights` gives the weights of a head.

    Args:
        matrix: (Q, K).
        head: a head of the same size.
    """

    depth = 1
    ready = True

    def __init__(self, matrix: Tensor, head: Head) -> None:
        self._matrix, self.head = matrix, head

    @property
    def bytes(self) -> int:
        """The memory of the matrix."""
        return self._matrix.nbytes

    def any_visible(self, rows: slice, columns: slice) -> bool:
        """Return True: what a mask hides does not matter here."""
        return True

    def tile(self, rows: slice, columns: slice) -> Tensor:
        """Return adjacent rows: (rows, columns)."""
        return self._matrix[rows, columns]

    def rows(self, rows: slice | Tensor) -> Callable[[slice], Tensor]:
        """Return some rows: a function of the columns."""
        return lambda columns: self._matrix[rows][:, columns]


def _mean(tiles: Iterable[Tensor]) -> Tensor:
    """Return the mean of tiles of one shape, of which two exist at a time."""
    count, total = 0, None
    for tile in tiles:
        count, total = count + 1, tile if total is None else total + tile
    assert total is not None
    return total / count


def softmax_states(head: Head, bounds: Bounds | None, rows: slice) -> Tensor | None:
    """Return log Σ e^s of adjacent rows of softmax weights; None where this takes no less time than one pass.

    First over the keys that all of them see, without a mask, then over the others. A tile of a coarse level needs the
    states of a thousand rows, each over all of its keys. Without a mask PyTorch's fused kernel serves, in a third to a
    fifth of the time that a causal mask with an offset takes.

    Args:
        head: the head.
        bounds: the keys each query may see, as `head.bounds()` returns them.
        rows: the rows, from start to stop.

    Example:
        >>> import torch, qkv
        >>> from qkv.view.answers.head import head_of
        >>> from qkv.view.scene import Layer
        >>> x = torch.zeros(1, 8, 4)
        >>> head = head_of(Layer("one", "self", "text", "text", x, x, x, options={"mask": qkv.masks.causal()}), 0)
        >>> softmax_states(head, head.bounds(), slice(6, 8)).exp().round()
        tensor([7., 8.], dtype=torch.float64)
    """
    simple = isinstance(head.normalizer, Softmax) and head.normalizer.sink is None and head.bias is None
    if not simple or bounds is None or head.query.device.type != "cpu":
        return None
    first, last = _visible_range(bounds, rows, head.shape)
    if not first.numel():
        return None
    common = slice(int(first.max()), int(last.min()))
    sides = slice(int(first.min()), common.start), slice(common.stop, int(last.max()))
    remainder = sum(side.stop - side.start for side in sides)
    if common.stop - common.start < remainder or first.numel() * remainder > _MASKED:
        return None
    total = _lse(head, rows, common, None)
    for side in sides:
        if side.start < side.stop:
            at = torch.arange(side.start, side.stop, device=first.device)
            visible = (at >= first[:, None]) & (at < last[:, None])
            total = torch.logaddexp(total, _lse(head, rows, side, visible))
    return total


def _visible_range(bounds: Bounds, rows: slice, shape: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return the first visible key of each row, and the one after the last."""
    hidden = torch.zeros(shape[0], dtype=torch.int64, device="cpu")
    first = hidden if bounds.first is None else bounds.first
    last = hidden + shape[1] if bounds.last is None else bounds.last
    return first.expand(shape[0])[rows].clamp(min=0), last.expand(shape[0])[rows].clamp(max=shape[1])


def _lse(head: Head, rows: slice, keys: slice, visible: Tensor | None) -> Tensor:
    # The keys are the values: with equal widths nothing must be padded.
    key = head.key[keys]
    state = attention_with_state(head.query[rows], key, key, score=head.score, normalizer=Softmax(), mask=visible)[1]
    return state.value
