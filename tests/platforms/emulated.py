"""Make this process look like one on Windows or macOS to qkv, as far as Linux can.

Libraries are imported first, so that they are those of Linux. Then the names of the standard library go that the system
lacks, and on Windows the rules of its files come: what is open cannot be renamed or removed, a folder cannot be opened,
nothing is opened relative to a folder, names may not hold `:`, only a handle for writing can be flushed, text is in
code page 1252 unless a program says otherwise, and a rename replaces a file but no folder.
"""

import builtins
import ctypes
import errno
import fcntl
import importlib
import io
import os
import platform
import shutil
import sys
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.platforms.names import absent

LIBRARIES = (
    *("torch", "torch._dynamo", "torch.utils.data", "torch.utils.tensorboard", "numpy"),
    *("safetensors.torch", "matplotlib.pyplot", "matplotlib.font_manager", "matplotlib.backends.backend_agg"),
    *("matplotlib.backends.backend_svg", "tokenizers", "sacrebleu", "rich.console", "rich.progress", "typer.testing"),
    *("starlette.applications", "starlette.routing", "uvicorn.protocols.http.h11_impl", "uvicorn.lifespan.off"),
    *("uvicorn.loops.auto", "anyio._backends._asyncio", "http.client", "multiprocessing.pool", "webbrowser"),
)
MODULES = ("os", "signal", "time", "errno", "sys")
"""Modules that lose names; those that a running library of Linux needs, such as `select`, lose none."""
GONE = ("fcntl", "resource", "termios", "pwd", "grp", "posix", "tty", "pty", "readline", "syslog")
_FLAGS = fcntl.fcntl
_RESERVED = {"CON", "PRN", "AUX", "NUL", *(f"{port}{number}" for port in ("COM", "LPT") for number in range(1, 10))}
_BINARY = 0x8000


def import_libraries() -> None:
    """Import what stays that of Linux, which forks then share."""
    for name in LIBRARIES:
        importlib.import_module(name)


def become(system: str) -> None:
    """Change this process.

    Args:
        system: as in `sys.platform`: "win32" or "darwin".
    """
    assert not any(name.partition(".")[0] == "qkv" for name in sys.modules), "qkv must be imported afterwards"
    import_libraries()
    _import_locks(system)
    platform.uname()  # is remembered
    _hide_linux()
    if system == "win32":
        _keep_rules_of_windows()
        for name in GONE:
            sys.modules[name] = None  # type: ignore[assignment]
    for name in MODULES:
        module = importlib.import_module(name)
        for attribute in absent(system).get(name, ()):
            if hasattr(module, attribute):
                delattr(module, attribute)
    sys.platform = system


def _import_locks(system: str) -> None:
    """Import the library of locks as on a system without `fcntl`; Windows' own locks exist only there."""
    if system == "win32":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            known, sys.modules["fcntl"] = sys.modules["fcntl"], None  # type: ignore[assignment]
            importlib.import_module("filelock")
            sys.modules["fcntl"] = known
        linux = types.SimpleNamespace(**vars(sys))
        for name, module in sys.modules.items():
            if name.partition(".")[0] == "filelock" and hasattr(module, "sys"):
                module.sys = linux  # type: ignore[attr-defined]


def _hide_linux() -> None:
    """Leave no /proc, and no library whose name ends in .so."""
    real = ctypes.CDLL

    def load(name: str | None, *arguments: Any, **options: Any) -> ctypes.CDLL:
        if name is None and sys.platform == "win32":
            raise TypeError("bad argument type for built-in operation")
        if name is not None and str(name).endswith((".so", ".dylib", ".dll")):
            raise OSError(f"{name}: image not found")
        return real(name, *arguments, **options)

    ctypes.CDLL = load  # type: ignore[assignment, misc]
    before = io.open

    def opened(file: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(file, str | os.PathLike) and os.fspath(file).startswith("/proc/"):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(file))
        return before(file, *arguments, **options)

    io.open = builtins.open = opened


def _keep_rules_of_windows() -> None:
    os.O_BINARY = _BINARY  # type: ignore[attr-defined]
    shutil._use_fd_functions = False  # type: ignore[attr-defined]
    os.supports_dir_fd.clear()
    warnings.filterwarnings("error", category=EncodingWarning, module=r"qkv\b")
    rules: dict[str, Callable[..., Any]] = {
        "open": _open,
        "fsync": _fsync,
        "mkdir": _mkdir,
        "rename": _rename,
        "replace": _replace,
        "unlink": _remove,
        "remove": _remove,
        "rmdir": _remove,
    }
    for name, rule in rules.items():
        setattr(os, name, _ruled(rule, getattr(os, name)))


def _ruled(rule: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments, **options: rule(real, *arguments, **options)


def _open(real: Any, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
    if dir_fd is not None:
        raise NotImplementedError("dir_fd unavailable on this platform")
    if os.path.isdir(path):
        raise _denied(path)
    if flags & os.O_CREAT:
        _expect_name(path)
    if not flags & _BINARY and sys._getframe(2).f_globals["__name__"].partition(".")[0] == "qkv":
        raise AssertionError(f"{path} is opened as text: each line feed would become two characters")
    return int(real(path, flags & ~_BINARY, mode))


def _fsync(real: Any, handle: int) -> None:
    if _FLAGS(handle, fcntl.F_GETFL) & 3 == os.O_RDONLY:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    real(handle)


def _mkdir(real: Any, path: Any, *arguments: Any, **options: Any) -> None:
    _expect_no_handles(options)
    _expect_name(path)
    real(path, *arguments, **options)


def _rename(real: Any, source: Any, target: Any, **handles: int | None) -> None:
    _expect_no_handles(handles)
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(source))
    _replace(real, source, target)


def _replace(real: Any, source: Any, target: Any, **handles: int | None) -> None:
    _expect_no_handles(handles)
    _expect_name(target)
    if os.path.isdir(target):
        raise _denied(source)
    _expect_closed(source)
    _expect_closed(target)
    real(source, target)


def _remove(real: Any, path: Any, **options: Any) -> None:
    _expect_no_handles(options)
    _expect_closed(path)
    real(path, **options)


def _expect_no_handles(options: dict[str, Any]) -> None:
    if any(handle is not None for name, handle in options.items() if name.endswith("dir_fd")):
        raise NotImplementedError("dir_fd unavailable on this platform")


def _expect_closed(path: Any) -> None:
    """Refuse what this process has open or mapped, or a folder with such a file."""
    whole = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    used = set()
    for handle in os.listdir("/proc/self/fd"):
        try:
            used.add(os.readlink(f"/proc/self/fd/{handle}"))
        except OSError:
            continue
    if any(each == whole or each.startswith(whole + os.sep) for each in used):
        raise _denied(path)


def _expect_name(path: Any) -> None:
    name = os.path.basename(os.path.normpath(os.fspath(path)))
    if set(name) & set('<>:"|?*') or name.partition(".")[0].upper() in _RESERVED or name.endswith((" ", ".")):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), os.fspath(path))


def _denied(path: Any) -> PermissionError:
    return PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(Path(path)))
