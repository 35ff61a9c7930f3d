"""The flags for columns of a TSV file, the same in every command that reads one."""

from typing import Annotated

import typer

SourceColumn = Annotated[int | None, typer.Option(help="Column of the source in a TSV file, from 1 (default 1).")]
TargetColumn = Annotated[int | None, typer.Option(help="Column of the target (default 2).")]
FeaturesColumn = Annotated[int | None, typer.Option(help="Column of features such as V;PST; 0 for none (default).")]
SourceSeparator = Annotated[
    str | None, typer.Option(help='Separates the symbols of a source; "" (default): each character is one.')
]
TargetSeparator = Annotated[
    str | None,
    typer.Option(help='Separates the symbols of a target, such as " "; "" (default): each character is one.'),
]
FeaturesSeparator = Annotated[str | None, typer.Option(help='Separates features (default ";").')]


def table_flags(
    source_col: int | None,
    target_col: int | None,
    features_col: int | None,
    source_sep: str | None,
    target_sep: str | None,
    features_sep: str | None,
) -> dict[str, int | str]:
    """Return the flags that are given, by the names of `qkv.data.table.Table`."""
    given = {
        "source_col": source_col,
        "target_col": target_col,
        "features_col": features_col,
        "source_sep": source_sep,
        "target_sep": target_sep,
        "features_sep": features_sep,
    }
    return {name: item for name, item in given.items() if item is not None}
