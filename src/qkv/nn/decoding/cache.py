"""Keys and values that are kept between decoding steps."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, final

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from qkv.compiled.strided import StridedArray, as_strided_array
from qkv.errors import ShapeError
from qkv.linalg.memory_pool import MemoryPool
from qkv.linalg.session import DecodingSession
from qkv.shapes import show
from qkv.values.checked import checked, explained, explained_by
from qkv.values.execution import readable, transformed
from qkv.values.rows import expect_rows, select_rows

_MIN_POSITIONS = 16
"""Positions in the smallest buffer."""


@explained
@dataclass(frozen=True, eq=False)
class Memory:
    """Projected keys and their values, a value that never changes.

    Args:
        key: (B, K, E) or (B, G, K, E).
        value: (B, K, V) or (B, G, K, V).
        first: the position of the first key that is kept; more than 0 if earlier ones were dropped.
        buffer: the longer tensors that `key` and `value` are views of; None if they are not. `append` makes it.

    Example:
        >>> memory = Memory(torch.zeros(2, 3, 4), torch.zeros(2, 3, 5))
        >>> memory.append(memory).length, memory.select(torch.tensor([1])).key.shape
        (6, torch.Size([1, 3, 4]))
    """

    key: Tensor
    value: Tensor
    first: int = 0
    buffer: "_GrowingBuffer | None" = field(default=None, repr=False)

    @property
    def length(self) -> int:
        """The number of keys, K."""
        return self.key.shape[-2]

    @property
    def end(self) -> int:
        """The position of the next key."""
        return self.first + self.length

    def append(self, later: "Memory", session: DecodingSession | None = None) -> "Memory":
        """Return these keys and values followed by later ones; neither operand changes.

        Without gradients the buffer has free space after them, so that most steps copy only the new keys and values.

        Args:
            later: keys and values of the positions that follow.
            session: gives the memory for them, if they are float32 on the CPU.

        Raises:
            ShapeError: their sizes differ in more than the number of keys.
        """
        self._expect_alike(later)
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or transformed():
            key, value = (torch.cat(pair, dim=-2) for pair in ((self.key, later.key), (self.value, later.value)))
            return Memory(key, value, self.first)
        grown = self.grow(later.length, session)
        grown.key[..., self.length :, :] = later.key
        grown.value[..., self.length :, :] = later.value
        return grown

    def _expect_alike(self, later: "Memory") -> None:
        """Check batch, heads and width of later keys and values, which writing to the buffer would broadcast."""
        for name, part, more in (("key", self.key, later.key), ("value", self.value, later.value)):
            if part.shape[:-2] != more.shape[:-2] or part.shape[-1] != more.shape[-1]:
                expected = f"sizes {show(tuple(part.shape))} as before, apart from the number of keys"
                hint = "What follows has the same rows, heads and width; `select` chooses the rows."
                raise ShapeError(name, expected, show(tuple(more.shape)), hint)

    def grow(self, count: int, session: DecodingSession | None = None) -> "Memory":
        """Return these keys and values followed by uninitialized ones, which the caller must write.

        Args:
            count: how many.
            session: as for `append`.
        """
        buffer = self.buffer
        if buffer is None or not buffer.fits(self, count):
            size = max(2 * (self.length + count), _MIN_POSITIONS)
            buffer = _GrowingBuffer.copied(self, size, None if session is None else session.memory)
        return buffer.extend(self, count)

    def last(self, count: int) -> "Memory":
        """Drop all but the last keys; those that stay keep their positions."""
        dropped = max(0, self.length - count)
        return Memory(self.key[..., dropped:, :], self.value[..., dropped:, :], self.first + dropped, self.buffer)

    @explained_by(lambda self, rows: expect_rows(rows, len(self.key)))
    def select(self, rows: Tensor) -> "Memory":
        """Take rows of the batch: fewer, repeated or reordered; rows (R,), int64."""
        if self.buffer is None or torch.is_grad_enabled():
            return Memory(select_rows(self.key, rows), select_rows(self.value, rows), self.first)
        if not isinstance(rows, Tensor):
            expect_rows(rows, len(self.key))
        # Space for one more key: a beam selects rows before each step, and should copy them once.
        return _GrowingBuffer.copied(self, self.length + 1, self.buffer.pool, rows).extend(self, 0)

    @cached_property
    def arrays(self) -> tuple[StridedArray, StridedArray] | None:
        """Keys (B, H, K, E) and values (B, H, K, V) as compiled kernels read them; None if they cannot."""
        if self.buffer is None:
            both = _readable(self.key) and _readable(self.value)
            return (as_strided_array(self.key), as_strided_array(self.value)) if both else None
        buffers = self.buffer.arrays
        if buffers is None:
            return None
        parts = []
        for part, numbers in zip((self.key, self.value), buffers, strict=True):
            strides = part.stride()[:3]
            parts.append(StridedArray(numbers[(self.first - self.buffer.start) * strides[2] :], strides))
        return parts[0], parts[1]


@checked
@final
@dataclass(frozen=True, eq=False)
class MaskedMemory:
    """Projected keys and values, and a mask of those that each row may see.

    Args:
        memory: keys and values (B, G, K, ...).
        visible: which keys a row may see, bool (B, K).
    """

    memory: Memory
    visible: Tensor

    @property
    def mask(self) -> Tensor:
        """The mask of any query, (B, 1, 1, K)."""
        return self.visible[:, None, None]

    def select(self, rows: Tensor) -> "MaskedMemory":
        """Take rows of the batch: fewer, repeated or reordered."""
        return MaskedMemory(self.memory.select(rows), select_rows(self.visible, rows))


@final
@dataclass(eq=False)
class _GrowingBuffer:
    """Tensors with free space behind their keys and values, shared by the memories that grew in them.

    Only a memory that ends where the filled part ends may grow in place. An earlier one, which a later one has already
    continued, is copied to a buffer of its own, so that no memory ever changes.
    """

    key: Tensor
    value: Tensor
    start: int
    filled: int
    pool: MemoryPool | None

    @classmethod
    def copied(cls, memory: Memory, size: int, pool: MemoryPool | None, rows: Tensor | None = None) -> "_GrowingBuffer":
        """Copy all rows of a memory, or the given ones, to a new buffer for `size` positions."""
        length, tensors = memory.length, []
        for part in (memory.key, memory.value):
            tensors.append(_empty(part, len(part if rows is None else rows), size, pool))
            filled = tensors[-1][..., :length, :]
            if rows is None:
                filled.copy_(part)
            else:
                torch.index_select(part, 0, rows, out=filled)
        return cls(tensors[0], tensors[1], memory.first, length, pool)

    def fits(self, memory: Memory, more: int) -> bool:
        """Return whether a memory may grow in place by `more` positions."""
        # Outside inference mode, PyTorch refuses to write to tensors that were made in it.
        writable = not self.key.is_inference() or torch.is_inference_mode_enabled()
        return writable and memory.end - self.start == self.filled and self.filled + more <= self.key.shape[-2]

    def extend(self, memory: Memory, count: int) -> Memory:
        """Return the memory that also includes the next `count` positions of this buffer."""
        self.filled += count
        begin, length = memory.first - self.start, memory.length + count
        return Memory(self.key.narrow(-2, begin, length), self.value.narrow(-2, begin, length), memory.first, self)

    @cached_property
    def arrays(self) -> tuple[NDArray[Any], NDArray[Any]] | None:
        """The whole buffer in its stored order, (B, K, H, E) and (B, K, H, V), flat; None if kernels cannot read it."""
        if not (_readable(self.key) and _readable(self.value)):
            return None
        return self.key.transpose(-3, -2).view(-1).numpy(), self.value.transpose(-3, -2).view(-1).numpy()


def _readable(part: Tensor) -> bool:
    """Return whether compiled kernels can read keys or values: float32, by head, the last dimension contiguous."""
    return part.ndim == 4 and part.dtype == torch.float32 and part.stride(3) == 1 and readable(part)


def _empty(part: Tensor, rows: int, length: int, pool: MemoryPool | None) -> Tensor:
    """Return uninitialized keys or values, all heads of a position together: projections give them in this order."""
    by_head = part.ndim > 3
    inner = (*part.shape[1:-3], length, part.shape[-3]) if by_head else (*part.shape[1:-2], length)
    shape = (rows, *inner, part.shape[-1])
    if pool is not None and part.dtype == torch.float32 and readable(part):
        memory = pool.tensor(shape)
    else:
        memory = part.new_empty(shape)
    return memory.transpose(-3, -2) if by_head else memory


@checked
@final
class BatchRows(nn.Module):
    """The rows of a decoding batch: an identity, so that a forward hook sees where a batch starts and how rows change.

    A model calls it with all rows and `start=True` when it reads a new source (`begin`), and with the chosen rows in
    `select`. A generation of another library calls it with no rows and `start=True` before it reads its source, and
    with `end=True` after its last step; generations may contain others. The recorder follows each row through these
    calls.

    Example:
        >>> BatchRows()(torch.arange(2), start=True)
        tensor([0, 1])
    """

    def forward(self, rows: Tensor, *, start: bool = False, end: bool = False) -> Tensor:
        """Return the rows.

        Args:
            rows: indices into the batch as it was (R,), int64.
            start: whether this is a new batch.
            end: whether a generation ends.

        Returns:
            `rows`.
        """
        return rows

    def begin(self, batch: Tensor) -> None:
        """Start a new batch (B, ...).

        Raises:
            ShapeError: it has no dimension.
        """
        if batch.ndim == 0:
            raise ShapeError("batch", "at least one dimension, (B, ...)", "()", "The first dimension counts rows.")
        self(torch.arange(batch.shape[0], device=batch.device), start=True)
