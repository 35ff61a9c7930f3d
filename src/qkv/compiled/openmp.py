"""Compiled kernels on the threads that PyTorch's own operators run on.

After an operator PyTorch's threads wait for the next one in a loop, each on a core. A worker of ours would be woken
for a core that one of them holds: on two cores a pass of 0.2 ms gained nothing by it. Here a pass is a parallel region
of the OpenMP that PyTorch runs on: its threads begin within a few microseconds, take chunks by counting, and need no
Python.
"""

import ctypes
import os
import threading
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numba.core import sigutils, types

from qkv.compiled.cache import remember_sources
from qkv.compiled.kernels import Kernel, compile_cached, part_of
from qkv.compiled.parallel_region import run_parallel, set_entry_point
from qkv.errors import UnsupportedError, error_message

_forked = False
_lock = threading.Lock()
_launchers: dict[tuple[Kernel, Any, int], Callable[..., None]] = {}


def available() -> bool:
    """Say whether PyTorch's threads can be had: those of GNU's OpenMP, in a process that was not forked.

    A forked child has none of its parent's threads, and OpenMP would wait for them.

    Example:
        >>> available() in (True, False)
        True
    """
    return not _forked and _found()


def linked() -> bool:
    """Say whether regions can be compiled; where they are not `available`, one thread runs them.

    Example:
        >>> linked() or not available()
        True
    """
    return _found()


def link() -> None:
    """Name OpenMP's entry to LLVM, which ends the process where it meets a call of something without a place.

    Raises:
        UnsupportedError: PyTorch's threads cannot be had.
    """
    if not _found():
        raise UnsupportedError(error_message("team", "GNU's OpenMP under PyTorch", "none", "Ask `available` first."))


def launcher(kernel: Kernel, dtype: Any, scratch: int) -> Callable[..., None]:
    """Give a kernel as a parallel region, compiled when it is first asked for and kept on disk as the kernel is.

    Args:
        kernel: takes the range of its things first, then what it is given, its scratch at last.
        dtype: float32 or float64, for `F` in its signature.
        scratch: how many of its last arguments are scratch.

    Returns:
        A function of the number of threads, of chunks and of things, and of a tuple of what the kernel is given, its
        scratch with one dimension more, the chunks. The bits do not depend on who takes which chunk.

    Raises:
        UnsupportedError: PyTorch's threads cannot be had.
    """
    key = kernel, dtype, scratch
    code = _launchers.get(key)
    if code is None:
        link()
        with _lock:
            code = _launchers.get(key) or compile_cached(*_region(kernel, np.dtype(dtype).str[1:], scratch))
            _launchers[key] = code
    return code


def _region(kernel: Kernel, letter: str, scratch: int) -> tuple[Callable[..., None], Any]:
    """Return the function that `launcher` compiles, and its signature."""
    (start, _, *taken), _ = sigutils.normalize_signature(kernel.signature.replace("F", letter))  # type: ignore[no-untyped-call]
    given = [_longer(each) if place >= len(taken) - scratch else each for place, each in enumerate(taken)]
    spread, part = run_parallel(start, scratch), part_of(kernel)

    def launch(threads: int, chunks: int, things: int, packed: tuple[Any, ...]) -> None:
        spread(part, threads, chunks, things, packed)

    launch.__qualname__ = f"{kernel.py_func.__module__}.{kernel.py_func.__qualname__}-team-{scratch}"
    packed = types.Tuple(given)  # type: ignore[no-untyped-call]
    return launch, types.void(types.uint64, types.uint64, types.uint64, packed)


remember_sources(_region)


def _longer(kind: Any) -> Any:
    return types.Array(kind.dtype, kind.ndim + 1, kind.layout)


@lru_cache
def _found() -> bool:
    """Look for libgomp's entry for a parallel region, of the library that PyTorch runs on, and name it to LLVM."""
    if not torch.backends.openmp.is_available():  # type: ignore[no-untyped-call]
        return False
    try:
        entry = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so")).GOMP_parallel
    except (OSError, AttributeError):
        # Another system, or another OpenMP.
        return False
    address = ctypes.cast(entry, ctypes.c_void_p).value
    assert address is not None
    return bool(set_entry_point(address))


def _after_fork() -> None:
    global _forked  # noqa: PLW0603 - of the process
    _forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
