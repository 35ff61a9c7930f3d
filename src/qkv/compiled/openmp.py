"""Run compiled kernels on the threads that PyTorch's own operators use.

After an operator, PyTorch's threads spin on their cores while they wait for the next one. Threads of ours would compete
with them: on two cores they made a pass of 0.2 ms no faster. So a pass is a parallel region of the OpenMP library that
PyTorch uses. Its threads start within a few microseconds, take chunks from a counter, and do not need Python.
"""

import ctypes
import re
import threading
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from qkv import forks
from qkv.compiled import linking
from qkv.compiled.cache import remember_sources
from qkv.compiled.kernels import Kernel, compile_cached, part_of
from qkv.compiled.parallel_region import SYMBOL, run_parallel
from qkv.compiled.target import compiles
from qkv.errors import UnsupportedError

_lock = threading.Lock()
_launchers: dict[tuple[Kernel, Any], Callable[..., None]] = {}


def available() -> bool:
    """True if kernels can run on PyTorch's threads: PyTorch uses GNU's OpenMP, and no fork has lost its threads.

    Example:
        >>> available() in (True, False)
        True
    """
    return not forks.lost and _found()


def linked() -> bool:
    """True if parallel regions can be compiled; if they are not `available`, a single thread runs them.

    Example:
        >>> linked() or not available()
        True
    """
    return _found()


def link() -> None:
    """Tell the linker the address of OpenMP's entry point.

    Raises:
        UnsupportedError: PyTorch does not use GNU's OpenMP.
    """
    if not _found():
        raise UnsupportedError("team", "GNU's OpenMP under PyTorch", "none", "Ask `available` first.")


def launcher(kernel: Kernel, dtype: Any) -> Callable[..., None]:
    """Return a kernel as a parallel region, compiled when first needed and stored on disk like the kernel.

    Args:
        kernel: its arguments are a range of items (start, stop), then inputs and outputs, then scratch.
        dtype: one of the kernel's, for `F` in its signature.

    Returns:
        A function of the number of threads, of chunks and of items, and a tuple of the kernel's other arguments, in
        which each scratch array has one more dimension, the chunks, in front. The result does not depend on which
        thread takes which chunk.

    Raises:
        DtypeError: the kernel does not exist for the type.
        UnsupportedError: PyTorch does not use GNU's OpenMP.
    """
    key = kernel, dtype
    code = _launchers.get(key)
    if code is None:
        link()
        with forks.unforked(), _lock:
            code = _launchers.get(key) or compile_cached(*_region(kernel, dtype), wrapper=True)
            _launchers[key] = code
    return code


def _region(kernel: Kernel, dtype: Any) -> tuple[Callable[..., None], str]:
    """Return the function that `launcher` compiles, and its signature."""
    scratch = kernel.scratch or 0
    start, _, *parameters = _parameters(kernel.signature_at(dtype))
    arguments = [_with_chunks(each) if i >= len(parameters) - scratch else each for i, each in enumerate(parameters)]
    parallel, part = run_parallel(start, scratch), part_of(kernel)

    def launch(threads: int, chunks: int, items: int, packed: tuple[Any, ...]) -> None:
        parallel(part, threads, chunks, items, packed)

    launch.__qualname__ = f"{kernel.py_func.__module__}.{kernel.py_func.__qualname__}-team-{scratch}"
    return launch, f"void(u8, u8, u8, Tuple(({', '.join(arguments)},)))"


remember_sources(_region)


def _parameters(signature: str) -> list[str]:
    """Return the types of a signature's arguments; those of arrays have commas between brackets."""
    return re.findall(r"\w+(?:\[[^\]]*\])?", signature.removeprefix("void"))


def _with_chunks(array: str) -> str:
    """Return the type of an array with one more dimension in front."""
    return array.replace("[", "[:,")


@lru_cache
def _found() -> bool:
    """Find the entry point of the OpenMP library that PyTorch loaded, and tell the linker its address."""
    if not torch.backends.openmp.is_available():  # type: ignore[no-untyped-call]
        return False
    try:
        entry = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so")).GOMP_parallel
    except (OSError, AttributeError):
        # Another operating system, or another OpenMP library.
        return False
    address = ctypes.cast(entry, ctypes.c_void_p).value
    assert address is not None
    linking.add_symbol(SYMBOL, address)
    return compiles()
