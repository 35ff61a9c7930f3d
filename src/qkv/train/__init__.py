"""Training: a plain PyTorch loop that is independent of the task.

The module itself can be called: `qkv.train("translate", source=…, target=…, out=…)` trains a task, see
`qkv.tasks.train.train`.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from qkv._lazy import lazy

if TYPE_CHECKING:
    from qkv.train.average import average_checkpoints, last_checkpoints
    from qkv.train.loop import train
    from qkv.train.loss import label_smoothed_loss
    from qkv.train.outcome import Outcome
    from qkv.train.protocols import Task
    from qkv.train.schedules import learning_rate
    from qkv.train.seeds import seed_everything
    from qkv.train.settings import Settings

__all__ = [
    "Outcome",
    "Settings",
    "Task",
    "average_checkpoints",
    "label_smoothed_loss",
    "last_checkpoints",
    "learning_rate",
    "seed_everything",
    "train",
]

__getattr__ = lazy(
    __name__,
    {
        "Outcome": "qkv.train.outcome",
        "Settings": "qkv.train.settings",
        "Task": "qkv.train.protocols",
        "average_checkpoints": "qkv.train.average",
        "label_smoothed_loss": "qkv.train.loss",
        "last_checkpoints": "qkv.train.average",
        "learning_rate": "qkv.train.schedules",
        "seed_everything": "qkv.train.seeds",
        "train": "qkv.train.loop",
    },
)


class _Callable(ModuleType):
    """A module that can be called: the package `qkv.train` has the name of the function."""

    def __call__(self, task: str, **settings: Any) -> Any:
        """Train a task; it is found by its name, because tasks lie above this package."""
        return import_module("qkv.tasks.train").train(task, **settings)


sys.modules[__name__].__class__ = _Callable


def __dir__() -> list[str]:
    return __all__
