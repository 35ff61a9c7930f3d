"""The masks computed from positions: causal, lengths, span, window, documents."""

from dataclasses import dataclass, fields, replace
from typing import ClassVar, Literal, Self, final

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.errors import MaskError, ShapeError
from qkv.masks.base import Both, Bounds, Dense, Either, Grid, Inverse, Mask
from qkv.shapes import Shape, align_left, show
from qkv.values.checked import checked
from qkv.values.execution import sizes_vary
from qkv.values.pytree import value

FAR = 1 << 62
"""Beyond any position, but small enough to add to a position in int64."""
_END = 1 << 63
"""One past the largest int64."""
_FEW = 256
"""So many numbers are read faster as a list than by one of PyTorch's operators."""


class Pattern(Mask):
    """A mask computed from positions, and from numbers that can differ between items.

    Attributes:
        rank: how many last dimensions of its tensors belong to one item.
    """

    rank: ClassVar[int] = 0

    def __init_subclass__(cls) -> None:
        cls.name = cls.__name__.lower()

    def item(self, index: int, leading: Shape) -> Self:
        """Return the numbers of one item, which align from the left."""
        changes = {
            part.name: x[0 if x.shape[0] == 1 else index]
            for part in fields(self)  # type: ignore[arg-type]
            if isinstance(x := getattr(self, part.name), Tensor) and x.ndim > self.rank
        }
        return replace(self, **changes) if changes else self  # type: ignore[type-var]


@final
@value
@dataclass(frozen=True, eq=False)
class Causal(Pattern):
    """Query i sees the keys j ≤ i + offset."""

    offset: int | Tensor = 0
    align: Literal["start", "end"] = "start"

    def visible(self, grid: Grid, rows_Q1: Tensor, columns_K: Tensor) -> Tensor:
        """Return whether the key is not ahead of the query."""
        return columns_K <= rows_Q1 + _column(self._shift(grid), grid, "offset")

    def bounds(self, grid: Grid) -> Bounds:
        """Return everything up to the query's own position."""
        return Bounds(None, _clamp(_rows(grid) + _row(self._shift(grid), grid, "offset") + 1, grid))

    def reach(self, grid: Grid, rows: slice) -> tuple[int, int]:
        """Return every key up to the last query's own position."""
        shift = self._shift(grid)
        return (0, grid.keys) if isinstance(shift, Tensor) else (0, _within(rows.stop + shift, grid))

    def shifted(self, by: int) -> "Causal":
        """Add to the offset; aligned at the end, it counts from the last key in any case."""
        return self if self.align == "end" else Causal(_moved(self.offset, by))

    def _shift(self, grid: Grid) -> int | Tensor:
        offset = _moved(self.offset, 0)
        return offset if self.align == "start" else offset + (grid.keys - grid.queries)


@final
@value
@dataclass(frozen=True, eq=False)
class Lengths(Pattern):
    """The first `keys` keys and the first `queries` queries are real, the rest padding."""

    keys: int | Tensor | None
    queries: int | Tensor | None = None

    def visible(self, grid: Grid, rows_Q1: Tensor, columns_K: Tensor) -> Tensor:
        """Return whether both positions are within their lengths."""
        real = torch.ones((), dtype=torch.bool, device=grid.device)
        if self.keys is not None:
            real = real & (columns_K < _column(_length(self.keys), grid, "keys"))
        if self.queries is not None:
            real = real & (rows_Q1 < _column(_length(self.queries), grid, "queries"))
        return real

    def bounds(self, grid: Grid) -> Bounds:
        """Return the real keys for the real queries."""
        last = grid.keys if self.keys is None else _row(_length(self.keys), grid, "keys")
        if self.queries is not None:
            last = torch.where(_rows(grid) < _row(_length(self.queries), grid, "queries"), last, 0)
        return Bounds(None, _clamp(last, grid))

    def shifted(self, by: int) -> Mask:
        """Turn the keys into a span; queries stay as they are."""
        of_queries = None if self.queries is None else Lengths(None, self.queries)
        if self.keys is None:
            return of_queries or Span(by)
        keys = Span(by, _moved(self.keys, by))
        return keys if of_queries is None else keys & of_queries

    def read(self, grid: Grid) -> tuple[Bounds, int] | None:
        """Return the bounds and the shortest length of keys; raise a MaskError if a number is not a length."""
        _expect_prefix(self.queries, grid.queries, "queries")
        extremes = _expect_prefix(self.keys, grid.keys, "keys")
        if self.keys is None or extremes is None or self.queries is not None:
            return None
        last = _row(self.keys, grid, "keys")
        # Numbers that were checked need not be clamped.
        return Bounds(None, last.int() if isinstance(last, Tensor) else _clamp(last, grid)), extremes[0]


