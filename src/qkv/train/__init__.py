"""Training: a plain PyTorch loop that is independent of the task."""

from typing import TYPE_CHECKING

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


def __dir__() -> list[str]:
    return __all__
