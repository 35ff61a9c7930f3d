"""Recording what a running model attends to, and changing what its heads compute."""

from typing import TYPE_CHECKING

from qkv._lazy import lazy

if TYPE_CHECKING:
    from qkv.recording.head_effects import Effects as Effects
    from qkv.recording.head_effects import effects as effects
    from qkv.recording.patching import patch as patch
    from qkv.recording.recorder import record as record
    from qkv.recording.trace import Trace as Trace
    from qkv.recording.trace_reader import read as read


__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "qkv.recording.head_effects": "Effects effects",
        "qkv.recording.patching": "patch",
        "qkv.recording.recorder": "record",
        "qkv.recording.trace": "Trace",
        "qkv.recording.trace_reader": "read",
    },
)