@final
@value
@dataclass(frozen=True, eq=False)
class Span(Pattern):
    """Every query sees the keys first ≤ j < last."""

    first: int | Tensor
    last: int | Tensor | None = None

    def visible(self, grid: Grid, rows_Q1: Tensor, columns_K: Tensor) -> Tensor:
        """Return whether the key is within the span."""
        inside = columns_K >= _column(_length(self.first), grid, "first")
        if self.last is None:
            return inside
        return inside & (columns_K < _column(_length(self.last), grid, "last"))

    def bounds(self, grid: Grid) -> Bounds:
        """Return the same interval for every query."""
        last = None if self.last is None else _clamp(_row(_length(self.last), grid, "last"), grid)
        return Bounds(_clamp(_row(_length(self.first), grid, "first"), grid), last)

    def shifted(self, by: int) -> "Span":
        """Add to both ends."""
        return Span(_moved(self.first, by), None if self.last is None else _moved(self.last, by))


@final
@value
@dataclass(frozen=True, eq=False)
class Window(Pattern):
    """Query i sees the keys i + offset − left ≤ j ≤ i + offset + right."""

    left: int | None
    right: int | None
    offset: int | Tensor = 0

    def visible(self, grid: Grid, rows_Q1: Tensor, columns_K: Tensor) -> Tensor:
        """Return whether the key is within the window."""
        distance = columns_K - rows_Q1
        inside = torch.ones((), dtype=torch.bool, device=grid.device)
        if self.left is not None:
            inside = inside & (distance >= _column(_moved(self.offset, -self.left), grid, "offset"))
        if self.right is not None:
            inside = inside & (distance <= _column(_moved(self.offset, self.right), grid, "offset"))
        return inside

    def bounds(self, grid: Grid) -> Bounds:
        """Return the window around the query's own position."""
        rows = _rows(grid)
        return Bounds(
            None if self.left is None else _clamp(rows + _row(_moved(self.offset, -self.left), grid, "offset"), grid),
            None
            if self.right is None
            else _clamp(rows + _row(_moved(self.offset, self.right), grid, "offset") + 1, grid),
        )

    def reach(self, grid: Grid, rows: slice) -> tuple[int, int]:
        """Return the windows of the first and the last query."""
        if isinstance(self.offset, Tensor):
            return 0, grid.keys
        start = 0 if self.left is None else _within(rows.start + self.offset - self.left, grid)
        return start, grid.keys if self.right is None else _within(rows.stop + self.offset + self.right, grid)

    def shifted(self, by: int) -> "Window":
        """Add to the offset."""
        return replace(self, offset=_moved(self.offset, by))


@final
@value
@dataclass(frozen=True, eq=False)
class Documents(Pattern):
    """A query sees the keys with its own document id."""

    rank: ClassVar[int] = 1
    queries: Tensor
    keys: Tensor | None = None

    def visible(self, grid: Grid, rows_Q1: Tensor, columns_K: Tensor) -> Tensor:
        """Return whether query and key have the same id."""
        queries, keys = self._ids(grid)
        return queries.index_select(-1, rows_Q1[:, 0])[..., :, None] == keys.index_select(-1, columns_K)[..., None, :]

    def bounds(self, grid: Grid) -> Bounds | None:
        """Return the run of keys with the query's id if each id forms one run; it reads ids: eager CPU calls only."""
        # Dynamo can trace only the first of these conditions. Reading ids on a GPU would wait for the device.
        hidden = (
            sizes_vary()
            or not self.queries.is_cpu
            or torch._C._get_tracing_state() is not None
            or torch._C._functorch.is_functorch_wrapped_tensor(self.queries)
        )
        if hidden or self.keys is not None or self.queries.numel() == 0:
            return None
        ids = self._ids(grid)[0]
        new = torch.ones_like(ids, dtype=torch.bool)
        new[..., 1:] = ids[..., 1:] != ids[..., :-1]
        distinct = 1 + (ids.sort(-1).values.diff(dim=-1) != 0).sum(-1)
        if not bool((new.sum(-1) == distinct).all()):
            return None
        position = torch.arange(grid.keys, device=ids.device)
        first = torch.where(new, position, 0).cummax(-1).values
        end = torch.where(new, position, grid.keys).flip(-1).cummin(-1).values.flip(-1)
        last = torch.cat([end[..., 1:], torch.full_like(end[..., :1], grid.keys)], -1)
        return Bounds(first.int(), last.int())

    def shifted(self, by: int) -> "Documents":
        """Put ids before those of the keys."""
        return Documents(self.queries, F.pad(self.queries if self.keys is None else self.keys, (by, 0)))

    def _ids(self, grid: Grid) -> tuple[Tensor, Tensor]:
        keys = self.queries if self.keys is None else self.keys
        # PyTorch cannot sort or compare all unsigned types.
        queries, keys = self.queries.long(), keys.long()
        return _aligned_ids(queries, grid.queries, grid, "ids"), _aligned_ids(keys, grid.keys, grid, "key_ids")


