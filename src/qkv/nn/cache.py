"""Keys and values that are kept between decoding steps."""

from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor, nn

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
        room = self.room
        if room is None or not room.free(self, later.length):
            room = _Room.holding(self, later.length)
        return room.extended(self, later)

    def last(self, count: int) -> "Memory":
        """Forget all but the last keys; those that stay keep their positions."""
        forgotten = max(0, self.length - count)
        return Memory(self.key[..., forgotten:, :], self.value[..., forgotten:, :], self.first + forgotten, self.room)

    def select(self, rows: Tensor) -> "Memory":
        """Take rows of the batch: fewer, repeated or reordered; rows (R,), int64."""
        if self.room is None or torch.is_grad_enabled():
            return Memory(self.key.index_select(0, rows), self.value.index_select(0, rows), self.first)
        return _Room.chosen(self, rows)


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

    def extended(self, memory: Memory, later: Memory) -> Memory:
        """The memory with later keys and values, here."""
        begin, end = self.filled, self.filled + later.length
        self.key[..., begin:end, :] = later.key
        self.value[..., begin:end, :] = later.value
        self.filled = end
        kept = slice(memory.first - self.start, end)
        return Memory(self.key[..., kept, :], self.value[..., kept, :], memory.first, self)


def _empty(part: Tensor, rows: int, length: int) -> Tensor:
    """Room of a part's kind, all heads of a position beside each other: so projections give them, so a step reads."""
    if part.ndim < 4:
        return part.new_empty(rows, *part.shape[1:-2], length, part.shape[-1])
    return part.new_empty(rows, *part.shape[1:-3], length, part.shape[-3], part.shape[-1]).transpose(-3, -2)


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
