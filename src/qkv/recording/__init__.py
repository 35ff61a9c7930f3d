"""Recording what a running model attends to, and changing what its heads compute."""

from typing import TYPE_CHECKING

from qkv._lazy import lazy

if TYPE_CHECKING:
    from qkv.recording.effects import Effects, effects
    from qkv.recording.patching import patch
    from qkv.recording.recorder import record
    from qkv.recording.trace import Trace
    from qkv.recording.trace_reader import read

__all__ = ["Effects", "Trace", "effects", "patch", "read", "record"]

__getattr__ = lazy(
    __name__,
    {
        "Effects": "qkv.recording.effects",
        "Trace": "qkv.recording.trace",
        "effects": "qkv.recording.effects",
        "patch": "qkv.recording.patching",
        "read": "qkv.recording.trace_reader",
        "record": "qkv.recording.recorder",
    },
)


def __dir__() -> list[str]:
    return __all__