PATTERNS = (Dense, Causal, Lengths, Span, Window, Documents)
"""The masks that decide themselves which pairs are visible; all others of this package combine masks."""
MASKS = (*PATTERNS, Both, Either, Inverse)
"""All masks that are values: what trace files and registered operators can hold."""


def _aligned_ids(ids: Tensor, count: int, grid: Grid, argument: str) -> Tensor:
    if ids.shape[-1] != count:
        raise ShapeError(
            f"documents({argument})",
            f"one id per position, {count} in the last dimension",
            f"shape {show(tuple(ids.shape))}",
            "If queries and keys are different sequences, pass both: documents(ids, key_ids).",
        )
    lead = ids.shape[:-1]
    return ids.reshape(*lead, *(1,) * (len(grid.leading) - len(lead)), count) if lead else ids


def _within(position: int, grid: Grid) -> int:
    return max(0, min(position, grid.keys))


def _rows(grid: Grid) -> Tensor:
    return torch.arange(grid.queries, device=grid.device)


def clamped(number: int) -> int:
    """Clamp a number to ±`FAR`; under tracing, a varying one keeps varying.

    Example:
        >>> clamped(7), clamped(10**30) == FAR
        (7, True)
    """
    if torch.compiler.is_dynamo_compiling():  # before PyTorch 2.12 it traces no sym_min of numbers that do not vary
        return max(-FAR, min(FAR, number))
    within: int = torch.sym_max(-FAR, torch.sym_min(FAR, number))
    return within


def _moved(item: int | Tensor, by: int) -> int | Tensor:
    """Return item + by in int64, exact within ±`FAR` and clamped beyond.

    A tensor can have any integer type. The sum itself could overflow int64, so the operands are clamped first.
    """
    if not isinstance(item, Tensor):
        return clamped(item + by)
    if item.dtype == torch.uint64:
        # Reinterpreted with the first bit flipped, the number is 2⁶³ less.
        return _moved(item.view(torch.int64) ^ -_END, by + _END)
    # Twice the range of int64 goes beyond it from any number.
    by = max(-2 * _END, min(2 * _END, by))
    step = max(1 - _END, min(_END - 1, by))
    moved = item.long().clamp(max(-_END, -FAR - step), min(_END - 1, FAR - step))
    moved = moved + step if step else moved
    return moved if step == by else _moved(moved, by - step)


def _length(item: int | Tensor) -> int | Tensor:
    """Convert a length to a type that also holds the number of keys; nothing is added to it."""
    return item if isinstance(item, Tensor) and item.dtype in (torch.int64, torch.int32) else _moved(item, 0)


def _row(item: int | Tensor, grid: Grid, argument: str) -> int | Tensor:
    """Add dimensions to per-item data for a (..., Q) tensor."""
    return align_left(item, grid.leading, argument, last=1) if isinstance(item, Tensor) else item


def _column(item: int | Tensor, grid: Grid, argument: str) -> int | Tensor:
    """Add dimensions to per-item data for a (..., Q, K) tensor."""
    return align_left(item, grid.leading, argument, last=2) if isinstance(item, Tensor) else item


def _clamp(position: int | Tensor, grid: Grid) -> Tensor:
    if isinstance(position, Tensor):
        return position.clamp(0, grid.keys).int()
    return torch.tensor([min(max(position, 0), grid.keys)], dtype=torch.int32, device=grid.device)


