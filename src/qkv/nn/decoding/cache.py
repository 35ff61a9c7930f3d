"""Keys and values that are kept between decoding steps."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, final

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from qkv.compiled.strided import StridedArray, as_strided_array
from qkv.linalg.memory_pool import MemoryPool
from qkv.linalg.session import session_value
from qkv.values.parameters import readable

_LEAST_ROOM = 16


@dataclass(frozen=True, eq=False)
class Memory:
    """Keys, as the score wants them, and their values.

    Args:
        key: (B, K, E) or (B, G, K, E).
        value: (B, K, V) or (B, G, K, V).
        first: the position of the first key that is kept; more than 0 where earlier ones were forgotten.
        room: where keys and values lie with room behind them; `append` takes care of it.

    Example:
        >>> memory = Memory(torch.zeros(2, 3, 4), torch.zeros(2, 3, 5))
        >>> memory.append(memory).length, memory.select(torch.tensor([1])).key.shape
        (6, torch.Size([1, 3, 4]))
    """

    key: Tensor
    value: Tensor
    first: int = 0
    room: "_Room | None" = field(default=None, repr=False)

    @property
    def length(self) -> int:
        """How many keys there are, K."""
        return self.key.shape[-2]

    @property
    def end(self) -> int:
        """The position of the next key."""
        return self.first + self.length

    def append(self, later: "Memory") -> "Memory":
        """Put later keys and values behind these; neither operand changes.

        Outside of training there is room behind the keys for more, so that not every step copies all of them.
        """
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            key, value = (torch.cat(pair, dim=-2) for pair in ((self.key, later.key), (self.value, later.value)))
            return Memory(key, value, self.first)
        grown = self.grow(later.length)
        grown.key[..., self.length :, :] = later.key
        grown.value[..., self.length :, :] = later.value
        return grown

    def grow(self, count: int) -> "Memory":
        """These keys and values with room for more behind them, which holds anything until the caller writes there."""
        room = self.room
        if room is None or not room.free(self, count):
            room = _Room.holding(self, count)
        return room.grown(self, count)

    def last(self, count: int) -> "Memory":
        """Forget all but the last keys; those that stay keep their positions."""
        forgotten = max(0, self.length - count)
        return Memory(self.key[..., forgotten:, :], self.value[..., forgotten:, :], self.first + forgotten, self.room)

    def select(self, rows: Tensor) -> "Memory":
        """Take rows of the batch: fewer, repeated or reordered; rows (R,), int64."""
        if self.room is None or torch.is_grad_enabled():
            return Memory(self.key.index_select(0, rows), self.value.index_select(0, rows), self.first)
        return _Room.chosen(self, rows)

    @cached_property
    def laid(self) -> tuple[StridedArray, StridedArray] | None:
        """Where keys (B, H, K, E) and values (B, H, K, V) lie, as compiled passes read them; None where they do not."""
        if self.room is None:
            return (
                (as_strided_array(self.key), as_strided_array(self.value))
                if _plain(self.key) and _plain(self.value)
                else None
            )
        if self.room.arrays is None:
            return None
        apart = self.key.stride()[:3], self.value.stride()[:3]
        before, (keys, values) = self.first - self.room.start, self.room.arrays
        return StridedArray(keys[before * apart[0][2] :], apart[0]), StridedArray(
            values[before * apart[1][2] :], apart[1]
        )


@final
@dataclass(eq=False)
class _Room:
    """Tensors longer than the keys and values in them, shared by the memories that grew in them one after another.

    Only the memory that reaches to what is filled may grow in place: an earlier one, whose keys a later one has
    followed already, gets a room of its own. So no memory ever changes.
    """

    key: Tensor
    value: Tensor
    start: int
    filled: int

    @classmethod
    def holding(cls, memory: Memory, more: int) -> "_Room":
        """A copy of a memory with room for twice as much."""
        length = memory.length
        size = max(2 * (length + more), _LEAST_ROOM)
        tensors = []
        for part in (memory.key, memory.value):
            tensors.append(_empty(part, part.shape[0], size))
            tensors[-1][..., :length, :] = part
        return cls(tensors[0], tensors[1], memory.first, length)

    @staticmethod
    def chosen(memory: Memory, rows: Tensor) -> Memory:
        """Rows of a memory, with room for one more key: a beam chooses rows before each, and copies them once."""
        length, tensors = memory.length, []
        for part in (memory.key, memory.value):
            tensors.append(_empty(part, rows.shape[0], length + 1))
            torch.index_select(part, 0, rows, out=tensors[-1][..., :length, :])
        room = _Room(tensors[0], tensors[1], memory.first, length)
        return Memory(room.key[..., :length, :], room.value[..., :length, :], memory.first, room)

    def free(self, memory: Memory, more: int) -> bool:
        """Whether a memory ends where this is filled, and there is room behind."""
        return memory.end - self.start == self.filled and self.filled + more <= self.key.shape[-2]

    def grown(self, memory: Memory, count: int) -> Memory:
        """The memory with room for more, here."""
        self.filled += count
        begin, length = memory.first - self.start, memory.length + count
        return Memory(self.key.narrow(-2, begin, length), self.value.narrow(-2, begin, length), memory.first, self)

    @cached_property
    def arrays(self) -> tuple[NDArray[Any], NDArray[Any]] | None:
        """All of it, flat, as it lies: (B, K, H, E) and (B, K, H, V); None where compiled passes do not read it."""
        if not (_plain(self.key) and _plain(self.value)):
            return None
        return self.key.transpose(-3, -2).view(-1).numpy(), self.value.transpose(-3, -2).view(-1).numpy()


def _plain(part: Tensor) -> bool:
    """Whether the numbers are float32 by head, and each head's lie together."""
    return part.ndim == 4 and part.dtype == torch.float32 and part.stride(3) == 1 and readable(part)


def _empty(part: Tensor, rows: int, length: int) -> Tensor:
    """Room of a part's kind, all heads of a position beside each other: so projections give them, so a step reads."""
    by_head = part.ndim > 3
    inner = (*part.shape[1:-3], length, part.shape[-3]) if by_head else (*part.shape[1:-2], length)
    shape = (rows, *inner, part.shape[-1])
    reused = session_value(MemoryPool) if part.dtype == torch.float32 and readable(part) else None
    found = part.new_empty(shape) if reused is None else reused.tensor(shape)
    return found.transpose(-3, -2) if by_head else found


@final
class Rows(nn.Module):
    """Where a decoding batch begins, and loses or reorders rows: an identity that a forward hook can see.

    A model calls it with all its rows and `start=True` when it reads a new source, and with the chosen ones in
    `select`; the recorder follows each row through it.

    Example:
        >>> Rows()(torch.arange(2), start=True)
        tensor([0, 1])
    """

    def forward(self, rows: Tensor, *, start: bool = False) -> Tensor:
        """Return the rows.

        Args:
            rows: indices into the batch as it was (R,), int64.
            start: whether this is a new batch.

        Returns:
            `rows`.
        """
        return rows
