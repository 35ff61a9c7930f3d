"""Checkpoints: atomically written folders, and the checkpoints of a run."""

from typing import TYPE_CHECKING

from qkv._lazy import lazy

if TYPE_CHECKING:
    from qkv.checkpoint.contents import Contents as Contents
    from qkv.checkpoint.contents import TrainerState as TrainerState
    from qkv.checkpoint.folder import load as load
    from qkv.checkpoint.folder import save as save
    from qkv.checkpoint.folder import verify as verify
    from qkv.checkpoint.rotation import best as best
    from qkv.checkpoint.rotation import latest_complete as latest_complete
    from qkv.checkpoint.rotation import locate as locate
    from qkv.checkpoint.rotation import save_step as save_step
    from qkv.checkpoint.run import open_run as open_run
    from qkv.checkpoint.run import read_config as read_config


__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "qkv.checkpoint.contents": "Contents TrainerState",
        "qkv.checkpoint.folder": "load save verify",
        "qkv.checkpoint.rotation": "best latest_complete locate save_step",
        "qkv.checkpoint.run": "open_run read_config",
    },
)