@checked
def causal(offset: int | Tensor = 0, *, align: Literal["start", "end"] = "start") -> Causal:
    """Let query i see the keys j ≤ i + offset, so that no position sees its future.

    Args:
        offset: how far ahead a query may look; an int, or an integer tensor per item. With a cache: the number of
            cached keys.
        align: `"start"` counts queries and keys from their beginnings, as PyTorch's `is_causal` does; `"end"` lets
            the last query see the last key when there are more keys than queries.

    Returns:
        The mask.

    Raises:
        MaskError: the offset is not an integer, or `align` is unknown.

    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.3.

    Example:
        >>> from qkv.masks.lower import matrix
        >>> matrix(causal(), 3, 3).int()
        tensor([[1, 0, 0],
                [1, 1, 0],
                [1, 1, 1]], dtype=torch.int32)
    """
    if align not in ("start", "end"):
        raise MaskError("align", '"start" or "end"', repr(align), 'Use "end" for bottom-right alignment.')
    return Causal(_integer(offset, "offset"), align)


@checked
def lengths(keys: int | Tensor | None, queries: int | Tensor | None = None) -> Lengths:
    """Mask padding: only the first `keys` keys are visible, and queries from `queries` on see nothing.

    Args:
        keys: number of real keys; an int, or an integer tensor per item: shape (B,), aligned from the left.
        queries: likewise for queries; rows beyond give output 0.

    Returns:
        The mask.

    Raises:
        MaskError: a length is not an integer. Attention raises it for a length that is negative, or greater than the
            number of keys or queries; not under tracing or for tensors on a GPU, where no number is read: there such
            lengths are clamped.

    Source: the masked softmax of Zhang et al., "Dive into Deep Learning", section 11.3.2.

    Example:
        >>> from qkv.masks.lower import matrix
        >>> matrix(lengths(torch.tensor([1, 2])), 1, 3, leading=(2,)).int()
        tensor([[[1, 0, 0]],
        <BLANKLINE>
                [[1, 1, 0]]], dtype=torch.int32)
    """
    return Lengths(
        None if keys is None else _integer(keys, "keys"), None if queries is None else _integer(queries, "queries")
    )


@checked
def span(first: int | Tensor, last: int | Tensor | None = None) -> Span:
    """Mask padding on both sides: every query sees the keys first ≤ j < last.

    Args:
        first: the first real key; an int, or an integer tensor per item: shape (B,), aligned from the left. With
            padding on the left: the number of padding keys.
        last: one past the last real key, likewise; None for all keys that follow. Nothing is visible where it is not
            after `first`.

    Returns:
        The mask.

    Raises:
        MaskError: a position is not an integer.

    Example:
        >>> from qkv.masks.lower import matrix
        >>> matrix(span(torch.tensor([0, 2]), 3), 1, 4, leading=(2,)).int()
        tensor([[[1, 1, 1, 0]],
        <BLANKLINE>
                [[0, 0, 1, 0]]], dtype=torch.int32)
    """
    return Span(_integer(first, "first"), None if last is None else _integer(last, "last"))


def is_plain_causal(mask: object) -> bool:
    """Return whether a mask is exactly j ≤ i.

    Example:
        >>> is_plain_causal(causal()), is_plain_causal(causal(1))
        (True, False)
    """
    return type(mask) is Causal and type(mask.offset) is int and mask.offset == 0 and mask.align == "start"


def expect_lengths(mask: Mask | None, grid: Grid) -> None:
    """Check that no length in a mask, or in a combination of masks, is out of range; outside of tracing only.

    Args:
        mask: any mask.
        grid: the sizes of the problem.

    Raises:
        MaskError: a length is negative, or greater than the number of keys or queries.

    Example:
        >>> expect_lengths(lengths(9), Grid((), 4, 5, torch.device("cpu")))
        Traceback (most recent call last):
        qkv.errors.MaskError: lengths(keys): expected lengths from 0 to 5, the number of keys; got 9. ...
    """
    if mask is None:
        return
    if type(mask) is Lengths:
        _expect_prefix(mask.keys, grid.keys, "keys")
        _expect_prefix(mask.queries, grid.queries, "queries")
    for part, part_grid in mask.inside(grid):
        expect_lengths(part, part_grid)


