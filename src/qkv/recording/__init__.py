"""Recording what a running model attends to, for later inspection or saving to a file."""

from typing import TYPE_CHECKING

from qkv._lazy import lazy

if TYPE_CHECKING:
    from qkv.recording.recorder import record
    from qkv.recording.trace import Trace
    from qkv.recording.trace_reader import read

__all__ = ["Trace", "read", "record"]

__getattr__ = lazy(
    __name__, {"Trace": "qkv.recording.trace", "read": "qkv.recording.trace_reader", "record": "qkv.recording.recorder"}
)


def __dir__() -> list[str]:
    return __all__
