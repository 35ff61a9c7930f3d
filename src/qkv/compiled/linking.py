"""Load object code into this process and make it a function that Python calls; without Numba."""

# mypy: disable-error-code="no-untyped-call"
# llvmlite has no types.

import ctypes
import itertools
import sys
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from llvmlite import binding

from qkv.compiled import target
from qkv.compiled.entry import ERRORS, FUNCTIONS, NDARRAY, NONE, SYMBOL

_FASTCALL = 0x80
_JIT_LINK = sys.platform != "win32"
"""Which of LLVM's two linkers loads object code: JITLink, or where llvmlite has none, on Windows, RuntimeDyld.

RuntimeDyld reserves memory for each section on its own. On 64-bit Arm that ends the process by an assertion: code
reaches its table of addresses (GOT) within 4 GiB only, and the two can lie farther apart. JITLink keeps them together.
"""
_lock = threading.Lock()
_numbers = itertools.count()
_symbols: dict[str, int] = {}
_kept: list[Any] = []
"""What machine code and its functions lie in; never freed, since threads may run it until the process ends."""


class _MethodDef(ctypes.Structure):
    """Python's `PyMethodDef`."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_new_function = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.POINTER(_MethodDef), ctypes.py_object, ctypes.py_object)(
    ("PyCFunction_NewEx", ctypes.pythonapi)
)


def add_symbol(name: str, address: int) -> None:
    """Let object code that is loaded from now on call what lies at an address."""
    _symbols[name] = address


def load(code: bytes, name: str) -> Callable[..., None]:
    """Make object code a function.

    Args:
        code: an object file, as `qkv.compiled.compiler` writes it for this processor. It is trusted.
        name: of the function.

    Returns:
        A function of the kernel's arguments, which releases Python's lock (the GIL) while it runs.

    Raises:
        RuntimeError: LLVM cannot load it, for instance because it calls what this process does not have.
    """
    with _lock:
        jit = _jit()
        library = binding.JITLibraryBuilder().add_object_img(code).add_current_process().export_symbol(SYMBOL)
        for symbol, address in (_python() | _symbols).items():
            library.import_symbol(symbol, address)
        tracker = library.link(jit, f"{name}-{next(_numbers)}")
    described = _MethodDef(name.encode(), tracker[SYMBOL], _FASTCALL, None)
    _kept.append((tracker, described))
    function: Callable[..., None] = _new_function(ctypes.byref(described), None, None)
    return function


@cache
def _jit() -> Any:
    return binding.create_lljit_compiler(target.machine(), use_jit_link=_JIT_LINK)


@cache
def _python() -> dict[str, int]:
    """Return the addresses of what kernels use of Python and NumPy."""
    functions = {name: ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value for name in FUNCTIONS}
    errors = {name: ctypes.addressof(ctypes.c_void_p.in_dll(ctypes.pythonapi, name)) for name in ERRORS}
    return functions | errors | {NDARRAY: id(np.ndarray), NONE: id(None)}  # type: ignore[return-value]
