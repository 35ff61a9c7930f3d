"""Machine code on disk: later processes load what an earlier one compiled, unless anything that decides it has changed.

A file is a header and an object file: whoever writes it decides what a process runs. So the files are kept in a folder
that belongs to the user and that nobody else can write to, and a digest covers each of them.
"""

import contextlib
import hashlib
import importlib.metadata
import inspect
import json
import os
import re
import stat
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, final

import numpy as np

from qkv.compiled.sources import Sources
from qkv.compiled.target import Target, current
from qkv.errors import QkvError
from qkv.files import read_file
from qkv.strict_json import parse_json
from qkv.system import CHECKS_OWNERS, cache_home, rename, why_not_private

SOURCES = Sources()
SUFFIX = ".kernel"
_MAGIC = b"qkv kernel 1\n"
_LIMIT = 1 << 28
"""The largest file that is read, in bytes."""


class KernelCacheWarning(UserWarning):
    """Machine code cannot be stored on disk, so every process compiles its kernels anew."""


def remember_sources(function: Callable[..., Any]) -> None:
    """Read the files that decide a function's machine code now, before anyone edits what the process has imported.

    Args:
        function: a kernel's function. `stored_code` reports files that cannot be read.
    """
    with contextlib.suppress(OSError, SyntaxError, ValueError):
        SOURCES.files(_paths(function))


def stored_code(function: Callable[..., Any], options: dict[str, Any]) -> "StoredCode | None":
    """Return where the machine code of a function is stored, or is to be.

    Args:
        function: plain Python that Numba understands.
        options: those of its compilation.

    Returns:
        None for a function that comes from no file, such as one typed at a prompt, and if nothing can be stored; then
        a `KernelCacheWarning` says why, once in each process.
    """
    paths = _paths(function)
    if any(path.name.startswith("<") for path in paths):
        return None
    try:
        digest = stamp(function, options, SOURCES)
    except (OSError, SyntaxError, ValueError) as error:
        hint = "Install qkv with its .py files: without them a change of the code would go unnoticed."
        _warn_once("the source of every file that a kernel imports", str(error), hint)
        return None
    try:
        folder = cache_folder(paths[0])
    except OSError as error:
        hint = "Set NUMBA_CACHE_DIR to a folder of your own."
        _warn_once("a folder that belongs to you and that nobody else can write to", str(error), hint)
        return None
    return StoredCode(function, folder, digest)


def stamp(function: Callable[..., Any], options: dict[str, Any], sources: Sources) -> str:
    """Return a digest of what decides a function's machine code, whatever its signature, the target and Numba.

    It covers the source files, the function with all that it closes over, its options and the version of NumPy.

    Args:
        function: plain Python that Numba understands.
        options: those of its compilation.
        sources: reads the files.

    Returns:
        64 hexadecimal digits.

    Raises:
        OSError, SyntaxError, ValueError: a source file is missing or cannot be read.
    """
    named = sorted((name, str(sorted(value) if isinstance(value, set) else value)) for name, value in options.items())
    functions = [_described(each) for each in _functions(function)]
    return _digest((sources.digest(_paths(function)), functions, named, np.__version__))


@lru_cache
def numba_version() -> str | None:
    """Return the version of Numba that is installed, without importing it; None if there is none."""
    try:
        return importlib.metadata.version("numba")
    except importlib.metadata.PackageNotFoundError:
        return None


def holds_code() -> bool:
    """True if an earlier process stored kernels for this target; so Numba has run here."""
    ending = f"-{_short(current())}{SUFFIX}"
    try:
        return any(name.endswith(ending) for name in os.listdir(cache_folder(Path(__file__))))
    except OSError:
        return False


def cache_folder(source: Path) -> Path:
    """Find the folder for the machine code of a source file, and make it if it is missing.

    The folder is inside `NUMBA_CACHE_DIR` if that is set. Otherwise it is `__pycache__` beside the file, or else one in
    the user's cache folder; on Windows, which does not say who can write to a folder, only the latter.

    Args:
        source: the file.

    Returns:
        A folder that belongs to the user, who can write to it; group and others cannot.

    Raises:
        OSError: there is none; the message says what is wrong with each.
    """
    own = f"{source.parent.name}-{hashlib.sha256(os.fsencode(source.parent)).hexdigest()[:16]}"
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    # Beside the source only where its owner can be checked: elsewhere every user may be able to write there.
    usual = [*([source.parent / "__pycache__"] if CHECKS_OWNERS else []), cache_home() / "qkv" / own]
    problems = []
    for folder in [Path(chosen, own).absolute()] if chosen else usual:
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
    writable = os.access(folder, os.W_OK | os.X_OK)
    return why_not_private(found) or (None if writable else "it cannot be written to")


