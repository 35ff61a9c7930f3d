"""Lowered masks, the form that backends receive: bounds if each row is an interval, else a bool matrix or tiles."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import reduce
from math import prod
from typing import Literal, final

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from qkv.errors import MaskError
from qkv.masks.base import Both, Bounds, Dense, Grid, Mask, as_mask
from qkv.masks.patterns import is_plain_causal
from qkv.shapes import Shape, broadcasts_to, show
from qkv.values.execution import has_plain_memory, sizes_vary
from qkv.values.parameters import regroup
from qkv.values.pytree import tensors_in

Kind = Literal["all", "causal", "keys", "bounds", "dense", "predicate"]


STRIPE = 1 << 21
"""How many pairs of a mask are evaluated at a time."""
BLOCK_ROWS = 8
"""How many rows the kernel for short sequences computes at a time, over the keys that any of them sees."""
MEMO_LIMIT = 1 << 16
"""The most numbers of a tensor that a call keeps for its later steps."""


@final
@dataclass(eq=False, slots=True)
class Visibility:
    """A lowered mask.

    Attributes:
        kind: `all`; `causal` (exactly j ≤ i); `keys` (the same bounds for every query); `bounds`; `dense` (a matrix
            given by the caller, optionally with bounds); `predicate` (evaluated tile by tile).
        grid: the sizes.
        bounds: per row (for keys: one for all rows), for the kinds causal, keys and bounds. Optional for dense, where a
            row sees what both bounds and matrix allow, and for predicate, where they only repeat a part of the mask.
        dense: bool, broadcasts to (..., Q, K), for the kind dense.
        mask: the mask itself, for the kind predicate.
        groups: (G, H/G) if the head dimension of results is split like this; `grid` keeps H.
        readable: whether the numbers of its tensors may be read, which takes no time on the CPU outside of tracing.
        fewest: the least number of keys that a row sees; None if it is not known.
        source: the mask that was lowered, whose numbers say what it reaches where tensors are not read.
        block: the most keys that `BLOCK_ROWS` rows in the middle see, by the mask's own numbers; None if those do not
            tell, or tell that they may see all.
        memo: tensors that follow from the mask, which several steps of this one call read: made once.
    """

    kind: Kind
    grid: Grid
    bounds: Bounds | None = None
    dense: Tensor | None = None
    mask: Mask | None = None
    groups: tuple[int, int] | None = None
    readable: bool = False
    fewest: int | None = None
    source: Mask | None = None
    block: int | None = None
    memo: dict[str, Tensor | None] = field(default_factory=dict, repr=False)

    @property
    def _bounds_are_all(self) -> bool:
        """True if the bounds alone say what is visible."""
        return self.dense is None and self.mask is None

    def _once(self, name: str, make: Callable[[], Tensor | None]) -> Tensor | None:
        """Return a tensor that follows from the mask; it is made by the first step of the call that needs it."""
        if name in self.memo:
            return self.memo[name]
        made = make()
        # A graph that is recorded for backward holds the memo too, and large tensors would outlive the call.
        if self.readable and (made is None or made.numel() <= MEMO_LIMIT):
            self.memo[name] = made
        return made

    def group(self, groups: int, repeats: int) -> "Visibility":
        """Return the same mask for query heads arranged as (groups, repeats)."""
        pair = (groups, repeats)
        bounds = None if self.bounds is None else Bounds(*(_regrouped(x, 1, pair) for x in self.bounds))
        return replace(self, bounds=bounds, dense=_regrouped(self.dense, 2, pair), groups=pair, memo={})

    def reach(self, rows: slice) -> tuple[int, int]:
        """Return the first key that some rows may see at most, and one past the last, without reading a tensor."""
        return (0, self.grid.keys) if self.source is None else self.source.reach(self.grid, rows)

    def tensors(self) -> list[Tensor]:
        """Return the tensors that must not change before a backward pass evaluates the mask again.

        Inference tensors are not among them, as they cannot be saved.
        """
        tensors = [x for x in (*(self.bounds or ()), self.dense) if x is not None]
        read = tensors if self.mask is None else [*tensors, *tensors_in(self.mask)]
        return [x for x in read if not x.is_inference()]

    def tile(self, rows: slice, columns: slice) -> Tensor | None:
        """Return a part of the matrix: bool, broadcasts to (..., rows, columns); None if all is visible."""
        if self.kind == "all":
            return None
        grid = self.grid
        columns_K = positions(columns, grid.keys, grid.device)
        if self.mask is not None:
            rows_Q1 = positions(rows, grid.queries, grid.device)[:, None]
            visible = _checked_result(
                self.mask.visible(grid, rows_Q1, columns_K), (*grid.leading, *rows_Q1.shape[:1], *columns_K.shape)
            )
            return visible if self.groups is None else regroup(visible, 2, *self.groups)
        inside = None if self.dense is None else part(self.dense, rows, columns)
        for bound, compare in zip(self.bounds or (), (torch.ge, torch.lt), strict=False):
            if bound is not None:
                within = compare(columns_K, part(bound.unsqueeze(-1), rows, slice(None)))
                inside = within if inside is None else inside & within
        return inside

    def matrix(self) -> Tensor | None:
        """Return the whole matrix, broadcasting to (..., Q, K); None if all is visible."""
        if self.kind == "all":
            return None
        if self.kind == "keys" and self.readable:
            in_range = self._keys_in_range()
            return None if in_range is None else in_range.unsqueeze(-2)
        return self._once("matrix", lambda: self.tile(slice(None), slice(None)))

    def _keys_in_range(self) -> Tensor | None:
        """Return which keys are visible, for a mask of kind `keys`, (..., K); None if all are."""
        return self._once("keys in range", self._columns)

    def _columns(self) -> Tensor | None:
        if self.fewest == self.grid.keys:
            return None
        first, last = self.bounds or (None, None)
        # Bounds of one row, (..., 1), take the place of the columns that they are compared with.
        columns_K = torch.arange(self.grid.keys, dtype=torch.int32, device=self.grid.device)
        inside: Tensor | None = None
        if last is not None:
            inside = columns_K < last
        if first is not None:
            inside = columns_K >= first if inside is None else inside & (columns_K >= first)
        return inside if self.fewest is not None else self._unless_all(inside)

    def rows_with_keys(self) -> Tensor | None:
        """Return whether each query sees any key: bool, broadcasts to (..., Q); None if every query does."""
        if self.fewest:
            return None
        return self._once("rows with keys", lambda: self._unless_all(self._rows_with_keys()))

    def _unless_all(self, visible: Tensor | None) -> Tensor | None:
        """Return None where everything is True, if the numbers can be read."""
        if visible is not None and (self.readable or has_plain_memory(visible)) and bool(visible.all()):
            return None
        return visible

    def _rows_with_keys(self) -> Tensor | None:
        if self.kind == "all":
            return None if self.grid.keys else torch.zeros(1, dtype=torch.bool, device=self.grid.device)
        if self._bounds_are_all and self.bounds is not None:
            first, last = self.bounds
            if last is None:
                return None if first is None else first < self.grid.keys
            return last > 0 if first is None else first < last
        if self._small():
            visible = self.matrix()
            return None if visible is None else visible.any(-1)
        return self._any_over_keys()

    def _small(self) -> bool:
        """Return whether the matrix is small, so that other steps of the call keep it too."""
        grid = self.grid
        return self.readable and 0 < prod(grid.leading) * grid.queries * grid.keys <= MEMO_LIMIT

    def keys_with_queries(self) -> Tensor | None:
        """Return whether each key is seen by any query: bool, broadcasts to (..., K); None if every key is."""
        if self.kind == "all":
            return None
        if self.kind == "keys" and self.grid.queries:
            return self._keys_in_range()
        return self._once("keys with queries", lambda: self._unless_all(self._keys_with_queries()))

    def _keys_with_queries(self) -> Tensor | None:
        grid = self.grid
        # Comparing two varying lengths would fix the outcome when a program is exported.
        if self.kind == "causal" and not sizes_vary() and grid.keys <= grid.queries:
            return None
        if self._small():
            visible = self.matrix()
            if visible is None or visible.ndim < 2:
                return visible
            return visible.expand(*visible.shape[:-1], grid.keys).any(-2)
        if self._bounds_are_all and self.bounds is not None:
            return _covered(*self._ends(self.bounds), grid)
        return self._any_over_queries()

    def count(self) -> Tensor:
        """Return how many keys each query sees: int64, broadcasts to (..., Q)."""
        if self.kind == "all":
            return torch.full((1,), self.grid.keys, device=self.grid.device)
        if self._bounds_are_all and self.bounds is not None:
            if self.bounds.first is None and self.bounds.last is not None:
                return self.bounds.last.long()
            first, last = self._ends(self.bounds)
            return (last - first).clamp(min=0).long()
        return torch.cat([tile.sum(-1) for _, tile in self._stripes()], -1)

    def _ends(self, bounds: Bounds) -> tuple[Tensor, Tensor]:
        zero = torch.zeros(1, dtype=torch.int32, device=self.grid.device)
        return (
            zero if bounds.first is None else bounds.first,
            zero + self.grid.keys if bounds.last is None else bounds.last,
        )

    def _stripes(self) -> Iterator[tuple[slice, Tensor]]:
        """Iterate over the matrix in stripes of rows, each with the columns that the bounds leave, and what it sees.

        Whole under tracing, where sizes are symbolic.
        """
        queries = max(self.grid.queries, 1)
        if sizes_vary():
            return iter([self._tile_of_rows(0, queries)])
        height = max(1, STRIPE // max(self.grid.keys, 1))
        return (self._tile_of_rows(start, height) for start in range(0, queries, height))

    def _tile_of_rows(self, start: int, height: int) -> tuple[slice, Tensor]:
        columns = self._columns_of(slice(start, start + height))
        visible = self.tile(slice(start, start + height), columns)
        assert visible is not None
        size = min(height, self.grid.queries - start), columns.stop - columns.start
        return columns, visible.expand(*visible.shape[:-2], *size)

    def _columns_of(self, rows: slice) -> slice:
        """Return the columns that the bounds leave to some rows; all of them where the numbers cannot be read."""
        start, stop = 0, self.grid.keys
        if self.readable and self.grid.queries and 0 not in self.grid.leading:
            first, last = (
                None if x is None else part(x.unsqueeze(-1), rows, slice(None)) for x in self.bounds or (None,) * 2
            )
            start = start if first is None else int(first.min())
            stop = stop if last is None else int(last.max())
        return slice(start, max(start, stop))

    def _any_over_keys(self) -> Tensor:
        return torch.cat([tile.any(-1) for _, tile in self._stripes()], -1)

    def _any_over_queries(self) -> Tensor:
        visible: Tensor | None = None
        for columns, tile in self._stripes():
            seen_keys = tile.any(-2)
            if visible is None:
                visible = seen_keys.new_zeros(*seen_keys.shape[:-1], self.grid.keys)
            visible[..., columns] |= seen_keys
        return torch.zeros(self.grid.keys, dtype=torch.bool, device=self.grid.device) if visible is None else visible


def _checked_result(visible: Tensor, full_shape: Shape) -> Tensor:
    """Check what `visible` of a mask, which can be user-defined, returned."""
    shape = tuple(visible.shape)
    if visible.dtype != torch.bool or (not sizes_vary() and not broadcasts_to(shape, full_shape)):
        hint = "visible(grid, rows, columns) is called with positions (Q, 1) and (K,), sometimes only some of them."
        expected = f"visible() to return a bool tensor that broadcasts to (..., Q, K) = {show(full_shape)}"
        raise MaskError("mask", expected, f"{visible.dtype} of shape {show(shape)}", hint)
    return visible


def positions(part: slice, size: int, device: torch.device) -> Tensor:
    """Return the positions that a slice of `size` rows or columns selects, int64."""
    # Not slice.indices, which would make a constant of a size that varies under tracing.
    start, stop = part.start or 0, size if part.stop is None else min(part.stop, size)
    return torch.arange(start, stop, device=device)


def _regrouped(table: Tensor | None, heads: int, groups: tuple[int, int]) -> Tensor | None:
    return None if table is None else regroup(table, heads, *groups)


def part(table: Tensor, rows: slice, columns: slice) -> Tensor:
    """Slice the last two dimensions; those of size 1 keep broadcasting."""
    if table.ndim < 2:
        return table if table.numel() == 1 else table[columns]
    rows = slice(None) if table.shape[-2] == 1 else rows
    columns = slice(None) if table.shape[-1] == 1 else columns
    return table[..., rows, columns]


def _covered(first: Tensor, last: Tensor, grid: Grid) -> Tensor:
    """Compute the union of intervals over the last dimension: each adds +1 at its start and −1 at its end."""
    first, last = first + torch.zeros_like(last), last + torch.zeros_like(first)
    nonempty = (first < last).long()
    edges = nonempty.new_zeros(*first.shape[:-1], grid.keys + 1)
    edges = edges.scatter_add(-1, first.clamp(0, grid.keys).long(), nonempty)
    edges = edges.scatter_add(-1, last.clamp(0, grid.keys).long(), -nonempty)
    return edges.cumsum(-1)[..., : grid.keys] > 0


def lower(mask: Mask | None, grid: Grid, readable: bool = False) -> Visibility:
    """Convert a mask to the form that backends use; exact for every mask.

    Args:
        mask: any combination of masks, or None.
        grid: the sizes of the problem.
        readable: whether the numbers of its tensors may be read: plain ones on the CPU, outside of tracing.

    Returns:
        The lowered mask.

    Raises:
        MaskError: a bool tensor does not broadcast to (..., Q, K), or a length that may be read is out of range.
        ShapeError: per-item data does not fit the leading shape.
    """
    if mask is None:
        return Visibility("all", grid)
    lowered = _lowered(mask, grid, readable)
    lowered.source = mask
    if readable and lowered.kind in ("bounds", "dense", "predicate"):
        first, last = mask.reach(grid, slice(grid.queries // 2, grid.queries // 2 + BLOCK_ROWS))
        lowered.block = max(0, last - first) if last - first < grid.keys else None
    # Nothing is hidden where there is no item or no head: no matrix is made of the lengths alone.
    return Visibility("all", grid) if not sizes_vary() and 0 in grid.leading else lowered


def _lowered(mask: Mask, grid: Grid, readable: bool) -> Visibility:
    if is_plain_causal(mask):
        return Visibility("causal", grid, mask.bounds(grid), readable=readable)
    same_for_all = mask.read(grid) if readable else None
    bounds, fewest = same_for_all or (mask.bounds(grid), None)
    if bounds is not None and bounds.first is None and bounds.last is None:
        return Visibility("all", grid)
    if bounds is not None:
        kind: Kind = "keys" if same_for_all or _same_for_all_rows(bounds) else "bounds"
        return Visibility(kind, grid, bounds, readable=readable, fewest=fewest)
    parts = factors(mask)
    tables = [_expect_table(part.tensor, grid) for part in map(_savable, parts) if isinstance(part, Dense)]
    others = [part.bounds(grid) for part in parts if not isinstance(part, Dense)]
    if tables and all(other is not None for other in others):
        table = tables[0] if len(tables) == 1 else reduce(torch.logical_and, tables)
        return Visibility("dense", grid, _intersection(others), table, readable=readable)
    _check_tables(mask, grid)
    lowers_to_bounds = readable and any(other is not None for other in others)
    bounds = _intersection(others) if lowers_to_bounds else None
    return Visibility("predicate", grid, bounds, mask=_savable(mask), readable=readable)


def _savable(mask: Mask) -> Mask:
    """Return the mask without inference tensors, which could change unnoticed and cannot be saved for backward."""
    if torch.compiler.is_compiling() or torch.is_inference_mode_enabled():
        return mask
    if not any(x.is_inference() for x in tensors_in(mask)):
        return mask
    copied: Mask = tree_map_only(Tensor, torch.clone, mask)
    return copied


def _same_for_all_rows(bounds: Bounds) -> bool:
    first, last = bounds
    return (first is None or first.shape[-1] == 1) and (last is None or last.shape[-1] == 1)


def factors(mask: Mask) -> list[Mask]:
    """Split a mask into the masks whose intersection it is."""
    return [*factors(mask.left), *factors(mask.right)] if isinstance(mask, Both) else [mask]


def _check_tables(mask: Mask, grid: Grid) -> None:
    if isinstance(mask, Dense):
        _expect_table(mask.tensor, grid)
    for inner, inner_grid in mask.inside(grid):
        _check_tables(inner, inner_grid)


def _intersection(parts: list[Bounds | None]) -> Bounds:
    firsts = [part.first for part in parts if part is not None and part.first is not None]
    lasts = [part.last for part in parts if part is not None and part.last is not None]
    return Bounds(
        reduce(torch.maximum, firsts) if firsts else None,
        reduce(torch.minimum, lasts) if lasts else None,
    )


def _expect_table(table: Tensor, grid: Grid) -> Tensor:
    shape = (*grid.leading, grid.queries, grid.keys)
    if not broadcasts_to(tuple(table.shape), shape):
        raise MaskError(
            "mask",
            f"a shape that broadcasts to (..., Q, K) = {show(shape)}",
            f"shape {show(tuple(table.shape))}",
            "For per-item lengths use qkv.masks.lengths; a (B, Q, K) mask for (B, H, Q, K) needs mask[:, None].",
        )
    return table if table.ndim else table.reshape(1)


def matrix(mask: Mask | Tensor, queries: int, keys: int, leading: Shape = ()) -> Tensor:
    """Expand a mask to a bool tensor, for inspection.

    Args:
        mask: any mask.
        queries: the number of queries, Q.
        keys: the number of keys, K.
        leading: the leading shape, if the mask has per-item data.

    Returns:
        A bool tensor (*leading, Q, K): True where the query may see the key.

    Example:
        >>> from qkv.masks.patterns import causal
        >>> matrix(causal(), 2, 2)
        tensor([[ True, False],
                [ True,  True]])
    """
    mask = as_mask(mask)
    tensors = [leaf for leaf in tree_leaves(mask) if isinstance(leaf, Tensor)]
    device = tensors[0].device if tensors else torch.device("cpu")
    visible = lower(mask, Grid(leading, queries, keys, device)).matrix()
    visible = torch.ones((), dtype=torch.bool, device=device) if visible is None else visible
    return visible.expand(*leading, queries, keys)
