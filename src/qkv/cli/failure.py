"""How commands report errors: one message on standard error, an exit code, no traceback."""

import functools
import inspect
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, TypeVar

import typer

from qkv._version import VERSION
from qkv.cli.early_exit import BAD_INPUT, INTERRUPTED, expect_addresses, interruptible, report_out_of_memory
from qkv.cli.flags import keywords, with_parameters
from qkv.errors import MEMORY_ERRORS, ConfigError, QkvError, harmless, on_command_line, setting

if TYPE_CHECKING:
    from collections.abc import Iterator

P = ParamSpec("P")
R = TypeVar("R")


def _switch(help: str, *names: str) -> Any:
    return Annotated[bool, typer.Option(*names, help=help, rich_help_panel="Output", metavar="")]


_OUTPUT_FLAGS: Mapping[str, Any] = {
    "quiet": _switch("Say nothing but errors.", "--quiet", "-q"),
    "verbose": _switch("Say more: versions, each update, seconds.", "--verbose", "-v"),
    "json": _switch("Write results as JSON, one object per line.", "--json"),
}
"""The flags that every command has."""


def guarded(command: Callable[P, R], table_of: Mapping[str, str] = MappingProxyType({})) -> Callable[P, R]:
    """Turn typed errors, out-of-memory errors and file errors into a message and exit code 2, an interruption into 130.

    Anything else is a bug and keeps its traceback.

    Args:
        command: the command.
        table_of: the table of each setting that its settings file can have.

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
        flags = {name: bool(kwargs.pop(name, False)) for name in _OUTPUT_FLAGS}
        named = functools.partial(_named, command, kwargs, table_of)
        with reporting(named, verbose=flags["verbose"]), _ready(**flags):
            return command(*args, **kwargs)

    parameters = inspect.signature(command).parameters.values()
    return with_parameters(run, [*parameters, *keywords(_OUTPUT_FLAGS, dict.fromkeys(_OUTPUT_FLAGS, False))])


@contextmanager
def reporting(
    named: Callable[[QkvError], QkvError] = lambda error: error, *, verbose: bool = False
) -> "Iterator[None]":
    """End the command with a message and an exit code if its code inside fails as `guarded` says.

    Args:
        named: lets a typed error name the flag that it is about.
        verbose: whether a typed error also shows its traceback.
    """
    try:
        yield
    except QkvError as error:
        report_failure(named(error).render(on_command_line))
        if verbose:
            # The message of another library may contain control characters.
            print(harmless(traceback.format_exc()), file=sys.stderr)  # noqa: T201
        raise typer.Exit(BAD_INPUT) from None
    except MEMORY_ERRORS as error:
        if not report_out_of_memory(error):
            raise
        raise typer.Exit(BAD_INPUT) from None
    except (OSError, UnicodeEncodeError) as error:
        if (about_file := _about_file(error)) is None:  # the reader of a pipe has closed it, or a bug
            raise
        report_failure(str(about_file))
        raise typer.Exit(BAD_INPUT) from None
    except KeyboardInterrupt:
        report_failure("interrupted")
        raise typer.Exit(INTERRUPTED) from None


@contextmanager
def with_torch() -> "Iterator[None]":
    """Import PyTorch, which must not be interrupted, before a command knows its flags; errors inside are reported."""
    with reporting():
        _import_torch()
        yield


def _import_torch() -> None:
    _expect_folder()
    expect_addresses()
    import torch  # noqa: F401

    interruptible()


def report_failure(text: str) -> None:
    """Write an error to standard error, however quiet the command is."""
    print(f"qkv: {harmless(text)}", file=sys.stderr)  # noqa: T201


@contextmanager
def _ready(*, quiet: bool, verbose: bool, json: bool) -> "Iterator[None]":
    """Import PyTorch, which must not be interrupted, and set how much is printed."""
    if quiet and verbose:
        raise ConfigError(setting("quiet"), "no " + setting("verbose") + " beside it", "both", "Omit one of them.")
    start = time.monotonic()
    _import_torch()
    import torch

    from qkv.tasks.notes import Verbosity, note, use_verbosity

    with _silenced(quiet), use_verbosity(Verbosity("quiet" if quiet else "verbose" if verbose else "normal", json)):
        if verbose:
            threads = torch.get_num_threads()
            note(f"qkv {VERSION}, PyTorch {torch.__version__}, Python {sys.version.split()[0]}, {threads} threads")
        try:
            yield
        finally:
            if verbose:
                note(f"qkv: {time.monotonic() - start:.1f} s in total")


def _expect_folder() -> None:
    """Refuse a working folder that was removed, in which MKL ends the process while PyTorch is imported."""
    try:
        os.getcwd()
    except FileNotFoundError:
        hint = "Change to another folder (cd)."
        raise ConfigError("working folder", "one that exists", "a removed one", hint) from None


@contextmanager
def _silenced(quiet: bool) -> "Iterator[None]":
    """Let the loggers of qkv report errors only, if asked."""
    logger = logging.getLogger("qkv")
    before = logger.level
    if quiet:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _about_file(error: OSError | UnicodeEncodeError) -> QkvError | None:
    """Return the typed error where a file is inaccessible, or the locale cannot write its name; None for others."""
    if isinstance(error, UnicodeEncodeError):
        if error.encoding != sys.getfilesystemencoding():
            return None
        got = f"{error.object[error.start : error.end]!a} in {error.object!a}"
        hint = "Choose a locale of UTF-8, such as LC_ALL=C.UTF-8."
        return QkvError("file name", f"characters of the locale's {error.encoding}", got, hint)
    if error.filename is None:
        return None
    hint = "Check the name and its permissions."
    return QkvError(str(error.filename), "an accessible file or folder", f"{error.strerror}", hint)


def _named(
    command: Callable[..., object], arguments: Mapping[str, object], table_of: Mapping[str, str], error: QkvError
) -> QkvError:
    """Let an error about an argument name what set it: a flag, a positional argument, an entry of a settings file."""
    name, parameters = error.argument, inspect.signature(command).parameters
    if name not in parameters:
        return error
    typed = arguments.get(name) is not None and arguments[name] != parameters[name].default
    if not typed and name in table_of:
        return error.about(f"{table_of[name]}.{name}" if arguments.get("config") else on_command_line(name))
    kinds = getattr(parameters[name].annotation, "__metadata__", ())
    positional = any(isinstance(kind, typer.models.ArgumentInfo) for kind in kinds)
    return error.about(name.upper() if positional else on_command_line(name)) if typed else error