@final
class StoredCode:
    """The machine code of one function on disk, a file for each signature and target.

    Args:
        function: the plain Python function.
        folder: where the files are.
        stamp: a digest of everything else that decides the code. Code with another stamp is replaced.
    """

    def __init__(self, function: Callable[..., Any], folder: Path, stamp: str) -> None:
        """Open nothing yet."""
        self.folder = folder
        self._name = f"{function.__module__}.{function.__qualname__}"
        self._stamp = stamp

    def load(self, signature: str) -> bytes | None:
        """Return the object code for a signature; None if there is none, or one that is out of date or damaged.

        Where Numba is not installed, code of any version of it is right: nothing else could be compiled.
        """
        target = current()
        try:
            header, code = _opened(read_file(self._path(signature, target), _LIMIT, links=False))
        except (OSError, ValueError, RecursionError):
            return None
        version = numba_version() or header.get("numba")
        return code if header == self._header(signature, target, version) else None

    def save(self, signature: str, code: bytes) -> None:
        """Store the object code for a signature, in place of what is there; a reader sees all of it or nothing."""
        target = current()
        path = self._path(signature, target)
        content = _sealed(self._header(signature, target, numba_version()), code)
        try:
            handle, temporary = tempfile.mkstemp(dir=self.folder, prefix=path.stem, suffix=".tmp")
            try:
                with os.fdopen(handle, "wb") as stream:
                    stream.write(content)
                rename(Path(temporary), path)
            except BaseException:
                os.unlink(temporary)
                raise
        except OSError as error:  # this process has its code; later ones compile again
            _warn_once("code that can be stored", str(error), f"See {self.folder}.")

    def refuse(self) -> None:
        """Warn that code holds addresses of this process, so that another one cannot load it."""
        _warn_once("code that can be stored", "addresses of this process", f"See {self._name}.")

    def _path(self, signature: str, target: Target) -> Path:
        name = re.sub(r"[^\w.-]", "", self._name.removeprefix("qkv."))
        return self.folder / f"{name}-{_short((self._name, signature))}-{_short(target)}{SUFFIX}"

    def _header(self, signature: str, target: Target, numba: str | None) -> dict[str, Any]:
        """Return what stored code has to match."""
        named = {"name": self._name, "signature": signature, "stamp": self._stamp, "numba": numba}
        described: dict[str, Any] = json.loads(json.dumps({**named, "target": target._asdict()}))
        return described


def _sealed(header: dict[str, Any], code: bytes) -> bytes:
    """Return a file's content: what it is, a digest of the rest, the header's size, the header and the code.

    Damaged machine code raises nothing: it runs.
    """
    text = json.dumps(header).encode()
    rest = len(text).to_bytes(8, "little") + text + code
    return _MAGIC + hashlib.sha256(rest).digest() + rest


def _opened(content: bytes) -> tuple[dict[str, Any], bytes]:
    """Return header and code of a file.

    Raises:
        ValueError: it is damaged, or something else.
    """
    start = len(_MAGIC) + 32
    rest = content[start:]
    if not content.startswith(_MAGIC) or content[len(_MAGIC) : start] != hashlib.sha256(rest).digest():
        raise ValueError("damaged")
    size = int.from_bytes(rest[:8], "little")
    header = parse_json(rest[8 : 8 + size])
    if not isinstance(header, dict):
        raise ValueError("not an object")  # noqa: TRY004 - as for every other damage
    return header, rest[8 + size :]


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


def _short(value: Any) -> str:
    """Return a part of a file's name that differs for each value."""
    return _digest(value)[:16]


_warned = threading.Event()


def _warn_once(expected: str, got: str, hint: str) -> None:
    if not _warned.is_set():
        _warned.set()
        message = str(QkvError("kernel cache", expected, got, f"Every process compiles its kernels anew. {hint}"))
        warnings.warn(message, KernelCacheWarning, stacklevel=2)
