"""How commands report errors: one message on standard error, an exit code, no traceback."""

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import ParamSpec, TypeVar

import typer

from qkv.errors import QkvError, error_message, out_of_memory_text

P = ParamSpec("P")
R = TypeVar("R")

BAD_INPUT = 2
INTERRUPTED = 130
_LESS = (
    "Process less at once: fewer tokens per batch ([training] tokens in --config), a smaller model, a smaller --beam, "
    "shorter texts; `qkv explain` shows how much memory attention takes."
)


def guarded(command: Callable[P, R]) -> Callable[P, R]:
    """Turn typed errors, out-of-memory errors and file errors into a message and exit code 2, an interruption into 130.

    Anything else is a bug and keeps its traceback.

    Example:
        >>> @guarded
        ... def command() -> None:
        ...     raise QkvError("--model: expected a known model; got 'gur'. Did you mean \\"gru\\"?")
        >>> try:
        ...     command()
        ... except typer.Exit as ended:
        ...     ended.exit_code
        2
    """

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except QkvError as error:
            print(f"qkv: {_as_typed(command, kwargs, str(error))}", file=sys.stderr)  # noqa: T201
            raise typer.Exit(BAD_INPUT) from None
        except (MemoryError, RuntimeError) as error:
            said = out_of_memory_text(error)
            if said is None:
                raise
            print(f"qkv: {error_message('memory', 'room for this', said, _LESS)}", file=sys.stderr)  # noqa: T201
            raise typer.Exit(BAD_INPUT) from None
        except OSError as error:
            if error.filename is None:  # not about a file: the reader of a pipe has closed it, or a bug
                raise
            hint = "Check the name and its permissions."
            told = error_message(str(error.filename), "an accessible file or folder", f"{error.strerror}", hint)
            print(f"qkv: {told}", file=sys.stderr)  # noqa: T201
            raise typer.Exit(BAD_INPUT) from None
        except KeyboardInterrupt:
            print("qkv: interrupted", file=sys.stderr)  # noqa: T201
            raise typer.Exit(INTERRUPTED) from None

    return run


def _as_typed(command: Callable[..., object], given: Mapping[str, object], message: str) -> str:
    """Replace the argument in a message by the flag that set it."""
    name, expected, rest = message.partition(": expected ")
    known = inspect.signature(command).parameters
    typed = name in known and given.get(name) is not None and given[name] != known[name].default
    return f"--{name.replace('_', '-')}{expected}{rest}" if expected and typed else message
