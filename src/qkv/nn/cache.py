"""Keys and values that are kept between decoding steps."""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn


@dataclass(frozen=True, eq=False)
class Memory:
    """Keys, as the score wants them, and their values.

    Args:
        key: (B, K, E) or (B, G, K, E).
        value: (B, K, V) or (B, G, K, V).
        first: the position of the first key that is kept; more than 0 where earlier ones were forgotten.

    Example:
        >>> memory = Memory(torch.zeros(2, 3, 4), torch.zeros(2, 3, 5))
        >>> memory.append(memory).length, memory.select(torch.tensor([1])).key.shape
        (6, torch.Size([1, 3, 4]))
    """

    key: Tensor
    value: Tensor
    first: int = 0

    @property
    def length(self) -> int:
        """How many keys there are, K."""
        return self.key.shape[-2]

    @property
    def end(self) -> int:
        """The position of the next key."""
        return self.first + self.length

    def append(self, later: "Memory") -> "Memory":
        """Put later keys and values behind these; neither operand changes."""
        key, value = (torch.cat(pair, dim=-2) for pair in ((self.key, later.key), (self.value, later.value)))
        return Memory(key, value, self.first)

    def last(self, count: int) -> "Memory":
        """Forget all but the last keys; those that stay keep their positions."""
        forgotten = max(0, self.length - count)
        return Memory(self.key[..., forgotten:, :], self.value[..., forgotten:, :], self.first + forgotten)

    def select(self, rows: Tensor) -> "Memory":
        """Take rows of the batch: fewer, repeated or reordered; rows (R,), int64."""
        return Memory(self.key.index_select(0, rows), self.value.index_select(0, rows), self.first)


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
