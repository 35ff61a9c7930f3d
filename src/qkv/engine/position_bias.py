"""What algorithms get of a bias that follows from positions: any tile of it on request, as from a lowered mask."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, final

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from qkv.biases import Alibi, Bias, Relative
from qkv.errors import ShapeError, error_message
from qkv.masks.base import Grid
from qkv.masks.lower import part, positions
from qkv.shapes import broadcast, show
from qkv.values.parameters import regroup, transformed
from qkv.values.pytree import tensors_in

Kind = Literal["relative", "relative learned", "positions", "positions learned", "positions closure"]

_WHOLE = slice(None)


@final
@dataclass(frozen=True, eq=False)
class PositionBias:
    """A bias from positions beside the sizes of a problem.

    Attributes:
        bias: as the caller gave it.
        grid: the sizes, with the heads as the caller has them.
        dtype: the type in which it is added: float64 for queries in float64, else float32.
        learned: its parameters that get a gradient.
        closure: whether anything else may learn, such as a tensor that its function closes over.
        groups: (G, H/G), where the head dimension of what comes out is split so; `grid` keeps H.
    """

    bias: Bias
    grid: Grid
    dtype: torch.dtype
    learned: tuple[Tensor, ...] = ()
    closure: bool = False
    groups: tuple[int, int] | None = None

    @property
    def kind(self) -> Kind:
        """`relative` if it is a function of j − i, else `positions`; and whether it, or what it closes over, learns."""
        if self.bias.relative:
            return "relative learned" if self.closure or self.learned else "relative"
        if self.closure:
            return "positions closure"
        return "positions learned" if self.learned else "positions"

    def group(self, groups: int, repeats: int) -> "PositionBias":
        """The same for query heads laid out as (groups, repeats)."""
        return replace(self, groups=(groups, repeats))

    def tensors(self) -> list[Tensor]:
        """The tensors that it holds; what inference mode made cannot be saved."""
        return [x for x in tensors_in(self.bias) if not x.is_inference()]

    def tile(self, rows: slice = _WHOLE, columns: slice = _WHOLE) -> Tensor:
        """The part asked for, all of it by default; broadcasts to (..., rows, columns)."""
        device = self.grid.device
        rows_Q1 = positions(rows, self.grid.queries, device)[:, None]
        columns_K = positions(columns, self.grid.keys, device)
        if not torch.compiler.is_compiling() and 0 in (*rows_Q1.shape, *columns_K.shape):
            return torch.zeros(rows_Q1.shape[0], columns_K.shape[0], dtype=self.dtype, device=device)
        return self._laid_out(self.bias.tile(rows_Q1, columns_K), (rows_Q1.shape[0], columns_K.shape[0]))

    def diagonals(self) -> Tensor:
        """All of a relative bias: for each j − i from 1 − Q to K − 1 a number, (..., Q + K − 1)."""
        queries, keys, device = self.grid.queries, self.grid.keys, self.grid.device
        origin = torch.zeros(1, 1, dtype=torch.int64, device=device)
        places = torch.arange(1 - queries, max(keys, 1 - queries), device=device)
        line = self._laid_out(self.bias.tile(origin, places), (1, places.shape[0]))
        line = line.expand(*line.shape[:-2], 1, places.shape[0]) if line.ndim > 1 else line.expand(1, places.shape[0])
        return line.squeeze(-2)

    def _laid_out(self, added: Tensor, own: tuple[int, int]) -> Tensor:
        whole = (*self.grid.leading, *own)
        if not torch.compiler.is_compiling() and broadcast(tuple(added.shape), whole) != whole:
            hint = "tile(rows, columns) gets positions (Q, 1) and (K,), sometimes only some of them."
            expected = f"a shape that broadcasts to (..., Q, K) = {show(whole)}"
            raise ShapeError(error_message("bias", expected, f"shape {show(tuple(added.shape))}", hint))
        added = added.to(self.dtype)
        return added if self.groups is None else regroup(added, 2, *self.groups)


def position_bias(bias: Bias, grid: Grid, dtype: torch.dtype) -> PositionBias:
    """Say of a bias what learns in it.

    Args:
        bias: as the caller gave it.
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
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    found = PositionBias(bias, grid, wide)
    if not torch.is_grad_enabled():
        return found
    named = [x for name, _, _ in bias.parameters if isinstance(x := getattr(bias, name), Tensor) and x.requires_grad]
    if type(bias) in (Alibi, Relative):
        return replace(found, learned=tuple(named))
    if torch.compiler.is_compiling() or transformed():
        # A graph in the making does not tell what its tensors come from.
        return replace(found, learned=tuple(named), closure=not bias.relative)
    if 0 in (grid.queries, grid.keys):
        return found
    first = torch.zeros(1, dtype=torch.int64, device=grid.device)
    added = bias.tile(first[:, None], first)
    if not added.requires_grad:
        return found
    return replace(found, learned=tuple(named), closure=_learns_more(added, named))


def _learns_more(added: Tensor, known: Sequence[Tensor]) -> bool:
    """Whether gradients reach any leaf otherwise than through known tensors."""
    ends = {tuple(get_gradient_edge(x))[:2] for x in known}
    left: list[tuple[Any, int]] = [tuple(get_gradient_edge(added))[:2]]  # type: ignore[list-item]
    seen = set(left)
    while left:
        edge = left.pop()
        if edge in ends:
            continue
        if hasattr(edge[0], "variable"):
            return True
        new = {following for following in edge[0].next_functions if following[0] is not None} - seen
        seen |= new
        left += new
    return False


def bias_tile(bias: Tensor | PositionBias | None, rows: slice = _WHOLE, columns: slice = _WHOLE) -> Tensor | None:
    """The part of a bias asked for, whatever its kind; all of it by default.

    Example:
        >>> bias_tile(torch.arange(6.0).view(2, 3), slice(0, 1), slice(1, 3))
        tensor([[1., 2.]])
    """
    if isinstance(bias, PositionBias):
        return bias.tile(rows, columns)
    return None if bias is None else part(bias, rows, columns)
