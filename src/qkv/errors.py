"""What can go wrong, and how it is said.

Every error that qkv raises on purpose is a `QkvError`. Its message names the argument, what was expected, what came,
and how to hint it; `error_message` builds it in that order.
"""

from collections.abc import Iterable
from difflib import get_close_matches

# All that a terminal obeys, but tabs and line feeds: C0, DEL, C1, and what turns the direction of writing.
_OBEYED = (*range(9), *range(11, 32), *range(127, 160), 0x061C, *range(0x200E, 0x2010), *range(0x2028, 0x202F))
_SHOWN = {code: f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" for code in (*_OBEYED, *range(0x2066, 0x206A))}
_NO_MEMORY = ("can't allocate memory", "not enough memory", "std::bad_alloc")


class QkvError(Exception):
    """The root of every error that qkv raises on purpose."""


class ShapeError(QkvError, ValueError):
    """Sizes that do not fit together."""


class DtypeError(QkvError, TypeError):
    """Element types, or devices, that do not fit together."""


class MaskError(QkvError, ValueError, TypeError):
    """Something given as a mask that is not one, or a mask that does not fit."""


class UnsupportedError(QkvError, ValueError, NotImplementedError):
    """A combination that the chosen backend, or mathematics, cannot serve."""


class ConfigError(QkvError, ValueError):
    """A setting with an unknown name or a value outside its range."""


class DataError(QkvError, ValueError):
    """A data file that cannot be used as it is; names file and line."""


class CheckpointError(QkvError, ValueError):
    """A checkpoint that is missing, incomplete, altered or of another kind."""


class TrainingError(QkvError, ArithmeticError):
    """A training that cannot go on: its loss is no number any more, or the machine has no room for a step."""


class OutOfMemoryError(QkvError, MemoryError):
    """No memory is left for what was asked; says what would lower the need."""


def out_of_memory_text(error: BaseException) -> str | None:
    """Tell an exhausted memory from other faults, whoever reports it: Python, PyTorch, a GPU.

    Args:
        error: what was raised.

    Returns:
        What it says, in one line; None where it is about something else.

    Example:
        >>> out_of_memory_text(MemoryError()), out_of_memory_text(ValueError("size")) is None
        ('none left', True)
    """
    text = str(error).partition("\n")[0]
    known = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    if not known and not any(words in text for words in _NO_MEMORY):
        return None
    # PyTorch puts its own source line before what it has to say.
    return text[text.find("DefaultCPUAllocator") :] if "DefaultCPUAllocator" in text else text or "none left"


def harmless(text: str) -> str:
    """Show what a terminal would obey: names and texts of files must not color, erase or retitle it.

    Args:
        text: any; tabs and line feeds stay.

    Returns:
        It, with every control character written out.

    Example:
        >>> print(harmless("\\x1b[31mred\\ttoo"))
        \\x1b[31mred	too
    """
    return text.translate(_SHOWN)


def error_message(argument: str, expected: str, got: str, hint: str) -> str:
    """Build the one form of message that all errors have.

    Args:
        argument: the name that the caller wrote.
        expected: what would have been right.
        got: what came.
        hint: one sentence that says what to do.

    Returns:
        The message, in characters that no terminal obeys.

    Example:
        >>> error_message("key", "width 64, that of query", "width 32", "Use Bilinear to relate two widths.")
        'key: expected width 64, that of query; got width 32. Use Bilinear to relate two widths.'
    """
    return harmless(f"{argument}: expected {expected}; got {got}. {hint}")


def nearest(name: str, valid: Iterable[str]) -> str:
    """Say which valid name an unknown one probably means.

    Args:
        name: what was written.
        valid: the names that exist.

    Returns:
        A sentence with the nearest valid name, or with all of them where none is near.

    Example:
        >>> nearest("adam", ["adamw", "sgd"])
        'Did you mean "adamw"?'
        >>> nearest("x", ["adamw", "sgd"])
        'Valid: adamw, sgd.'
    """
    names = list(valid)
    close = get_close_matches(name, names, n=1, cutoff=0.5)
    return f'Did you mean "{close[0]}"?' if close else f"Valid: {', '.join(names)}."
