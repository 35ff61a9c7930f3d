"""What a mask is: a value that says which keys a query may see, and how masks combine.

`True` means *may attend*, as in `torch.nn.functional.scaled_dot_product_attention` (and unlike
`torch.nn.MultiheadAttention`).
"""

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.errors import MaskError
from qkv.shapes import Shape
from qkv.values.parameters import pick
from qkv.values.pytree import value


class Grid(NamedTuple):
    """The sizes (..., Q, K) of the whole matrix that a mask applies to."""

    leading: Shape
    queries: int
    keys: int
    device: torch.device

    @classmethod
    def of(cls, query: Tensor, key: Tensor) -> "Grid":
        """Return the grid of all query–key pairs; its leading dimensions are those of the query (..., Q, D)."""
        return cls(tuple(query.shape[:-2]), query.shape[-2], key.shape[-2], query.device)


class Bounds(NamedTuple):
    """Query i sees the keys first[i] ≤ j < last[i].

    Both are int32 tensors that broadcast to (..., Q); None means 0 and K, respectively.
    """

    first: Tensor | None
    last: Tensor | None


class Mask(ABC):
    """Which keys a query may see; combine masks with `&`, `|` and `~`.

    Attributes:
        name: the mask in a few words, for people.
    """

    name: str = "a pattern"

    @abstractmethod
    def visible(self, grid: Grid, rows_Q1: Tensor, columns_K: Tensor) -> Tensor:
        """Whether query i may see key j.

        Args:
            grid: the sizes of the whole problem.
            rows_Q1: positions of the queries, int64, shape (Q, 1).
            columns_K: positions of the keys, int64, shape (K,).

        Returns:
            A bool tensor that broadcasts to (..., Q, K).
        """

    def bounds(self, grid: Grid) -> Bounds | None:
        """Return the mask as an interval of keys per query, or None if it is not one."""
        return None

    def read(self, grid: Grid) -> tuple[Bounds, int] | None:
        """Check the mask's numbers where they may be read; return its bounds and the fewest keys that a query sees.

        None for a mask whose bounds differ between queries.
        """
        return None

    def reach(self, grid: Grid, rows: slice) -> tuple[int, int]:
        """Return the first key that any of some rows may see, and one past the last, as far as plain numbers tell.

        Tensors are not read, so that nothing waits for a GPU: a mask that depends on them reaches every key.
        """
        return 0, grid.keys

    def inside(self, grid: Grid) -> "Iterable[tuple[Mask, Grid]]":
        """Return the masks that it consists of, each with the sizes of the matrix that it applies to.

        Their tensors are checked against these sizes. A user-defined mask consists of nothing unless it says so here:
        what its attributes mean is known to it alone.
        """
        return ()

    def item(self, index: int, leading: Shape) -> "Mask":
        """Return the mask of one index of the first leading dimension: one item of a batch, or one head.

        Args:
            index: of the first leading dimension.
            leading: the leading shape that this mask applies to.

        Returns:
            A mask for the leading shape without its first dimension.
        """
        return MaskItem(self, index, leading, self.name)

    def shifted(self, by: int) -> "Mask":
        """Return the mask for the same keys after others, which this mask does not know.

        Args:
            by: how many keys come before. For these the result means nothing: combine it with `span(by)`.
        """
        return _Shifted(self, by, self.name)

    def __and__(self, other: "Mask | Tensor") -> "Mask":
        return Both(self, as_mask(other))

    def __or__(self, other: "Mask | Tensor") -> "Mask":
        return Either(self, as_mask(other))

    __rand__ = __and__
    __ror__ = __or__

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Combine a tensor with a mask: PyTorch asks here for `tensor & mask`, its compiler for `mask & tensor` too."""
        for combined, operators in _COMBINED:
            if func in operators:
                return combined(*map(as_mask, args))
        return NotImplemented

    def __invert__(self) -> "Mask":
        return self.inner if isinstance(self, Inverse) else Inverse(self)


@final
@dataclass(frozen=True, eq=False)
class MaskItem(Mask):
    """One index of the first leading dimension of a mask that can only be evaluated for all indices."""

    inner: Mask
    index: int
    leading: Shape
    name: str

    def visible(self, grid: Grid, rows_Q1: Tensor, columns_K: Tensor) -> Tensor:
        """Evaluate the whole mask for all indices."""
        visible = self.inner.visible(self._grid(grid), rows_Q1, columns_K)
        return pick(visible, self.index, len(self.leading) + 2)

    def bounds(self, grid: Grid) -> Bounds | None:
        """Return the intervals of this index."""
        bounds = self.inner.bounds(self._grid(grid))
        rank = len(self.leading) + 1
        return None if bounds is None else Bounds(*(None if x is None else pick(x, self.index, rank) for x in bounds))

    def inside(self, grid: Grid) -> "Iterable[tuple[Mask, Grid]]":
        """Return the whole mask, which applies to all indices."""
        return ((self.inner, self._grid(grid)),)

    def _grid(self, grid: Grid) -> Grid:
        return grid._replace(leading=self.leading)


@final
@dataclass(frozen=True, eq=False)
class MaskRows(Mask):
    """The mask of some queries.

    Args:
        inner: the mask of all queries.
        positions: those of the queries, int64, in any order.
        queries: how many queries the whole mask has.

    Example:
        >>> from qkv.masks.lower import matrix
        >>> from qkv.masks.patterns import causal
        >>> matrix(MaskRows(causal(), torch.tensor([2, 0]), 3), 2, 3).int()
        tensor([[1, 1, 1],
                [1, 0, 0]], dtype=torch.int32)
    """

    inner: Mask
    positions: Tensor
    queries: int

    def visible(self, grid: Grid, rows_Q1: Tensor, columns_K: Tensor) -> Tensor:
        """Evaluate the whole mask at the positions of the queries."""
        return self.inner.visible(self._grid(grid), self.positions[rows_Q1[:, 0]][:, None], columns_K)

    def bounds(self, grid: Grid) -> Bounds | None:
        """Return the intervals of these queries."""
        bounds = self.inner.bounds(self._grid(grid))
        return None if bounds is None else Bounds(*map(self._bound, bounds))

    def inside(self, grid: Grid) -> "Iterable[tuple[Mask, Grid]]":
        """Return the whole mask, which applies to all queries."""
        return ((self.inner, self._grid(grid)),)

    def _bound(self, bound: Tensor | None) -> Tensor | None:
        return bound if bound is None or bound.shape[-1] == 1 else bound[..., self.positions]

    def _grid(self, grid: Grid) -> Grid:
        return grid._replace(queries=self.queries)


@final
@dataclass(frozen=True, eq=False)
class _Shifted(Mask):
    """A mask whose keys come after others."""

    inner: Mask
    by: int
    name: str

    def visible(self, grid: Grid, rows_Q1: Tensor, columns_K: Tensor) -> Tensor:
        """Evaluate the whole mask at the positions of the keys among themselves."""
        if grid.keys <= self.by:
            return torch.zeros(1, 1, dtype=torch.bool, device=grid.device)
        return self.inner.visible(self._grid(grid), rows_Q1, (columns_K - self.by).clamp(min=0))

    def inside(self, grid: Grid) -> "Iterable[tuple[Mask, Grid]]":
        """Return the whole mask, which applies to fewer keys."""
        return ((self.inner, self._grid(grid)),)

    def _grid(self, grid: Grid) -> Grid:
        return grid._replace(keys=grid.keys - self.by)


def as_mask(mask: object) -> Mask:
    """Accept a mask or a bool tensor.

    Raises:
        MaskError: a float tensor (which would be a bias), or anything else.

    Example:
        >>> as_mask(torch.ones(2, 3, dtype=torch.bool)).tensor.shape
        torch.Size([2, 3])
    """
    if isinstance(mask, Mask):
        return mask
    if isinstance(mask, Tensor) and mask.dtype == torch.bool:
        return Dense(mask)
    if isinstance(mask, Tensor):
        hint = (
            "Numbers that are added to the scores are a bias: pass bias=."
            if mask.is_floating_point()
            else "Compare first, for example mask=(tensor != 0); True means may attend."
        )
        raise MaskError("mask", "a bool tensor (True: may attend)", f"dtype {mask.dtype}", hint)
    raise MaskError(
        "mask", "a bool tensor or a value of qkv.masks", f"{type(mask).__name__}", "Example: qkv.masks.causal()."
    )


@final
@value
@dataclass(frozen=True, eq=False)
class Dense(Mask):
    """Any pattern, as a bool tensor that broadcasts to (..., Q, K)."""

    tensor: Tensor

    def visible(self, grid: Grid, rows_Q1: Tensor, columns_K: Tensor) -> Tensor:
        """Read the requested entries."""
        table = self.tensor if self.tensor.ndim >= 2 else self.tensor.reshape(1, -1)
        if table.shape[-2] != 1:
            table = table.index_select(-2, rows_Q1[:, 0])
        return table if table.shape[-1] == 1 else table.index_select(-1, columns_K)

    def item(self, index: int, leading: Shape) -> "Dense":
        """Return one entry of the table."""
        return Dense(pick(self.tensor, index, len(leading) + 2))

    def shifted(self, by: int) -> "Dense":
        """Put columns before those of the table."""
        return self if self.tensor.shape[-1] == 1 else Dense(F.pad(self.tensor, (by, 0)))


@final
@value
@dataclass(frozen=True, eq=False)
class Both(Mask):
    """The intersection of two masks."""

    left: Mask
    right: Mask

    def visible(self, grid: Grid, rows_Q1: Tensor, columns_K: Tensor) -> Tensor:
        """Return whether both allow the pair."""
        return self.left.visible(grid, rows_Q1, columns_K) & self.right.visible(grid, rows_Q1, columns_K)

    def inside(self, grid: Grid) -> "Iterable[tuple[Mask, Grid]]":
        """Return the two masks."""
        return (self.left, grid), (self.right, grid)

    @property
    def name(self) -> str:  # type: ignore[override]
        """Both names."""
        return f"{self.left.name} and {self.right.name}"

    def item(self, index: int, leading: Shape) -> "Both":
        """Return the item of both masks."""
        return Both(self.left.item(index, leading), self.right.item(index, leading))

    def shifted(self, by: int) -> "Both":
        """Shift both masks."""
        return Both(self.left.shifted(by), self.right.shifted(by))

    def bounds(self, grid: Grid) -> Bounds | None:
        """Return the intersection of two intervals."""
        left, right = self.left.bounds(grid), self.right.bounds(grid)
        if left is None or right is None:
            return None
        return Bounds(_meet(torch.maximum, left.first, right.first), _meet(torch.minimum, left.last, right.last))

    def reach(self, grid: Grid, rows: slice) -> tuple[int, int]:
        """Return the intersection of what both reach."""
        left, right = self.left.reach(grid, rows), self.right.reach(grid, rows)
        return max(left[0], right[0]), min(left[1], right[1])


def _meet(choose: Callable[[Tensor, Tensor], Tensor], one: Tensor | None, other: Tensor | None) -> Tensor | None:
    if one is None or other is None:
        return one if other is None else other
    return choose(one, other)


@final
@value
@dataclass(frozen=True, eq=False)
class Either(Mask):
    """The union of two masks."""

    left: Mask
    right: Mask

    def visible(self, grid: Grid, rows_Q1: Tensor, columns_K: Tensor) -> Tensor:
        """Return whether one of the two allows the pair."""
        return self.left.visible(grid, rows_Q1, columns_K) | self.right.visible(grid, rows_Q1, columns_K)

    def inside(self, grid: Grid) -> "Iterable[tuple[Mask, Grid]]":
        """Return the two masks."""
        return (self.left, grid), (self.right, grid)

    @property
    def name(self) -> str:  # type: ignore[override]
        """Both names."""
        return f"{self.left.name} or {self.right.name}"

    def item(self, index: int, leading: Shape) -> "Either":
        """Return the item of both masks."""
        return Either(self.left.item(index, leading), self.right.item(index, leading))

    def shifted(self, by: int) -> "Either":
        """Shift both masks."""
        return Either(self.left.shifted(by), self.right.shifted(by))


_COMBINED: tuple[tuple[Any, tuple[Any, ...]], ...] = (
    (Both, (Tensor.__and__, Tensor.__rand__, Tensor.__iand__, operator.and_, Tensor.bitwise_and)),
    (Either, (Tensor.__or__, Tensor.__ror__, Tensor.__ior__, operator.or_, Tensor.bitwise_or)),
)
"""What combines a tensor and a mask, and the operators that do."""


@final
@value
@dataclass(frozen=True, eq=False)
class Inverse(Mask):
    """The complement of a mask."""

    inner: Mask

    def visible(self, grid: Grid, rows_Q1: Tensor, columns_K: Tensor) -> Tensor:
        """Return whether the mask forbids the pair."""
        return ~self.inner.visible(grid, rows_Q1, columns_K)

    def inside(self, grid: Grid) -> "Iterable[tuple[Mask, Grid]]":
        """Return the mask."""
        return ((self.inner, grid),)

    @property
    def name(self) -> str:  # type: ignore[override]
        """What it is the complement of."""
        return f"not {self.inner.name}"

    def item(self, index: int, leading: Shape) -> "Inverse":
        """Return the complement of the item."""
        return Inverse(self.inner.item(index, leading))

    def shifted(self, by: int) -> "Inverse":
        """Shift the mask."""
        return Inverse(self.inner.shifted(by))
