"""The lazy map: the weights as a matrix of which only what is looked at is ever computed."""

from collections.abc import Sequence
from math import prod
from types import EllipsisType
from typing import final

import torch
from torch import Tensor

from qkv.backends.registry import BACKENDS
from qkv.biases import Bias
from qkv.bind import Arguments, Bound, bind
from qkv.errors import ShapeError, UnsupportedError, complaint
from qkv.introspect.tiles import tile
from qkv.masks.base import Mask
from qkv.normalizers.base import Normalizer
from qkv.planner import choose
from qkv.positions import DIGITS, read, spell
from qkv.scores.base import Score
from qkv.scores.products import ScaledDot
from qkv.shapes import Shape, show
from qkv.states import RowState

DENSE_LIMIT = 1 << 26
"""The most weights that `dense()` makes without being told to: 256 MiB of float32."""

_SCALED_DOT = ScaledDot()
Index = int | slice


@final
class AttentionMap:
    """A lazy (..., Q, K) matrix of weights, made by `attention_map`.

    `amap[..., 10:20, 0:64]` is an exact tile; the last two places index queries and keys, those before the leading
    dimensions. Memory grows with what is asked for, never with Q·K.

    Attributes:
        shape: (..., Q, K).
    """

    def __init__(self, bound: Bound, state: Tensor) -> None:
        self._call = bound.call
        self._kind = bound.problem.normalizer
        self._state = state
        self._inner = bound.problem.leading
        self.shape: Shape = (*bound.leading, bound.problem.queries, bound.problem.keys)

    def __repr__(self) -> str:
        return f"AttentionMap{show(self.shape)}"

    @property
    def state(self) -> RowState:
        """The row state of all rows, as `attention_with_state` returns it.

        Raises:
            UnsupportedError: the normalizer is `Hard`, whose map keeps the winning key of each row instead.
        """
        if self._kind == "hard":
            mend = "attention_with_state gives the largest score of each row."
            raise UnsupportedError(complaint("state", "a normalizer other than Hard", "Hard", mend))
        return RowState(self._kind, self._state.reshape(self.shape[:-1]))  # type: ignore[arg-type]

    def __getitem__(self, index: "Index | EllipsisType | tuple[Index | EllipsisType, ...]") -> Tensor:
        """An exact part of the matrix; integers drop a dimension, slices keep it (steps are not taken here)."""
        places = self._places(index if isinstance(index, tuple) else (index,))
        rows, columns = (_as_slice(place, size) for place, size in zip(places[-2:], self.shape[-2:], strict=True))
        weights = tile(self._call, self._kind, self._state, rows, columns)
        weights = weights.expand(*self._inner, *weights.shape[-2:]).reshape(*self.shape[:-2], *weights.shape[-2:])
        taken = (*places[:-2], *(0 if isinstance(place, int) else slice(None) for place in places[-2:]))
        return weights[taken]

    def row(self, query: int) -> Tensor:
        """What one query attends to.

        Args:
            query: its position; negative counts from the end.

        Returns:
            (..., K).
        """
        return self[..., query, :]

    def column(self, key: int) -> Tensor:
        """Who attends to one key.

        Args:
            key: its position; negative counts from the end.

        Returns:
            (..., Q).
        """
        return self[..., :, key]

    def dense(self, limit: int | None = DENSE_LIMIT) -> Tensor:
        """The whole matrix.

        Args:
            limit: the most weights to make; None for any number.

        Returns:
            (..., Q, K).

        Raises:
            UnsupportedError: there would be more.
        """
        size = prod(self.shape)
        if limit is not None and size > limit:
            mend = "Look at tiles, or pass limit=None if there is memory for all of it."
            raise UnsupportedError(complaint("dense(limit)", f"at most {limit:,} weights", f"{size:,}", mend))
        return self[..., :, :]

    def _places(self, index: Sequence[Index | EllipsisType]) -> list[Index]:
        """One place for each dimension; what is not named is taken whole."""
        gap = next((at for at, place in enumerate(index) if place is Ellipsis), len(index))
        before = [place for place in index[:gap] if not isinstance(place, EllipsisType)]
        after = [place for place in index[gap + 1 :] if not isinstance(place, EllipsisType)]
        missing = len(self.shape) - len(before) - len(after)
        good = missing >= 0 and all(_fits(place) for place in (*before, *after))
        if not good or len(before) + len(after) + (gap < len(index)) != len(index):
            mend = "Example: amap[0, 3, 10:20, 0:64] or amap[..., 10:20, 0:64]."
            raise ShapeError(complaint("index", f"integers and plain slices of {show(self.shape)}", str(index), mend))
        return [*before, *[slice(None)] * missing, *after]


def _fits(place: object) -> bool:
    return isinstance(place, int) or (isinstance(place, slice) and place.step in (None, 1))


def _as_slice(place: Index, size: int) -> slice:
    if isinstance(place, slice):
        return place
    at = place + size if place < 0 else place
    if not 0 <= at < size:
        raise IndexError(f"index {place} is out of range for {size} positions")
    return slice(at, at + 1)


def attention_map(
    query: Tensor,
    key: Tensor,
    *,
    score: Score = _SCALED_DOT,
    normalizer: Normalizer | None = None,
    mask: Mask | Tensor | None = None,
    bias: Tensor | Bias | None = None,
    enable_gqa: bool = False,
    state: RowState | None = None,
) -> AttentionMap:
    """The weights of attention as a lazy matrix: any tile is exact, at any length, with the fast kernels left on.

    Args:
        query: (..., Q, D).
        key: (..., K, E).
        score, normalizer, mask, bias, enable_gqa: as `qkv.attention`.
        state: of a forward pass over the same queries and keys; None to compute it (one pass, linear memory).

    Returns:
        The map.

    Raises:
        QkvError: as `qkv.attention`; ShapeError too where the state is not of these rows.

    Example:
        >>> import qkv
        >>> query, key = torch.randn(2, 1, 100_000, 16).unbind()
        >>> amap = qkv.attention_map(query[:, :5], key)
        >>> amap.shape, amap[0, 2:4, 50_000:50_003].shape, round(float(amap.row(0).sum()), 3)
        ((1, 5, 100000), torch.Size([2, 3]), 1.0)
    """
    given = Arguments(score, normalizer, mask, bias, 0.0, None, enable_gqa)
    places = _positions(key)
    bound = bind(query, key, places, given, state=True)
    hard = bound.problem.normalizer == "hard"
    if state is None or hard:
        result = BACKENDS[choose(bound.problem)].run(bound.problem, bound.call)
        assert result.state is not None
        return AttentionMap(bound, _winners(result.output) if hard else result.state)
    whole = (*bound.leading, bound.problem.queries)
    if state.kind != bound.problem.normalizer or tuple(state.value.shape) != whole:
        got = f"{state.kind} {show(tuple(state.value.shape))}"
        mend = "Pass the state that attention_with_state returned for this query, key and normalizer."
        raise ShapeError(complaint("state", f"{bound.problem.normalizer} {show(whole)}", got, mend))
    return AttentionMap(bound, state.value.reshape(*bound.problem.leading, bound.problem.queries))


def _positions(key: Tensor) -> Tensor:
    """Values that spell each key's position, and a 1 that tells whether a row saw any, (..., K, 5)."""
    return torch.cat([spell(key), key.new_ones(1).expand(*key.shape[:-1], 1)], -1)


def _winners(digits: Tensor) -> Tensor:
    """The winning key of each row, −1 where a row sees nothing, NaN where its scores are."""
    return read(digits[..., :DIGITS].nan_to_num()) + digits[..., DIGITS].double() - 1
