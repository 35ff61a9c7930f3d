"""A forked child has none of its parent's threads: PyTorch's operators would wait for them for ever.

The guide for data loaders in docs/training.md says what to do instead.
"""

import os
import threading
from pathlib import Path

import numpy as np  # noqa: F401 - its own threads start when it is imported
import torch

from qkv.errors import ForkError, error_message

lost = False
"""Whether this process was forked from one in which PyTorch's threads had run."""

_TASKS = Path("/proc/self/task")
_HINT = (
    "The threads of the process that was forked do not exist in its child, and PyTorch waits for them: call "
    'torch.set_num_threads(1) first thing in the child, or start it with multiprocessing.get_context("spawn").'
)
_running = False


def expect_threads(what: str) -> None:
    """Refuse to compute with threads that a fork has lost; called only if `lost`.

    Args:
        what: what would be computed.

    Raises:
        ForkError: PyTorch would wait for threads that do not exist.
    """
    threads = torch.get_num_threads()
    if threads > 1:
        raise ForkError(error_message(what, "one thread in a forked child", f"{threads} threads", _HINT))


def _of_libraries() -> int | None:
    """Return how many threads Python does not know; None outside of Linux, where they cannot be counted."""
    try:
        return len(os.listdir(_TASKS)) - threading.active_count()
    except OSError:
        return None


_AT_START = _of_libraries()


def _before() -> None:
    # PyTorch's threads exist once an operator has used them. They cannot be told from those of other libraries, from
    # one that `torch.set_num_threads` starts, nor outside of Linux: a needless refusal is better than an endless wait.
    global _running  # noqa: PLW0603 - of the process
    now = _of_libraries()
    _running = torch.get_num_threads() > 1 and (now is None or _AT_START is None or now > _AT_START)


def _in_child() -> None:
    global lost  # noqa: PLW0603 - of the process
    lost = lost or _running


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_child=_in_child)
