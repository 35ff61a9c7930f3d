"""Training: a plain PyTorch loop that is independent of the task; `qkv.train` trains a task with it."""

from typing import TYPE_CHECKING

from qkv._lazy import lazy

if TYPE_CHECKING:
    from qkv.checkpoint.average import average_checkpoints, last_checkpoints
    from qkv.training.events import Outcome
    from qkv.training.loss import label_smoothed_loss
    from qkv.training.protocols import Task
    from qkv.training.schedules import learning_rate
    from qkv.training.seeds import seed_everything
    from qkv.training.trainer import train
    from qkv.training_settings import Settings

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
        "Outcome": "qkv.training.events",
        "Settings": "qkv.training_settings",
        "Task": "qkv.training.protocols",
        "average_checkpoints": "qkv.checkpoint.average",
        "label_smoothed_loss": "qkv.training.loss",
        "last_checkpoints": "qkv.checkpoint.average",
        "learning_rate": "qkv.training.schedules",
        "seed_everything": "qkv.training.seeds",
        "train": "qkv.training.trainer",
    },
)


def __dir__() -> list[str]:
    return __all__
