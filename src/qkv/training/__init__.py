"""Training: a plain PyTorch loop that is independent of the task; `qkv.train` trains a task with it."""

from typing import TYPE_CHECKING

from qkv._lazy import lazy

if TYPE_CHECKING:
    from qkv.checkpoint.average import average_checkpoints as average_checkpoints
    from qkv.checkpoint.average import last_checkpoints as last_checkpoints
    from qkv.training.events import Outcome as Outcome
    from qkv.training.loss import label_smoothed_loss as label_smoothed_loss
    from qkv.training.protocols import Task as Task
    from qkv.training.schedules import learning_rate as learning_rate
    from qkv.training.seeds import seed_everything as seed_everything
    from qkv.training.trainer import train as train
    from qkv.training_settings import Settings as Settings


__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "qkv.checkpoint.average": "average_checkpoints last_checkpoints",
        "qkv.training.events": "Outcome",
        "qkv.training.loss": "label_smoothed_loss",
        "qkv.training.protocols": "Task",
        "qkv.training.schedules": "learning_rate",
        "qkv.training.seeds": "seed_everything",
        "qkv.training.trainer": "train",
        "qkv.training_settings": "Settings",
    },
)
