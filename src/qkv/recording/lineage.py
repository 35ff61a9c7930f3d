"""Where the rows of a batch come from as rows leave, repeat or change places during decoding."""

from dataclasses import dataclass, field
from typing import NamedTuple, final

from torch import Tensor


class Moment(NamedTuple):
    """A batch is encoded, or its rows change: row r was row `rows[r]` before, or is row r of a new source."""

    rows: Tensor
    start: bool


@final
@dataclass(frozen=True)
class Lineage:
    """Every change of the rows of a batch, in order.

    Recording a change stores a tensor and computes nothing; results are computed on demand.

    Args:
        moments: the changes.

    Example:
        >>> import torch
        >>> lineage = Lineage([Moment(torch.arange(2), True), Moment(torch.tensor([1, 1, 0]), False)])
        >>> lineage.rows(1)
        [1, 1, 0]
    """

    moments: list[Moment] = field(default_factory=list)

    @property
    def now(self) -> int:
        """The index of the last moment; −1 before any."""
        return len(self.moments) - 1

    def rows(self, moment: int) -> list[int] | None:
        """Return, for each row of the batch at that moment, the row of the source that it continues."""
        if moment < 0:
            return None
        begin = max(at for at in range(moment + 1) if self.moments[at].start)
        rows = self.moments[begin].rows
        if not rows.numel():
            return None  # in files of version 1, the end of a generation: a new batch follows
        for change in self.moments[begin + 1 : moment + 1]:
            rows = rows.index_select(0, change.rows)
        ids: list[int] = rows.tolist()
        return ids

    def path(self, moment: int, row: int) -> dict[int, int]:
        """Return the position of a row at each moment since its source was read, given its position at one of them."""
        row_at = {moment: row}
        while moment >= 0 and not self.moments[moment].start:
            rows = self.moments[moment].rows
            row = int(rows[row]) if 0 <= row < rows.numel() else -1
            moment -= 1
            row_at[moment] = row
        return row_at