def _expect_prefix(count: int | Tensor | None, most: int, what: str) -> tuple[int, int] | None:
    """Return the least and the largest length after a check; None if there is none that may be read."""
    if count is None or (isinstance(count, Tensor) and not (count.is_cpu and count.numel())):
        return None
    extremes = _extremes(count)
    for number in extremes:
        if isinstance(number, int) and not 0 <= number <= most:
            hint = "A length counts the real positions of this call's tensors; omit the mask if all are real."
            expected = f"lengths from 0 to {most:,}, the number of {what}"
            raise MaskError(f"lengths({what})", expected, f"{number:,}", hint)
    return extremes


def _extremes(item: int | Tensor) -> tuple[int, int]:
    """Return the least and the largest of some numbers."""
    if not isinstance(item, Tensor):
        return item, item
    if item.numel() <= _FEW:
        numbers = item.tolist() if item.ndim == 1 else item.flatten().tolist()
        return min(numbers), max(numbers)
    least, most = _length(item).aminmax()  # type: ignore[union-attr]
    return int(least), int(most)


@checked
def window(left: int | None, right: int | None, *, offset: int | Tensor = 0) -> Window:
    """Let query i see the keys i − left ≤ j ≤ i + right.

    Args:
        left: number of keys before its own position; None for all.
        right: number of keys after it; None for all.
        offset: the position of the first query among the keys: with a cache, the number of cached keys.

    Returns:
        The mask.

    Raises:
        MaskError: a width is negative or not an integer.

    Source: Beltagy et al. 2020, "Longformer", section 3.1.

    Example:
        >>> from qkv.masks.lower import matrix
        >>> matrix(window(1, 0), 3, 3).int()
        tensor([[1, 0, 0],
                [1, 1, 0],
                [0, 1, 1]], dtype=torch.int32)
    """
    for name, width in (("left", left), ("right", right)):
        if width is not None and (not isinstance(width, int) or isinstance(width, bool) or width < 0):
            raise MaskError(f"window({name})", "a number of keys, 0 or more, or None", repr(width), "None means all.")
    return Window(left, right, _integer(offset, "offset"))


@checked
def documents(ids: Tensor, key_ids: Tensor | None = None) -> Documents:
    """Let a query see only the keys of its own document, for several documents packed into one sequence.

    Args:
        ids: the document of each position, integers of shape (N,) or (B, N).
        key_ids: the documents of the keys, if queries and keys are different sequences.

    Returns:
        The mask.

    Raises:
        MaskError: the ids are not integers.

    Example:
        >>> from qkv.masks.lower import matrix
        >>> matrix(documents(torch.tensor([0, 0, 1])), 3, 3).int()
        tensor([[1, 1, 0],
                [1, 1, 0],
                [0, 0, 1]], dtype=torch.int32)
    """
    for name, tensor in (("ids", ids), ("key_ids", key_ids)):
        if (tensor is not None or name == "ids") and (
            not isinstance(tensor, Tensor) or tensor.ndim == 0 or _fractional(tensor)
        ):
            raise MaskError(f"documents({name})", "an integer tensor (..., N)", _kind(tensor), "One id per position.")
    return Documents(ids, key_ids)


@checked
def dense(tensor: Tensor) -> Dense:
    """Use a bool tensor that broadcasts to (..., Q, K) as a mask.

    Args:
        tensor: True where the query may see the key.

    Returns:
        The mask.

    Raises:
        MaskError: the tensor is not bool.

    Example:
        >>> (dense(torch.tensor([[True, False]])) & causal()).left.tensor
        tensor([[ True, False]])
    """
    if not isinstance(tensor, Tensor) or tensor.dtype != torch.bool:
        raise MaskError(
            "dense(tensor)", "a bool tensor (True: may attend)", _kind(tensor), "Compare first: tensor != 0."
        )
    return Dense(tensor)


def _integer(item: int | Tensor, argument: str) -> int | Tensor:
    plain = isinstance(item, int) and not isinstance(item, bool)
    if plain or (isinstance(item, Tensor) and not _fractional(item)) or isinstance(item, torch.SymInt):
        return item
    hint = "Use .long()." if isinstance(item, Tensor) else "Example: torch.tensor([20, 13])."
    raise MaskError(argument, "an integer or an integer tensor per item", _kind(item), hint)


def _fractional(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool


def _kind(item: object) -> str:
    return f"dtype {item.dtype}" if isinstance(item, Tensor) else repr(item)
