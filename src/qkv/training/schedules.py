"""The learning rate of each update: a pure function of its number.

All schedules rise linearly to the peak during the warm-up, s/w, which takes at most half of the updates. After it, with
s the update (from 1), w the warm-up and n the number of updates:

| schedule | factor |
|---|---|
| constant | 1 |
| inverse-sqrt | √(w/s) (Vaswani et al. 2017, eq. 3, relative to its peak) |
| linear | 1 − (s − w)/(n − w + 1) |
| cosine | ½(1 + cos π(s − w)/(n − w + 1)) (Loshchilov and Hutter 2017, eq. 5, one cycle) |

The last two would reach zero one update after the last one, so that no update is wasted.
"""

import math

from qkv.training_settings import Schedule, Settings


def factor(schedule: Schedule, step: int, warmup: int, steps: int) -> float:
    """Compute the part of the peak learning rate that an update uses.

    Args:
        schedule: the schedule after the warm-up.
        step: the update's number, from 1 to `steps`.
        warmup: number of updates until the peak; 0 starts at the peak.
        steps: number of updates of the schedule.

    Returns:
        A number from 0 to 1.

    Source:
        Vaswani et al. 2017, eq. 3; Loshchilov and Hutter 2017, eq. 5.

    Example:
        >>> [round(factor("inverse-sqrt", step, warmup=4, steps=100), 3) for step in (1, 2, 4, 16, 64)]
        [0.25, 0.5, 1.0, 0.5, 0.25]
    """
    if step < warmup:
        return step / warmup
    progress = (step - warmup) / max(1, steps - warmup + 1)
    match schedule:
        case "constant":
            return 1.0
        case "inverse-sqrt":
            return math.sqrt(max(1, warmup) / step)
        case "linear":
            return 1.0 - progress
        case "cosine":
            return 0.5 * (1.0 + math.cos(math.pi * progress))


def learning_rate(settings: Settings, step: int) -> float:
    """Compute the learning rate of an update.

    Args:
        settings: peak, schedule, warm-up and number of updates.
        step: the update's number, from 1; beyond the schedule its last rate is kept.

    Returns:
        The learning rate.

    Example:
        >>> learning_rate(Settings(learning_rate=0.01, warmup=10), step=5)
        0.005
        >>> learning_rate(Settings(learning_rate=0.01, warmup=400, steps=200), step=100)
        0.01
        >>> ended = Settings(learning_rate=0.01, schedule="linear", warmup=0, steps=60, schedule_steps=19)
        >>> [round(learning_rate(ended, step), 4) for step in (1, 2, 19, 20, 60)]
        [0.0095, 0.009, 0.0005, 0.0005, 0.0005]
    """
    steps = settings.schedule_steps or settings.steps
    warmup = min(settings.warmup, steps // 2)
    return settings.learning_rate * factor(settings.schedule, min(step, steps), warmup, steps)
