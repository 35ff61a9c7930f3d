"""The settings of a TSV file whose columns hold the texts of a translator; many commands have them."""

from dataclasses import dataclass, fields, replace
from typing import Annotated, Literal

from qkv.data.word_table import WordTable
from qkv.settings import Option

COLUMNS = "Columns of a TSV file"
_NAMES = tuple(each.name for each in fields(WordTable))


@dataclass(frozen=True, kw_only=True)
class ColumnNames:
    """Which columns of a TSV file hold the texts; None for the defaults of `qkv.data.word_table.WordTable`.

    Raises:
        ConfigError: a column is out of range, or two are the same.
    """

    source_col: Annotated[
        int | None, Option("Column of the source, from 1", topic=COLUMNS, or_else=WordTable.source_col)
    ] = None
    target_col: Annotated[int | None, Option("Column of the target", topic=COLUMNS, or_else=WordTable.target_col)] = (
        None
    )
    features_col: Annotated[
        int | None,
        Option("Column of features such as V;PST; 0 for none", topic=COLUMNS, or_else=WordTable.features_col),
    ] = None
    source_sep: Annotated[
        str | None,
        Option(
            'Separates the symbols of a source; "" if each character is one',
            topic=COLUMNS,
            or_else=WordTable.source_sep,
        ),
    ] = None
    target_sep: Annotated[
        str | None,
        Option('Separates the symbols of a target, such as " "', topic=COLUMNS, or_else=WordTable.target_sep),
    ] = None
    features_sep: Annotated[str | None, Option("Separates features", topic=COLUMNS, or_else=WordTable.features_sep)] = (
        None
    )
    features: Annotated[
        Literal["front", "separate"] | None,
        Option(
            "Features stand before the source, or are a source with an attention of its own",
            topic=COLUMNS,
            or_else=WordTable.features,
        ),
    ] = None

    def __post_init__(self) -> None:
        self.over(None)

    @property
    def table(self) -> WordTable | None:
        """The columns of the TSV files; None if no column and no separator is given."""
        return self.over(None)

    def over(self, default: WordTable | None) -> WordTable | None:
        """Return the columns, with those that are not given from a default."""
        settings = {name: getattr(self, name) for name in _NAMES if getattr(self, name) is not None}
        return replace(default or WordTable(), **settings) if settings or default is not None else None
