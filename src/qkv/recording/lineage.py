"""Where the rows of a batch come from, while some leave, repeat or change places during decoding."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

from torch import Tensor, nn


class Moment(NamedTuple):
    """A batch is read, or its rows change: row r is what was row `rows[r]`, or the r-th row of a new source."""

    rows: Tensor
    start: bool


@final
@dataclass(frozen=True)
class Lineage:
    """Every change of the rows of a batch, in order.

    Recording one keeps a tensor and computes nothing; what follows from them is computed when it is asked for.

    Args:
        moments: what happened.

    Example:
        >>> import torch
        >>> lineage = Lineage([Moment(torch.arange(2), True), Moment(torch.tensor([1, 1, 0]), False)])
        >>> lineage.rows(1), lineage.reading(1)
        ([1, 1, 0], 0)
    """

    moments: list[Moment] = field(default_factory=list)

    @property
    def now(self) -> int:
        """The last moment; −1 where nothing was said of rows yet."""
        return len(self.moments) - 1

    def follow(self, module: nn.Module, given: tuple[Tensor, ...], options: dict[str, Any], rows: Tensor) -> None:
        """Take note: a forward hook of `nn.cache.Rows`."""
        start = bool(options.get("start", False))
        if start or self.moments:
            self.moments.append(Moment(rows, start))

    def rows(self, moment: int) -> list[int] | None:
        """For each row of the batch then, which row of the source that was read it continues."""
        if moment < 0:
            return None
        begin = max(at for at in range(moment + 1) if self.moments[at].start)
        rows = self.moments[begin].rows
        for change in self.moments[begin + 1 : moment + 1]:
            rows = rows.index_select(0, change.rows)
        found: list[int] = rows.tolist()
        return found

    def reading(self, moment: int) -> int:
        """How many batches had been read before the one of a moment."""
        return max(sum(change.start for change in self.moments[: moment + 1]) - 1, 0)

    def path(self, moment: int, place: int) -> dict[int, int]:
        """Where a row stood at each moment since its source was read, from where it stood at one of them."""
        places = {moment: place}
        while moment >= 0 and not self.moments[moment].start:
            rows = self.moments[moment].rows
            place = int(rows[place]) if 0 <= place < rows.numel() else -1
            moment -= 1
            places[moment] = place
        return places
