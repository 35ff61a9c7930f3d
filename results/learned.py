"""Whether a combination has learned, judged by its seeds and by models that cannot choose where to look."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Sample:
    """The figures of a cell, one for each seed that was trained.

    Args:
        values: percentages of strings written exactly.
    """

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean."""
        return statistics.mean(self.values)

    @property
    def deviation(self) -> float:
        """The standard deviation; 0 for one seed."""
        return statistics.stdev(self.values) if len(self.values) > 1 else 0.0


def has_learned(cell: Sample, controls: Sequence[Sample], strings: int) -> bool:
    """Return whether a cell's mean is three standard deviations above that of every control.

    The standard deviation is the largest of three: over the cell's seeds, over the control's, and 50/√n points, the
    largest that the percentage of n test strings can have by chance, so that seeds that agree by chance prove nothing.

    Args:
        cell: its figures.
        controls: figures of the same model without attention and with the same weight for every key.
        strings: n.

    Example:
        >>> has_learned(Sample((99.0, 98.0)), [Sample((20.0, 22.0))], 1000)
        True
        >>> has_learned(Sample((99.0, 20.0)), [Sample((20.0, 22.0))], 1000)
        False
    """
    floor = 50 / strings**0.5
    return all(cell.mean - control.mean >= 3 * max(cell.deviation, control.deviation, floor) for control in controls)
