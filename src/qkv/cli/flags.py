"""Flags made from settings, and the flags that commands share."""

from pathlib import Path
from typing import Annotated, Any

import typer

from qkv.settings import choices_of, defaults_of, help_of, hints_of, options_of
from qkv.tasks.columns import ColumnNames
from qkv.tasks.translate.settings import MORE_TOKENS, TOKENS_PER_SOURCE_TOKEN

Run = Annotated[Path, typer.Argument(help="Run folder, or one checkpoint in it.")]
OnDevice = Annotated[str, typer.Option(help="Device: cpu, cuda, ...")]
"""The device of a command that uses a model."""
LineBuffered = Annotated[bool, typer.Option("--line-buffered", help="Answer each line as it comes, for pipes; slower.")]
"""Whether each line is answered by itself; otherwise parts grow to 1,024 lines."""
_LIMIT = f"{TOKENS_PER_SOURCE_TOKEN} per source token plus {MORE_TOKENS}"
MaxTokens = Annotated[int | None, typer.Option(help=f"Maximum tokens per translation; default: {_LIMIT}.")]


def drawn(what: str) -> Any:
    """Return the option that names a picture of something."""
    return typer.Option(help=f"Also draw {what}: FILE.html, FILE.svg or FILE.png.")


def shown(what: str) -> Any:
    """Return the option that draws something in the terminal."""
    return typer.Option("--show", help=f"Also draw {what} in the terminal, on standard error.")


def option_of(table: type, name: str, help: str = "", topic: str | None = None) -> Any:
    """Return the flag of a setting.

    Args:
        table: the table of settings.
        name: of the field.
        help: its help, if that is not the one of the table.
        topic: the part of the help in which it stands.

    Example:
        >>> option_of(ColumnNames, "source_col").help
        'Column of the source, from 1 (1).'
    """
    known = options_of(table)[name]
    flag = "--" + (known.flag or name).replace("_", "-")
    names = [flag]
    if bool in choices_of(hints_of(table)[name]):
        names = [f"{flag}/--{known.off or f'no-{flag[2:]}'}"] if defaults_of(table)[name] else [flag]
    names += [f"--{known.also}"] if known.also else []
    return typer.Option(*names, help=help or help_of(table, name), rich_help_panel=topic)


def _column(name: str) -> Any:
    """Return the flag of a column or separator in a command that reads a run, whose training had its own."""
    return option_of(ColumnNames, name, help_of(ColumnNames, name, "as in training"))


SourceColumn = Annotated[int | None, _column("source_col")]
TargetColumn = Annotated[int | None, _column("target_col")]
FeaturesColumn = Annotated[int | None, _column("features_col")]
SourceSeparator = Annotated[str | None, _column("source_sep")]
TargetSeparator = Annotated[str | None, _column("target_sep")]
FeaturesSeparator = Annotated[str | None, _column("features_sep")]
