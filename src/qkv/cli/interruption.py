"""What Ctrl-C does before a command runs, and from then on."""

import os
import signal
from types import FrameType

INTERRUPTED = 130
"""The exit status of a process that Ctrl-C ended."""


def end_quietly() -> None:
    """Until a command runs, let Ctrl-C end the process with one line: libraries that are being imported may be in any
    state, and there is nothing to save. A SIGINT that is ignored stays ignored.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def interruptible() -> None:
    """Let Ctrl-C raise `KeyboardInterrupt` again."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(_: int, __: FrameType | None) -> None:
    os.write(2, b"qkv: interrupted\n")
    os._exit(INTERRUPTED)
