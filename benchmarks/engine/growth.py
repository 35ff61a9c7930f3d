"""A row that shows growth: qkv alone at increasing sizes, and the exponent between the last ones."""

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from benchmarks.engine.cases import FORWARD, make
from benchmarks.engine.mechanisms import Size
from benchmarks.engine.timing import Patience, Watch, by_turns

SIZES = (15_625, 31_250, 62_500, 125_000, 250_000, 500_000, 1_000_000)


@final
@dataclass(frozen=True)
class Growth:
    """A row: one head, equally many queries and keys, forward.

    Attributes:
        name: the row's name for `--row`.
        mechanism: one of `MECHANISMS`.
        width, value_width: widths of the problem.
        sizes: numbers of keys.
    """

    name: str
    mechanism: str
    width: int
    value_width: int
    sizes: tuple[int, ...] = SIZES

    def measure(self, say: Callable[[str], None], watch: Watch) -> dict[str, Any]:
        """Time every size, alternating.

        Args:
            say: called with lines of progress.
            watch: the clock and the time per contender.

        Returns:
            The record to store, as JSON values.
        """
        cases = {n: make(self.mechanism, Size((1,), n, n, self.width, self.value_width)) for n in self.sizes}
        runs = {str(n): case.run(case.ours(), FORWARD) for n, case in cases.items()}
        for run in runs.values():
            run()
        times = by_turns(runs, dict.fromkeys(runs, Patience(watch.seconds / 2, most=11)), watch.clock)
        medians = {n: statistics.median(times[str(n)]) for n in self.sizes}
        for n, ms in medians.items():
            say(f"  {n:>9,} keys {ms:11.3f} ms")
        backends = {n: case.plan(FORWARD).backend for n, case in cases.items()}
        return {
            "kind": "growth",
            "mechanism": self.mechanism,
            "ms": {str(n): round(ms, 3) for n, ms in medians.items()},
            "exponent": round(exponent(medians), 3),
            "backend": backends[self.sizes[-1]],
        }


def exponent(times: dict[int, float]) -> float:
    """Return the slope of log time over log size in the larger half of the sizes, by least squares.

    Example:
        >>> exponent({1: 5.0, 2: 7.0, 4: 16.0, 8: 64.0})
        2.0
    """
    points = [(math.log(n), math.log(ms)) for n, ms in sorted(times.items())][len(times) // 2 :]
    mean_x, mean_y = (statistics.fmean(column) for column in zip(*points, strict=True))
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)
    return round(slope, 12)
