"""Kernels whose compilation ends the process, or fails: an overload runs Python while Numba compiles its caller."""

import os
import signal
from collections.abc import Callable

from qkv.compiled.deferred import overload
from qkv.compiled.kernels import Kernel


def _compiling(do: Callable[[], object]) -> Kernel:
    def work() -> None:
        """Do nothing; what matters happens before."""

    @overload(work)
    def _work() -> Callable[[], None]:
        do()
        return lambda: None

    def compiled(x):
        work()

    return Kernel(compiled, "void(F[::1])")


def _refuse() -> None:
    raise OSError("no compiler today")


endings = {
    "SIGKILL": _compiling(lambda: os.kill(os.getpid(), signal.SIGKILL)),
    "SIGABRT": _compiling(os.abort),
    "exit code 3": _compiling(lambda: os._exit(3)),
    "error": _compiling(_refuse),
}
