"""Which positions of a sequence each process holds."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, final

import torch
from torch import Tensor

Arrangement = Literal["contiguous", "zigzag"]


@final
@dataclass(frozen=True)
class Layout:
    """The positions of every process.

    "contiguous" gives process r the r-th run of positions. "zigzag" gives it the r-th run from the start and the r-th
    from the end, so that all processes have as many pairs to compute under a causal mask. Runs have any length; where a
    part cannot be halved, its first run has one more.

    Args:
        arrangement: "contiguous" or "zigzag".
        counts: how many positions each process has.

    Source: Brandon et al. 2023, "Striped Attention", section 3 (balanced causal work); PyTorch's `context_parallel`
        and ring-flash-attention pair the runs like this.

    Example:
        >>> layout = Layout("zigzag", (3, 2))
        >>> layout.runs(0), layout.runs(1)
        ((range(0, 2), range(4, 5)), (range(2, 4),))
    """

    arrangement: Arrangement
    counts: tuple[int, ...]

    @classmethod
    def even(cls, arrangement: Arrangement, length: int, size: int) -> "Layout":
        """Divide a length among processes, as evenly as possible.

        Example:
            >>> Layout.even("contiguous", 5, 2).counts
            (2, 3)
        """
        cuts = [length * rank // size for rank in range(size + 1)]
        return cls(arrangement, tuple(stop - start for start, stop in pairwise(cuts)))

    @property
    def length(self) -> int:
        """How many positions there are."""
        return sum(self.counts)

    def runs(self, rank: int) -> tuple[range, ...]:
        """Return the runs of positions of a process in the order of its rows; none of them is empty."""
        firsts: Sequence[int] = self.counts
        if self.arrangement == "zigzag":
            firsts = [count - count // 2 for count in self.counts]
        start = sum(firsts[:rank])
        first = range(start, start + firsts[rank])
        stop = self.length - sum(count - half for count, half in zip(self.counts[:rank], firsts[:rank], strict=True))
        second = range(stop - (self.counts[rank] - firsts[rank]), stop)
        if first.stop == second.start:
            first, second = range(first.start, second.stop), range(0)
        return tuple(run for run in (first, second) if run)

    def pieces(self, rank: int) -> tuple[tuple[slice, range], ...]:
        """Return each run of a process with its place among the rows of the process."""
        start, pieces = 0, []
        for run in self.runs(rank):
            pieces.append((slice(start, start + len(run)), run))
            start += len(run)
        return tuple(pieces)

    def rows(self, rank: int, device: torch.device | None = None) -> range | Tensor:
        """Return the positions of a process: its one run, or all positions where it has two.

        Example:
            >>> Layout("contiguous", (3, 2)).rows(1), Layout("zigzag", (3, 2)).rows(0)
            (range(3, 5), tensor([0, 1, 4]))
        """
        runs = self.runs(rank)
        return self.positions(rank, device) if len(runs) > 1 else runs[0] if runs else range(0)

    def positions(self, rank: int, device: torch.device | None = None) -> Tensor:
        """Return the positions of a process, int64, in the order of its rows.

        Example:
            >>> Layout("zigzag", (3, 2)).positions(0)
            tensor([0, 1, 4])
        """
        runs = [torch.arange(run.start, run.stop, device=device) for run in self.runs(rank)]
        return torch.cat(runs) if runs else torch.arange(0, device=device)
