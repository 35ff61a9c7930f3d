"""Checkpoints: atomically written folders, and the checkpoints of a run."""

from typing import TYPE_CHECKING

from qkv._lazy import lazy

if TYPE_CHECKING:
    from qkv.checkpoint.contents import Contents, TrainerState
    from qkv.checkpoint.folder import load, save, verify
    from qkv.checkpoint.rotation import best, latest_complete, locate, save_step
    from qkv.checkpoint.run import open_run, read_config

__all__ = [
    "Contents",
    "TrainerState",
    "best",
    "latest_complete",
    "load",
    "locate",
    "open_run",
    "read_config",
    "save",
    "save_step",
    "verify",
]

__getattr__ = lazy(
    __name__,
    {
        "Contents": "qkv.checkpoint.contents",
        "TrainerState": "qkv.checkpoint.contents",
        "best": "qkv.checkpoint.rotation",
        "latest_complete": "qkv.checkpoint.rotation",
        "load": "qkv.checkpoint.folder",
        "locate": "qkv.checkpoint.rotation",
        "open_run": "qkv.checkpoint.run",
        "read_config": "qkv.checkpoint.run",
        "save": "qkv.checkpoint.folder",
        "save_step": "qkv.checkpoint.rotation",
        "verify": "qkv.checkpoint.folder",
    },
)


def __dir__() -> list[str]:
    return __all__
