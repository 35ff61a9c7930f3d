"""Timing contenders: alternating in one run, so that a slow moment of the machine affects all of them."""

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import torch

Run = Callable[[], object]

TURN_MS = 10.0
"""A contender that is faster than this is called several times per turn."""

WARM_MS = 200.0
"""A contender that is faster than this is called once, untimed, before its turn: caches and threads are cold only
because of the previous contender.
"""

WARM_CALLS = 3
"""How often such a contender is called to find out how many calls a turn needs; the fastest of them counts."""

REST = 0.005
"""Seconds before each turn, in which the threads of the previous contender stop spinning."""


@final
@dataclass(frozen=True)
class Watch:
    """The clock and the time per contender.

    Attributes:
        clock: returns seconds.
        seconds: total seconds per contender; each gets at least two turns.
    """

    clock: Callable[[], float] = time.perf_counter
    seconds: float = 4.0


@final
@dataclass(frozen=True)
class Patience:
    """The number of turns of a contender.

    Attributes:
        seconds: total seconds per contender.
        least, most: minimum and maximum number of turns.
    """

    seconds: float = 4.0
    least: int = 2
    most: int = 41


@final
@dataclass(frozen=True)
class Ratio:
    """The time of one contender relative to another: the median of paired ratios, and their quartiles."""

    middle: float
    low: float
    high: float


def by_turns(
    runs: Mapping[str, Run], patience: Mapping[str, Patience], clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Time each contender in milliseconds, turn by turn, after a warm-up.

    Args:
        runs: functions by name.
        patience: number of turns by name.
        clock: returns seconds.

    Returns:
        The milliseconds of one call in each turn. A slow contender has fewer turns, the first ones.
    """
    times, calls, turns, warmed = {}, {}, {}, set()
    order, draw = list(runs), random.Random(0)
    # The first call of all imports modules and starts threads that the other contenders then find.
    runs[order[0]]()
    first = {name: _time(run, 1, clock) for name, run in runs.items()}
    for name, run in runs.items():
        once = first[name]
        if once < WARM_MS:
            warmed.add(name)
            once = min(_time(run, 1, clock) for _ in range(WARM_CALLS))
        calls[name] = max(1, int(TURN_MS / max(once, 1e-3)))
        allowed, turn_ms = patience[name], once * calls[name] + 1e-3
        turns[name] = min(allowed.most, max(allowed.least, int(1e3 * allowed.seconds / turn_ms)))
        times[name] = [] if name in warmed else [once]
    for _ in range(max(turns.values())):
        # Vary the order, so that no contender always follows the same one.
        draw.shuffle(order)
        for name in order:
            if len(times[name]) < turns[name]:
                time.sleep(REST)
                if name in warmed:
                    runs[name]()
                times[name].append(_time(runs[name], calls[name], clock))
    return times


def _time(run: Run, calls: int, clock: Callable[[], float]) -> float:
    start = clock()
    for _ in range(calls):
        run()
    return 1e3 * (clock() - start) / calls


def microseconds(run: Run, calls: int) -> float:
    """Return the microseconds of one call, averaged over several: of processor time, if PyTorch has one thread."""
    return 1e3 * _time(run, calls, time.thread_time if torch.get_num_threads() == 1 else time.perf_counter)


def ratio(theirs: Sequence[float], ours: Sequence[float]) -> Ratio:
    """Return the ratio of two contenders from turns that are adjacent in time.

    Example:
        >>> ratio([4.0, 9.0, 8.0], [2.0, 3.0, 2.0, 2.0])
        Ratio(middle=3.0, low=2.0, high=4.0)
    """
    ratios = sorted(a / b for a, b in zip(theirs, ours, strict=False))
    quarter = len(ratios) // 4
    low, high = (ratios[0], ratios[-1]) if len(ratios) < 4 else (ratios[quarter], ratios[-1 - quarter])
    return Ratio(statistics.median(ratios), low, high)
