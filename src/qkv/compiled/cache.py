"""Machine code on disk: later processes load what an earlier one compiled, unless anything that decides it has changed.

The files are Numba's, an index (`.nbi`) and data (`.nbc`), both pickles: whoever writes them decides what a process
runs. So they are kept in a folder that belongs to the user and that nobody else can write to.
"""

import contextlib
import hashlib
import inspect
import os
import re
import stat
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, final

import llvmlite
import numba
import numpy as np
from numba.core.caching import IndexDataCacheFile
from numba.core.compiler import CompileResult

from qkv.compiled.sources import Sources
from qkv.errors import error_message

SOURCES = Sources()
_VERSIONS = numba.__version__, llvmlite.__version__, np.__version__
_NOT_ABOUT_CODE = ("NUMBA_CACHE_DIR", "NUMBA_NUM_THREADS")
_KEY = "code"
"""Each index has one entry: the names of our files tell apart what Numba tells apart within an index."""


class KernelCacheWarning(UserWarning):
    """Machine code cannot be stored on disk, so every process compiles its kernels anew."""


def remember_sources(function: Callable[..., Any]) -> None:
    """Read the files that decide a function's machine code now, before anyone edits what the process has imported.

    Args:
        function: a kernel's function. `attach` reports files that cannot be read.
    """
    with contextlib.suppress(OSError, SyntaxError, ValueError):
        SOURCES.files(_paths(function))


def attach(dispatcher: Any) -> None:
    """Make a function look for its machine code on disk before it compiles, and store what it compiles.

    A function that comes from no file, such as one typed at a prompt, is left as it is. If nothing can be stored, a
    `KernelCacheWarning` says why, once in each process.

    Args:
        dispatcher: what `numba.njit` returned for the function.
    """
    paths = _paths(dispatcher.py_func)
    if any(path.name.startswith("<") for path in paths):
        return
    try:
        digest = stamp(dispatcher, SOURCES)
    except (OSError, SyntaxError, ValueError) as error:
        hint = "Install qkv with its .py files: without them a change of the code would go unnoticed."
        _warn_once("the source of every file that a kernel imports", str(error), hint)
        return
    try:
        folder = cache_folder(paths[0])
    except OSError as error:
        hint = "Set NUMBA_CACHE_DIR to a folder of your own."
        _warn_once("a folder that belongs to you and that nobody else can write to", str(error), hint)
        return
    dispatcher._cache = StoredCode(dispatcher.py_func, folder, digest)


def stamp(dispatcher: Any, sources: Sources) -> str:
    """Return a digest of what decides a function's machine code, whatever its signature and the processor.

    It covers the source files, the function with all that it closes over, its options and the versions of Numba,
    llvmlite and NumPy.

    Args:
        dispatcher: what `numba.njit` returned for the function.
        sources: reads the files.

    Returns:
        64 hexadecimal digits.

    Raises:
        OSError, SyntaxError, ValueError: a source file is missing or cannot be read.
    """
    given = dispatcher.targetoptions.items()
    options = sorted((name, str(sorted(value) if isinstance(value, set) else value)) for name, value in given)
    functions = [_described(function) for function in _functions(dispatcher.py_func)]
    return _digest((sources.digest(_paths(dispatcher.py_func)), functions, options, _VERSIONS))


def cache_folder(source: Path) -> Path:
    """Find the folder for the machine code of a source file, and make it if it is missing.

    The folder is inside `NUMBA_CACHE_DIR` if that is set. Otherwise it is `__pycache__` beside the file, or else one in
    the user's cache folder.

    Args:
        source: the file.

    Returns:
        A folder that belongs to the user, who can write to it; group and others cannot.

    Raises:
        OSError: there is none; the message says what is wrong with each.
    """
    own = f"{source.parent.name}-{hashlib.sha256(os.fsencode(source.parent)).hexdigest()[:16]}"
    chosen = numba.config.CACHE_DIR  # type: ignore[attr-defined]
    users = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "qkv", own)
    problems = []
    for folder in [Path(chosen, own).absolute()] if chosen else [source.parent / "__pycache__", users]:
        problem = _problem(folder)
        if problem is None:
            return folder
        problems.append(f"{folder}: {problem}")
    raise OSError("; ".join(problems))


def _problem(folder: Path) -> str | None:
    """Make a folder if it is missing; return why it cannot be used, or None."""
    try:
        for each in (*reversed(folder.parents), folder):
            each.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        return error.strerror or str(error)
    if not stat.S_ISDIR(found.st_mode):
        return "it is not a folder"
    if hasattr(os, "geteuid"):
        if found.st_uid != os.geteuid():
            return "it belongs to another user"
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return "others can write to it"
    return None if os.access(folder, os.W_OK | os.X_OK) else "it cannot be written to"


