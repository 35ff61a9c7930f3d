"""Run compiled kernels on the threads that PyTorch's own operators use.

After an operator, PyTorch's threads spin on their cores while they wait for the next one. Threads of ours would compete
with them: on two cores they made a pass of 0.2 ms no faster. So a pass is a parallel region of the OpenMP library that
PyTorch uses. Its threads start within a few microseconds, take chunks from a counter, and do not need Python.
"""

import ctypes
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from qkv import forks
from qkv.compiled import library
from qkv.compiled.kernels import Kernel, load
from qkv.compiled.target import CHOICE
from qkv.errors import UnsupportedError

_launchers: dict[tuple[Kernel, Any], Callable[..., None]] = {}


def available() -> bool:
    """True if kernels can run on PyTorch's threads: PyTorch uses GNU's OpenMP, and no fork has lost its threads.

    Example:
        >>> available() in (True, False)
        True
    """
    return not forks.lost and linked()


def launcher(kernel: Kernel, dtype: Any) -> Callable[..., None]:
    """Return a kernel as a parallel region.

    Args:
        kernel: its arguments are a range of items (start, stop), then inputs and outputs, then scratch.
        dtype: one of the kernel's, for `F` in its signature.

    Returns:
        A function of the number of threads, of chunks and of items, and a tuple of the kernel's other arguments, in
        which each scratch array has one more dimension, the chunks, in front. The result does not depend on which
        thread takes which chunk.

    Raises:
        DtypeError: the kernel does not exist for the type.
        UnsupportedError: PyTorch does not use GNU's OpenMP, or there is no machine code for this processor.
        CompilationError: the machine code is older than the source.
    """
    key = kernel, dtype
    code = _launchers.get(key)
    if code is None:
        if not linked():
            raise UnsupportedError("team", "GNU's OpenMP under PyTorch", "none", "Ask `available` first.")
        code = _launchers[key] = load(kernel.symbol(dtype, team=True), kernel.py_func)
    return code


@lru_cache
def linked() -> bool:
    """True if PyTorch's OpenMP library was found, so that kernels have parallel regions; see `available` for their use.

    The first call finds the entry point of the OpenMP library that PyTorch loaded, and tells the kernels its address.

    Example:
        >>> linked() or not available()
        True
    """
    if CHOICE.target is None or library.why_unavailable() is not None:
        return False
    if not torch.backends.openmp.is_available():
        return False
    try:
        entry = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so")).GOMP_parallel
    except (OSError, AttributeError):
        # Another operating system, or another OpenMP library.
        return False
    address = ctypes.cast(entry, ctypes.c_void_p).value
    assert address is not None
    library.share_threads(address)
    return True
