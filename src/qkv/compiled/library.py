"""Libraries of machine code: one file for each target of `qkv.compiled.target`, built by `qkv.compiled.build`.

A library holds kernels and nothing else: what they call of Python and of the C library is found in the process. It also
holds digests of the source files that decided its code. A library that is older than its source, as in a checkout after
an edit of more than comments, is refused: it would compute what nobody reads.
"""

import ctypes
import hashlib
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, final

import numpy as np

from qkv.compiled.target import CHOICE
from qkv.errors import CompilationError, UnsupportedError
from qkv.files import read_file

FOLDER = Path(__file__).parent / "libraries"
PACKAGE = Path(__file__).parents[1]
BUILD = "python -m qkv.compiled.build"
"""The command that builds the library of this processor in a checkout."""
NDARRAY, TEAM, MANIFEST = "qkv_ndarray", "qkv_team", "qkv_manifest"
"""Symbols of every library: the addresses of NumPy's class of arrays and of OpenMP's entry point, which are written
when it is loaded, and what it was built from, as JSON that ends with a zero byte."""
_FASTCALL = 0x80
_SOURCE_LIMIT = 1 << 24
"""Bytes of the largest source file that is read."""
_team = 0


class _MethodDef(ctypes.Structure):
    """Python's `PyMethodDef`."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


@final
class Library:
    """A library in this process, until the process ends: threads may run its code at any time.

    Args:
        path: the file. It is trusted.

    Raises:
        OSError: it cannot be loaded.
        CompilationError: it is older than its source.
    """

    def __init__(self, path: Path) -> None:
        """Load the file, and tell it what it cannot find by itself."""
        # Kernels call exp, log and pow without naming a version of them or a library.
        ctypes.CDLL("libm.so.6", mode=ctypes.RTLD_GLOBAL)
        self.path = path
        self._code = ctypes.CDLL(str(path))
        self._definitions: list[_MethodDef] = []
        self.manifest: dict[str, Any] = json.loads(ctypes.string_at(self._address(MANIFEST)))
        _expect_current(self)
        ctypes.c_void_p.in_dll(self._code, NDARRAY).value = id(np.ndarray)
        self.share_threads(_team)

    def share_threads(self, address: int) -> None:
        """Let kernels run on the threads of an OpenMP library, whose entry point has an address."""
        ctypes.c_void_p.in_dll(self._code, TEAM).value = address

    def __contains__(self, symbol: str) -> bool:
        return hasattr(self._code, symbol)

    def function(self, symbol: str, name: str) -> Callable[..., None]:
        """Return a function of the library as one that Python calls.

        Args:
            symbol: its name in the library.
            name: what Python shows.
        """
        described = _MethodDef(name.encode(), self._address(symbol), _FASTCALL, None)
        self._definitions.append(described)
        function: Callable[..., None] = _new_function()(ctypes.byref(described), None, None)
        return function

    def _address(self, symbol: str) -> int:
        return ctypes.addressof(ctypes.c_char.in_dll(self._code, symbol))


_libraries: list[Library] = []


def add(path: Path) -> Library:
    """Load a library, and find functions in it before those of earlier ones.

    Args:
        path: as for `Library`.

    Raises:
        OSError, CompilationError: as for `Library`.
    """
    library = Library(path)
    _libraries.insert(0, library)
    return library


def function(symbol: str, name: str) -> Callable[..., None]:
    """Return machine code as a function.

    Args:
        symbol: its name in a library.
        name: what Python shows.

    Raises:
        UnsupportedError: there is no library for this processor, or it does not hold the symbol.
        CompilationError: the library is older than its source.
    """
    reason = why_unavailable()
    for library in _libraries:
        if symbol in library:
            return library.function(symbol, name)
    got = reason or f"no {symbol} in {', '.join(library.path.name for library in _libraries)}"
    raise UnsupportedError(name, "machine code for this processor", got, f"In a checkout: {BUILD}.")


@cache  # not of errors
def why_unavailable() -> str | None:
    """Load the library of this processor; return why compiled kernels cannot run, or None.

    Raises:
        CompilationError: the library is older than its source.
    """
    if CHOICE.python:
        return None
    if CHOICE.target is None:
        return CHOICE.reason
    path = FOLDER / f"{CHOICE.target.name}.so"
    if not path.exists():
        return f"this installation holds no compiled kernels for {CHOICE.target.name}; in a checkout, {BUILD}"
    try:
        add(path)
    except (OSError, ValueError) as error:  # a system may let no program load machine code
        return f"compiled kernels cannot be loaded here: {error}"
    return None


def share_threads(address: int) -> None:
    """Let the kernels of all libraries run on the threads of an OpenMP library, whose entry point has an address."""
    global _team  # noqa: PLW0603 - of the process
    _team = address
    for library in _libraries:
        library.share_threads(address)


def _expect_current(library: Library) -> None:
    """Compare the source with what a library was built from; files that are not there count as equal.

    Raises:
        CompilationError: a file has changed.
    """
    for name, (digest, meaning) in library.manifest["sources"].items():
        path = PACKAGE / name
        if path.exists() and not _is_same(read_file(path, _SOURCE_LIMIT), digest, meaning):
            expected = f"machine code that was compiled from {path}"
            hint = f"Compile it again: {BUILD}. QKV_KERNELS=none runs without it."
            raise CompilationError(library.path.name, expected, "code of another text", hint)


def _is_same(source: bytes, digest: str, meaning: str) -> bool:
    """Return whether a file is the one that a library was built from, or means the same."""
    if hashlib.sha256(source).hexdigest() == digest:
        return True
    from qkv.compiled import sources

    try:
        return sources.meaning(source) == meaning
    except SyntaxError:
        return False


@cache
def _new_function() -> Any:
    kind = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.POINTER(_MethodDef), ctypes.py_object, ctypes.py_object)
    return kind(("PyCFunction_NewEx", ctypes.pythonapi))