@final
class StoredCode:
    """The machine code of one function on disk, with the methods that Numba calls on a dispatcher's cache.

    Numba's own class notices only changes of the function's own file, trusts any folder, and raises if a file is
    damaged.

    Args:
        function: the plain Python function.
        folder: where the files are.
        stamp: a digest of everything that decides the code except signature, processor and settings of Numba, which
            are part of the names of files. Code with another stamp is replaced.
    """

    def __init__(self, function: Callable[..., Any], folder: Path, stamp: str) -> None:
        """Open nothing yet."""
        self.cache_path = str(folder)
        self._name = f"{function.__module__}.{function.__qualname__}"
        self._stamp = stamp

    def load_overload(self, signature: Any, context: Any) -> Any:
        """Load the code for a signature.

        Args:
            signature: as it was passed to Numba.
            context: Numba's target context.

        Returns:
            Numba's compile result; None if there is no file, or one that is out of date or damaged.
        """
        context.refresh()
        rebuild: Callable[..., Any] = CompileResult._rebuild
        try:
            seal, parts = self._file(signature, context.codegen()).load(_KEY)
            return rebuild(context, *parts) if seal == self._seal(parts) else None
        except Exception:  # a damaged file may raise anything
            return None

    def save_overload(self, signature: Any, result: Any) -> None:
        """Store the code for a signature, in place of what is there.

        Args:
            signature: as it was passed to Numba.
            result: Numba's compile result.
        """
        if result.library.has_dynamic_globals:
            _warn_once("code that can be stored", "addresses of this process", f"See {self._name}.")
            return
        try:
            file, parts = self._file(signature, result.codegen), result._reduce()
            file.flush()  # because `save` reads the index first, which may be damaged
            file.save(_KEY, (self._seal(parts), parts))
        except Exception as error:  # this process has its code; later ones compile again
            _warn_once("code that can be stored", str(error), f"See {self.cache_path}.")

    def flush(self) -> None:
        """Do nothing. Numba calls this before it compiles again and stores the result in the same files."""

    def _file(self, signature: Any, codegen: Any) -> Any:
        """Return Numba's access to the files for a signature."""
        target = (self._name, str(signature), codegen.magic_tuple(), sys.implementation.cache_tag, _settings())
        name = re.sub(r"[^\w.-]", "", self._name.removeprefix("qkv."))
        opened: Callable[..., Any] = IndexDataCacheFile
        return opened(self.cache_path, f"{name}-{_digest(target)[:16]}", self._stamp)

    def _seal(self, parts: tuple[Any, ...]) -> str:
        """Return a digest of stamp and machine code.

        An index with the right stamp is no proof: Numba writes it before the data. And damaged machine code raises
        nothing: it runs.
        """
        _, _, codes = parts[0]
        return hashlib.sha256(b"".join([self._stamp.encode(), *codes])).hexdigest()


def _settings() -> list[Any]:
    """Return the settings of Numba that may change machine code: all but those known not to."""
    named = [(name, value) for name, value in os.environ.items() if name.startswith("NUMBA_")]
    vectors = getattr(numba.config, "USING_SVML", False)
    return [vectors, *sorted((name, value) for name, value in named if name not in _NOT_ABOUT_CODE)]


def _paths(function: Callable[..., Any]) -> list[Path]:
    """Return the files of a function, its own first, and of the functions that it closes over."""
    return list(dict.fromkeys(Path(each.__code__.co_filename) for each in _functions(function)))


def _functions(value: Any) -> Iterator[FunctionType]:
    """Yield the Python function of a value, compiled or not, and in turn those that it closes over."""
    function = inspect.unwrap(value)
    if isinstance(function, FunctionType):
        yield function
        for cell in function.__closure__ or ():
            yield from _functions(cell.cell_contents)


def _described(function: FunctionType) -> tuple[Any, ...]:
    """Return what tells a function from the others of its file, and from itself with other values closed over."""
    closed = [cell.cell_contents for cell in function.__closure__ or ()]
    values = [repr(value) for value in closed if not isinstance(inspect.unwrap(value), FunctionType)]
    return function.__module__, function.__qualname__, _content(function.__code__), values


def _content(code: CodeType) -> tuple[Any, ...]:
    """Return what a function's bytecode does, the functions inside it included, without their addresses."""
    constants = [_content(value) if isinstance(value, CodeType) else repr(value) for value in code.co_consts]
    return code.co_firstlineno, code.co_code, constants


def _digest(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()


_warned = threading.Event()


def _warn_once(expected: str, got: str, hint: str) -> None:
    if not _warned.is_set():
        _warned.set()
        message = error_message("kernel cache", expected, got, f"Every process compiles its kernels anew. {hint}")
        warnings.warn(message, KernelCacheWarning, stacklevel=2)
