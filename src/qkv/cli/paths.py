"""Check the paths that a command is given, before it does any work."""

import os
from collections.abc import Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any, get_args

from typer.core import TyperCommand

from qkv.errors import ConfigError, setting
from qkv.files import expect_suffix
from qkv.settings import options_of


class CommandOfPaths(TyperCommand):
    """A command whose flags take one path each: a second one, which would replace the first, or an empty one fails."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Check what names files and folders, then parse as usual."""
        if not ctx.resilient_parsing and self.callback is not None:
            values, _, order = self.make_parser(ctx).parse_args(args=[*args])
            kinds = signature(self.callback).parameters
            for parameter in dict.fromkeys(order):
                name = str(parameter.name)
                if name not in kinds or not has_path(kinds[name].annotation):
                    continue
                label = parameter.opts[0] if parameter.param_type_name == "option" else name.upper()
                if order.count(parameter) > 1 and not getattr(parameter, "multiple", False):
                    ctx.fail(f"{label} takes one path, and is given {order.count(parameter)} times.")
                value = values.get(name)
                if value == "" or (isinstance(value, list | tuple) and "" in value):
                    ctx.fail(f"{label} is an empty path. Is a variable of the shell not set?")
        return super().parse_args(ctx, args)


def has_path(annotation: Any) -> bool:
    """Return whether an annotation is or contains a path.

    Example:
        >>> has_path(list[Path] | None), has_path(int | None)
        (True, False)
    """
    return annotation is Path or any(map(has_path, get_args(annotation)))


def expect_output_files(table: type, values: Mapping[str, Any]) -> None:
    """Check the files that settings of a table name to be written, as `expect_output_file` does."""
    for name, option in options_of(table).items():
        if option.writes is not None:
            expect_output_file(name, values.get(name), option.writes)


def expect_output_file(name: str, path: Path | None, suffixes: Sequence[str] = ()) -> None:
    """Check that a file can be written, without creating it.

    Args:
        name: the setting that named it, for messages.
        path: the file, existing or not; None for no file.
        suffixes: the allowed suffixes; empty for any.

    Raises:
        ConfigError: the suffix is wrong, the path is a folder, a link or a device, or its parent is missing or not
            writable.

    Example:
        >>> expect_output_file("attention", Path("x.pdf"), (".html", ".svg", ".png"))
        Traceback (most recent call last):
        qkv.errors.ConfigError: attention: expected a file name that ends in .html, .svg or .png; got .pdf in 'x.pdf'.
        Did you mean ".png"?
    """
    if path is None:
        return
    if suffixes:
        expect_suffix(setting(name), path, suffixes)
    trouble = _problem_of(path)
    if trouble is not None:
        hint = "Give a file in an existing, writable folder."
        raise ConfigError(setting(name), "a writable file", f"{path}: {trouble}", hint)


def _problem_of(path: Path) -> str | None:
    try:
        if path.is_dir():
            return "a folder"
        # A file is replaced by its name: a link such as /dev/stdout would be lost, and to the administrator any device.
        if path.is_symlink():
            return "a symbolic link"
        if path.exists() and not path.is_file():
            return "a device, a pipe or a socket"
        if not path.parent.is_dir():
            return f"no folder {path.parent}"
    except (OSError, ValueError) as error:
        return str(error)
    return None if os.access(path.parent, os.W_OK | os.X_OK) else f"no permission to write to {path.parent}"
