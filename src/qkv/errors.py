"""The exception types, and the format of their messages.

Every error that qkv raises deliberately is a `QkvError`. Its message names the argument, what was expected, what was
given, and how to fix it; `error_message` builds it in that order.
"""

from collections.abc import Callable, Iterable
from difflib import get_close_matches

_is_compiling: Callable[[], bool] = bool

__all__ = [
    "MEMORY_ERRORS",
    "ArgumentError",
    "AttachError",
    "CheckpointError",
    "CompilationError",
    "ConfigError",
    "DataError",
    "DtypeError",
    "ForkError",
    "MaskError",
    "OutOfMemoryError",
    "QkvError",
    "ShapeError",
    "TrainingError",
    "UnsupportedError",
    "brief",
    "error_message",
    "expect_room",
    "harmless",
    "nearest",
    "out_of_memory_text",
    "set_compiling",
    "value_named",
]


def __dir__() -> list[str]:
    return __all__


# Everything a terminal interprets except tabs and line feeds: C0, DEL, C1, and Unicode direction controls.
_OBEYED = (*range(9), *range(11, 32), *range(127, 160), 0x061C, *range(0x200E, 0x2010), *range(0x2028, 0x202F))
_SHOWN = {code: f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" for code in (*_OBEYED, *range(0x2066, 0x206A))}
_NO_MEMORY = (
    "can't allocate",  # memory, or a lock
    "can't start new thread",  # whose stack finds no room
    "annot allocate memory",  # the system's words, as those of a library that cannot be loaded
    "failed to map segment from shared object",
    "not enough memory",
    "std::bad_alloc",
    # Python's words for a library that failed without saying why, as NumPy does when it is refused memory.
    "error return without exception set",
    "returned NULL without setting an exception",
    "PyObject pointer is null",  # the panic of a library in Rust
)
MEMORY_ERRORS = (MemoryError, RuntimeError, SystemError)
"""Exception types that may mean out of memory; `out_of_memory_text` tells."""


class QkvError(Exception):
    """The base class of every error that qkv raises deliberately."""


class ShapeError(QkvError, ValueError):
    """Sizes that do not match."""


class DtypeError(QkvError, TypeError):
    """Dtypes or devices that do not match."""


class MaskError(QkvError, ValueError, TypeError):
    """A mask argument that is not a mask, or does not fit."""


class ArgumentError(QkvError, TypeError):
    """An argument that a function does not have, or that is of another kind than it takes."""


class AttachError(QkvError, TypeError):
    """A model whose attention cannot be replaced; the message names its modules."""


class UnsupportedError(QkvError, ValueError, NotImplementedError):
    """A combination that the chosen backend does not support, or that is mathematically undefined."""


class ConfigError(QkvError, ValueError):
    """A setting with an unknown name or a value outside its range."""


class DataError(QkvError, ValueError):
    """An invalid data file; the message names file and line."""


class CheckpointError(QkvError, ValueError):
    """A checkpoint that is missing, incomplete, corrupted or of another kind."""


class TrainingError(QkvError, ArithmeticError):
    """A training that cannot continue: its loss is not finite, or a step does not fit in memory."""


class CompilationError(QkvError, RuntimeError):
    """Kernels whose machine code is older than their source, or that could not be compiled."""


class ForkError(QkvError, RuntimeError):
    """A forked child that would wait forever for the threads of its parent."""


class OutOfMemoryError(QkvError, MemoryError):
    """Memory ran out; the message says how to reduce the need."""


def out_of_memory_text(error: BaseException) -> str | None:
    """Recognize out-of-memory errors from Python, PyTorch or a GPU.

    Args:
        error: the exception.

    Returns:
        Its message on one line; None for any other error.

    Example:
        >>> out_of_memory_text(MemoryError()), out_of_memory_text(ValueError("size")) is None
        ('none left', True)
    """
    text, *more = str(error).split("\n")
    if isinstance(error, ImportError):  # NumPy puts a page of advice before the reason, other libraries their own error
        reasons = [line for line in (text, *more) if any(words in line for words in _NO_MEMORY)]
        before = error.__cause__ or error.__context__
        return reasons[0] if reasons else None if before is None else out_of_memory_text(before)
    known = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    if not known and not any(words in text for words in _NO_MEMORY):
        return None
    # PyTorch puts a line of its own source code first.
    return text[text.find("DefaultCPUAllocator") :] if "DefaultCPUAllocator" in text else text or "none left"


def expect_room(error: ImportError) -> None:
    """Tell a library that finds no memory from one that is not installed.

    Args:
        error: what importing it raised.

    Raises:
        OutOfMemoryError: memory ran out.

    Example:
        >>> expect_room(ImportError("libx.so: failed to map segment from shared object"))
        Traceback (most recent call last):
        qkv.errors.OutOfMemoryError: memory: expected room to load a library; got libx.so: failed to map segment from
        shared object. Raise the limit of this process (`ulimit -v`), or free some memory.
    """
    if (got := out_of_memory_text(error)) is not None:
        hint = "Raise the limit of this process (`ulimit -v`), or free some memory."
        raise OutOfMemoryError(error_message("memory", "room to load a library", got, hint)) from error


def harmless(text: str) -> str:
    """Escape control characters, so that names and texts from files cannot control the terminal.

    Args:
        text: any text; tabs and line feeds are kept.

    Returns:
        The text with every control character escaped.

    Example:
        >>> print(harmless("\\x1b[31mred\\ttoo"))
        \\x1b[31mred	too
    """
    # torch.compile cannot trace `translate`. While it traces, messages name arguments and sizes, not files.
    return text if _is_compiling() else text.translate(_SHOWN)


def set_compiling(is_compiling: Callable[[], bool]) -> None:
    """Set the function that tells whether torch.compile traces: this module does not import PyTorch.

    Args:
        is_compiling: the function.
    """
    global _is_compiling  # noqa: PLW0603 - set once, when a module that imports PyTorch is loaded
    _is_compiling = is_compiling


def error_message(argument: str, expected: str, got: str, hint: str) -> str:
    """Build an error message in the standard format.

    Args:
        argument: the argument, as the caller wrote it.
        expected: what it should be.
        got: what was given; a period at its end, as in another message, is left out.
        hint: one sentence that says how to fix it.

    Returns:
        The message, with control characters escaped, and line feeds in the argument, which can be the name of a file;
        of each part at most 2,000 characters.

    Example:
        >>> error_message("key", "width 64, that of query", "width 32", "Use Bilinear to relate two widths.")
        'key: expected width 64, that of query; got width 32. Use Bilinear to relate two widths.'
    """
    argument, expected, got, hint = (_clipped(part) for part in (_on_one_line(argument), expected, got, hint))
    got = got if got.endswith("..") else got.removesuffix(".")
    return harmless(f"{argument}: expected {expected}; got {got}. {hint}")


_MOST, _LONGEST = 30, 60
"""Names, and characters of a name, that a message lists."""
_READABLE = 2000
"""Characters of each part of a message."""


def nearest(name: str, valid: Iterable[str]) -> str:
    """Suggest the valid name closest to an unknown one.

    Args:
        name: the unknown name.
        valid: the valid names.

    Returns:
        A sentence with the closest valid name, or with all of them if none is close: at most 30, and of each at most 60
        characters.

    Example:
        >>> nearest("adam", ["adamw", "sgd"])
        'Did you mean "adamw"?'
        >>> nearest("x", ["adamw", "sgd"])
        'Valid: adamw, sgd.'
    """
    names = list(valid)
    close = get_close_matches(name, names, n=1, cutoff=0.5)
    if close:
        return f'Did you mean "{brief(close[0])}"?'
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return f"Valid: {', '.join(map(brief, names[:_MOST]))}{more}."


def value_named(given: object, package: str, names: Iterable[str]) -> str | None:
    """Return what to write in place of a string that names a value.

    Args:
        given: what was given in place of a value.
        package: where the values are.
        names: of its classes.

    Returns:
        A sentence, or None if the string names none of them.

    Example:
        >>> value_named("scaled-dot", "qkv.scores", ["Dot", "ScaledDot"])
        'Pass a value of the class qkv.scores.ScaledDot.'
    """
    plain = str(given).replace("_", "").replace("-", "").lower()
    found = next((name for name in names if isinstance(given, str) and name.lower() == plain), None)
    return None if found is None else f"Pass a value of the class {package}.{found}."


def brief(name: str) -> str:
    """Shorten a name from a file for a message.

    Example:
        >>> brief("rent"), len(brief("x" * 1000))
        ('rent', 60)
    """
    name = _on_one_line(name)
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"


def _clipped(text: str) -> str:
    """Leave out the middle of a text that is too long to be read, such as a value of a settings file."""
    return text if len(text) <= _READABLE else f"{text[: _READABLE // 2]} … {text[-_READABLE // 2 :]}"


def _on_one_line(name: str) -> str:
    # A name with a line feed could pass for a second message.
    return name.replace("\n", "\\n")
