"""A bias that is a function of positions, in the form that algorithms receive: any tile of it on request."""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, is_dataclass, replace
from typing import Any, Literal, final

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from qkv.biases import Alibi, Bias, Relative
from qkv.errors import ShapeError
from qkv.masks.base import Grid
from qkv.masks.lower import part, positions
from qkv.shapes import broadcasts_to, show
from qkv.values.execution import sizes_vary, transformed
from qkv.values.parameters import promoted, regroup
from qkv.values.pytree import tensors_in

Kind = Literal["relative", "relative learned", "positions", "positions learned", "positions closure"]

_EVERYTHING = slice(None)


@final
@dataclass(frozen=True, eq=False)
class PositionBias:
    """A position bias with the sizes of a problem.

    Attributes:
        bias: as the caller passed it.
        grid: the sizes, with the caller's heads.
        dtype: the dtype of the bias: float64 for queries in float64, else float32.
        learned: its parameters that need a gradient.
        closure: whether other tensors may need a gradient, such as one that its function closes over.
        groups: (G, H/G) if the head dimension of results is split like this; `grid` keeps H.
    """

    bias: Bias
    grid: Grid
    dtype: torch.dtype
    learned: tuple[Tensor, ...] = ()
    closure: bool = False
    groups: tuple[int, int] | None = None

    @property
    def kind(self) -> Kind:
        """`relative` for a function of j − i, else `positions`; and whether its parameters or its closure learn."""
        if self.bias.relative:
            return "relative learned" if self.closure or self.learned else "relative"
        if self.closure:
            return "positions closure"
        return "positions learned" if self.learned else "positions"

    def group(self, groups: int, repeats: int) -> "PositionBias":
        """Return the same bias for query heads arranged as (groups, repeats)."""
        return replace(self, groups=(groups, repeats))

    def tensors(self) -> list[Tensor]:
        """Return its tensors, except inference tensors, which autograd cannot save."""
        return [x for x in tensors_in(self.bias) if not x.is_inference()]

    def tile(self, rows: slice = _EVERYTHING, columns: slice = _EVERYTHING) -> Tensor:
        """Return a part of the bias, all of it by default; broadcasts to (..., rows, columns)."""
        device = self.grid.device
        rows_Q1 = positions(rows, self.grid.queries, device)[:, None]
        columns_K = positions(columns, self.grid.keys, device)
        if not sizes_vary() and 0 in self.grid.leading:
            rows_Q1, columns_K = rows_Q1[:1], columns_K[:1]  # of no item or no head: one pair stands for all
        if not sizes_vary() and 0 in (*rows_Q1.shape, *columns_K.shape):
            return torch.zeros(rows_Q1.shape[0], columns_K.shape[0], dtype=self.dtype, device=device)
        return self._checked(self.bias.tile(rows_Q1, columns_K), (rows_Q1.shape[0], columns_K.shape[0]))

    def diagonals(self) -> Tensor:
        """Return a relative bias as one number for each j − i from 1 − Q to K − 1, (..., Q + K − 1)."""
        queries, keys, device = self.grid.queries, self.grid.keys, self.grid.device
        origin = torch.zeros(1, 1, dtype=torch.int64, device=device)
        offsets = torch.arange(1 - queries, max(keys, 1 - queries), device=device)
        row = self._checked(self.bias.tile(origin, offsets), (1, offsets.shape[0]))
        row = row.expand(*row.shape[:-2], 1, offsets.shape[0]) if row.ndim > 1 else row.expand(1, offsets.shape[0])
        return row.squeeze(-2)

    def replaced(self, learned: Sequence[Tensor]) -> "PositionBias":
        """Return the same bias with other tensors in place of those that learn, in their order."""
        bias = copy(self.bias)
        for name, x in zip(_learned_names(self.bias), learned, strict=True):
            object.__setattr__(bias, name, x)  # a frozen dataclass too
        return replace(self, bias=bias)

    @property
    def replaceable(self) -> bool:
        """True if its tiles are computed from its fields alone, not from values computed from them earlier."""
        if not self.learned or 0 in (self.grid.queries, self.grid.keys):
            return True
        first = slice(0, 1)
        leaves = [x.detach().requires_grad_() for x in self.learned]
        with torch.enable_grad():
            added = self.replaced(leaves).tile(first, first)
        return not added.requires_grad or not learns_more(added, leaves)

    def _checked(self, added: Tensor, size: tuple[int, int]) -> Tensor:
        """Check the shape of a tile that a bias returned, cast it, and split its heads into groups."""
        shape = (*self.grid.leading, *size)
        if not sizes_vary() and not broadcasts_to(tuple(added.shape), shape):
            hint = "tile(rows, columns) gets positions (Q, 1) and (K,), sometimes only some of them."
            expected = f"a shape that broadcasts to (..., Q, K) = {show(shape)}"
            raise ShapeError("bias", expected, f"shape {show(tuple(added.shape))}", hint)
        added = added.to(self.dtype)
        return added if self.groups is None else regroup(added, 2, *self.groups)


