"""How a command ends early: by Ctrl-C, or because memory runs out. It imports nothing large."""

import os
import signal
import sys
from types import FrameType

from qkv.errors import OutOfMemoryError, QkvError, on_command_line, out_of_memory_text
from qkv.system import has_addresses

INTERRUPTED = 130
"""The exit status of a process that Ctrl-C ended."""
BAD_INPUT = 2
"""The exit code of a command that refuses its input, or runs out of memory."""
_LESS = (
    f"Process less at once: fewer tokens per batch ({on_command_line('batch_tokens')}), a smaller model, "
    f"a smaller {on_command_line('beam')}, shorter texts; `qkv explain` shows how much memory attention takes."
)
_NAME, _EXPECTED = "memory", "room for this"
_PLAIN = f"qkv: {QkvError(_NAME, _EXPECTED, 'none left', _LESS)}\n".encode()
_LOADED = 1 << 30
"""Bytes of address space. PyTorch 2.13 takes 564 MiB while it is imported, scikit-learn for a regression 200 more."""


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


def expect_addresses() -> None:
    """Refuse an address-space limit too low to import PyTorch, under which some libraries abort without a message.

    Raises:
        OutOfMemoryError: it leaves less, and PyTorch has not been imported yet.
    """
    if "torch" not in sys.modules and not has_addresses(_LOADED):
        expected = "1 GiB of address space, in which PyTorch and other libraries are loaded"
        raise OutOfMemoryError(_NAME, expected, "a limit that leaves less", "Raise it: `ulimit -v`.")


def report_out_of_memory(error: BaseException) -> bool:
    """Write one message to standard error if an error says that memory ran out.

    Args:
        error: the exception.

    Returns:
        Whether it does.

    Example:
        >>> report_out_of_memory(ValueError("size"))
        False
    """
    try:
        reason = out_of_memory_text(error)
        if reason is None:
            return False
        print(f"qkv: {QkvError(_NAME, _EXPECTED, reason, _LESS)}", file=sys.stderr)  # noqa: T201
    except MemoryError:  # not even for the message
        os.write(2, _PLAIN)
    return True
