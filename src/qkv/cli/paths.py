"""A command whose flags take one path each: a second one, which would replace the first, or an empty one is refused."""

from inspect import signature
from pathlib import Path
from typing import Any, get_args

from typer.core import TyperCommand


class CommandOfPaths(TyperCommand):
    """A command of `qkv`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Check what names files and folders, then parse as usual."""
        if not ctx.resilient_parsing and self.callback is not None:
            values, _, order = self.make_parser(ctx).parse_args(args=[*args])
            kinds = signature(self.callback).parameters
            for parameter in dict.fromkeys(order):
                name = str(parameter.name)
                if name not in kinds or not has_path(kinds[name].annotation):
                    continue
                shown = parameter.opts[0] if parameter.param_type_name == "option" else name.upper()
                if order.count(parameter) > 1 and not getattr(parameter, "multiple", False):
                    ctx.fail(f"{shown} takes one path, and is given {order.count(parameter)} times.")
                value = values.get(name)
                if value == "" or (isinstance(value, list | tuple) and "" in value):
                    ctx.fail(f"{shown} is an empty path. Is a variable of the shell not set?")
        return super().parse_args(ctx, args)


def has_path(annotation: Any) -> bool:
    """Return whether an annotation is or contains a path.

    Example:
        >>> has_path(list[Path] | None), has_path(int | None)
        (True, False)
    """
    return annotation is Path or any(map(has_path, get_args(annotation)))