def position_bias(bias: Bias, grid: Grid, dtype: torch.dtype) -> PositionBias:
    """Return a bias with the sizes of a problem, and find out which of its tensors need a gradient.

    Args:
        bias: as the caller passed it.
        grid: the sizes of the problem.
        dtype: of query, key and value.

    Example:
        >>> from qkv.biases import alibi, relative
        >>> grid = Grid((), 4, 4, torch.device("cpu"))
        >>> position_bias(alibi(0.5), grid, torch.float32).kind
        'relative'
        >>> table = torch.zeros(3, requires_grad=True)
        >>> position_bias(relative(table), grid, torch.float32).kind
        'relative learned'
    """
    if bias.parameters and is_dataclass(bias):
        bias = promoted(bias, bias.parameters, dtype)
    fixed = PositionBias(bias, grid, torch.float64 if dtype == torch.float64 else torch.float32)
    if not torch.is_grad_enabled():
        return fixed
    named = [getattr(bias, name) for name in _learned_names(bias)]
    if type(bias) in (Alibi, Relative):
        return replace(fixed, learned=tuple(named)) if named else fixed
    if torch.compiler.is_compiling() or transformed():
        # While a graph is recorded, its tensors do not show what they depend on.
        return replace(fixed, learned=tuple(named), closure=not bias.relative)
    if 0 in (grid.queries, grid.keys):
        return fixed
    first = torch.zeros(1, dtype=torch.int64, device=grid.device)
    added = bias.tile(first[:, None], first)
    if not added.requires_grad:
        return fixed
    return replace(fixed, learned=tuple(named), closure=learns_more(added, named))


def _learned_names(bias: Bias) -> list[str]:
    """Return the parameters of a bias that need a gradient."""
    tensors = {name: getattr(bias, name) for name, _, _ in bias.parameters}
    return [name for name, x in tensors.items() if isinstance(x, Tensor) and x.requires_grad]


def learns_more(added: Tensor, existing: Sequence[Tensor]) -> bool:
    """Return whether a result depends on leaves that need a gradient other than through known tensors."""
    known_edges = {tuple(get_gradient_edge(x))[:2] for x in existing}
    pending: list[tuple[Any, int]] = [tuple(get_gradient_edge(added))[:2]]  # type: ignore[list-item]
    visited = set(pending)
    while pending:
        edge = pending.pop()
        if edge in known_edges:
            continue
        if hasattr(edge[0], "variable"):
            return True
        new = {parent for parent in edge[0].next_functions if parent[0] is not None} - visited
        visited |= new
        pending += new
    return False


def bias_tile(
    bias: Tensor | PositionBias | None, rows: slice = _EVERYTHING, columns: slice = _EVERYTHING
) -> Tensor | None:
    """Return a part of a bias of any kind; all of it by default.

    Example:
        >>> bias_tile(torch.arange(6.0).view(2, 3), slice(0, 1), slice(1, 3))
        tensor([[1., 2.]])
    """
    if isinstance(bias, PositionBias):
        return bias.tile(rows, columns)
    return None if bias is None else part(bias, rows, columns)
