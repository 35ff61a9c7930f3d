"""A forked child has none of its parent's threads, and PyTorch's operators would wait for them forever.

So the threads of PyTorch's OpenMP library end just before a fork; parent and child each start new ones when they next
compute. If the library cannot end them, the child refuses to compute with several threads.
"""

import os
import sys

lost = False
"""True if this process was forked from one whose threads could not be ended first."""

_HARD = 2
"""OpenMP 5.0, section 3.2.44, `omp_pause_hard`: release threads too; the next parallel region starts new ones."""
_LIBRARIES = {"linux": "libtorch_cpu.so", "darwin": "libtorch_cpu.dylib"}
_HINT = (
    "The threads of the process that was forked do not exist in its child, and PyTorch waits for them: call "
    'torch.set_num_threads(1) first thing in the child, or start it with multiprocessing.get_context("spawn").'
)
_LOADED: int = getattr(os, "RTLD_NOLOAD", 0) | getattr(os, "RTLD_NOW", 0)
_losing = False


def expect_threads(what: str) -> None:
    """Refuse to compute with threads that a fork has lost; called only if `lost`.

    Args:
        what: what would be computed.

    Raises:
        ForkError: PyTorch would wait for threads that do not exist.
    """
    from qkv.errors import ForkError

    threads = sys.modules["torch"].get_num_threads()
    if threads > 1:
        raise ForkError(what, "one thread in a forked child", f"{threads} threads", _HINT)


def _end_threads(torch_file: str) -> bool:
    """End the OpenMP threads that wait for the calling one; return True if the library could."""
    import ctypes

    name = _LIBRARIES.get(sys.platform, "")
    try:
        # Found, never loaded. OpenMP keeps a pool of threads for each calling thread, and only the calling one lives on
        # in the child.
        library = ctypes.CDLL(os.path.join(os.path.dirname(torch_file), "lib", name), _LOADED)
        pause = library.omp_pause_resource_all
    except (OSError, AttributeError):
        return False
    return bool(pause(_HARD) == 0)


def _before() -> None:
    global _losing  # noqa: PLW0603 - of the process
    # Python goes on with the fork if this raises, for want of memory: then the threads count as lost.
    _losing = True
    torch = sys.modules.get("torch")
    # Until PyTorch is imported to its end it has no threads.
    _losing = hasattr(torch, "get_num_threads") and not _end_threads(str(getattr(torch, "__file__", "")))


def _in_child() -> None:
    global lost  # noqa: PLW0603 - of the process
    lost = lost or _losing


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_child=_in_child)
