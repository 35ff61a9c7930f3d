"""Tables of words with their pronunciations or inflections: columns of a TSV file, each split into symbols.

A symbol is a letter, a phone or a feature. Within this library a text of symbols has one space between two of them, and
a tokenizer of the kind "none" takes each as a token; a space that is itself a symbol is "▁". Features such as V and PST
are written "[V]" and "[PST]", so that no letter is taken for one. They come before the source's own symbols: an encoder
of both directions tells every letter about them; or, as a second source, behind them and a mark.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal, final

from qkv.data.columns import index_of
from qkv.data.corpus import Lines, Pair, each_line
from qkv.data.normal_forms import normalize
from qkv.data.report import expect_some_left, refuse, refused
from qkv.errors import ConfigError, DataError, Place, quantity, setting

MARK = "|"
"""What stands between a source and its separate features: the last one, if letters have it too."""
_SPACE_SHOWN = "▁"
_PRIVATE = 0xF0000
_SPACES = {
    " ": _SPACE_SHOWN,
    **{chr(n): chr(_PRIVATE + n) for n in range(0x3001) if chr(n).isspace() and n != ord(" ")},
}
"""What stands for each space of a symbol: the others are characters for private use, so that a text comes back."""
_AS_SYMBOL = str.maketrans(_SPACES)
_AS_SPACE = str.maketrans({shown: space for space, shown in _SPACES.items()})
_AS_OTHER_SPACE = {shown: space for shown, space in _AS_SPACE.items() if space != " "}


@final
@dataclass(frozen=True)
class WordTable:
    """Where a table has its texts, and how they are split into symbols.

    Args:
        source_col: column of the source, from 1, or its name in the first line.
        target_col: column of the target.
        features_col: column of the features; 0 for none.
        source_sep, target_sep, features_sep: what stands between two symbols; "" if each character is a symbol.
        features: whether features stand in "front" of a source's symbols, or are a second, "separate" source.

    Raises:
        ConfigError: a column is below its least number, two are the same, or there are no features to separate.

    Source: the columns and separators of yoyodyne, with its defaults.

    Example:
        >>> table = WordTable(features_col=3)
        >>> table.source_symbols("walk\\twalked\\tV;PST", "past.tsv:1")
        '[V] [PST] w a l k'
        >>> WordTable(features_col=3, features="separate").source_symbols("walk\\twalked\\tV;PST", "past.tsv:1")
        'w a l k | [V] [PST]'
        >>> WordTable(target_sep=" ").target_text("ʃ a")
        'ʃ a'
    """

    source_col: int | str = 1
    target_col: int | str = 2
    features_col: int | str = 0
    source_sep: str = ""
    target_sep: str = ""
    features_sep: str = ";"
    features: Literal["front", "separate"] = "front"

    def __post_init__(self) -> None:
        columns = {name: getattr(self, name) for name in ("source_col", "target_col", "features_col")}
        for name, number in columns.items():
            least = 0 if name == "features_col" else 1
            if isinstance(number, int) and number < least:
                hint = "Columns count from 1." if least else "Columns count from 1; 0 is for no features."
                raise ConfigError(name, f"at least {least}", f"{number}", hint)
        for name, other in (
            ("target_col", "source_col"),
            ("features_col", "source_col"),
            ("features_col", "target_col"),
        ):
            if columns[name] == columns[other]:
                expected = f"another column than {other}"
                raise ConfigError(name, expected, f"{columns[name]}", "Give each text its own.")

        if self.features == "separate" and not self.features_col:
            hint = "Give the column: " + setting("features_col", "3") + "."
            raise ConfigError("features", "a column of features to separate", "none", hint)

    def read(self, path: Path | Lines) -> list[Pair]:
        """Read a table.

        Args:
            path: the TSV file; `.gz` is decompressed.

        Returns:
            One pair of texts of symbols per line, in order.

        Raises:
            DataError: the file cannot be read, is empty or not UTF-8, or a line lacks a column, text in it, or a symbol
                between two separators; the message gives file, line and column.

        Example:
            >>> from tempfile import TemporaryDirectory
            >>> with TemporaryDirectory() as folder:
            ...     path = Path(folder, "words.tsv")
            ...     _ = path.write_text("chat\\tʃ a\\n")
            ...     WordTable(target_sep=" ").read(path)
            [Pair(source='c h a t', target='ʃ a', line=1)]
        """
        pairs, lines = [], each_line(path)
        header = next(lines)
        table = self.resolved(header, str(path))
        last = max(map(int, (table.source_col, table.target_col, table.features_col)))
        for number, line in enumerate(chain([header], lines), start=1):
            if refused(number, path) or (number == 1 and table != self):
                continue
            where = Place(path, number)
            try:
                pairs.append(Pair(table.source_symbols(line, where), table.target_symbols(line, where), number))
            except DataError as error:
                if "\t" not in line and last > 1:
                    hint = (
                        error.args[3] + " Columns of texts, as in CSV, are read with " + setting("cells", "texts") + "."
                    )
                    error = DataError(*error.args[:3], hint)
                refuse("columns" if line.strip() and line.count("\t") < last - 1 else "empty", error)
        if not pairs:
            expect_some_left()
        return pairs

    def resolved(self, header: str, name: str) -> "WordTable":
        """Return the table with positions in place of names.

        Args:
            header: the first line, which has the names if there are any.
            name: of the file, for messages.

        Raises:
            ConfigError: there is no such column.

        Example:
            >>> WordTable(target_col="past").resolved("lemma\\tpos\\tpast", "f.tsv").target_col
            3
        """
        columns = {part: getattr(self, part) for part in ("source_col", "target_col", "features_col")}
        if not any(isinstance(column, str) for column in columns.values()):
            return self
        names = [normalize("NFC", cell.strip()) for cell in header.split("\t")]
        indices: dict[str, Any] = {
            part: 1 + index_of(column, names, len(names), setting(part), name)
            for part, column in columns.items()
            if isinstance(column, str)
        }
        return replace(self, **indices)

    def source_symbols(self, line: str, where: str) -> str:
        """Return the symbols of a line's source, after those of its features, or before them and a mark.

        Args:
            line: of the table; it may end before the target.
            where: file and line, for messages.

        Raises:
            DataError: as for `read`.
        """
        cells = line.split("\t")
        names = _symbols(cells, self.features_col, self.features_sep, where) if self.features_col else []
        features, symbols = [f"[{name}]" for name in names], _symbols(cells, self.source_col, self.source_sep, where)
        return " ".join([*symbols, MARK, *features] if self.features == "separate" else [*features, *symbols])

    def target_symbols(self, line: str, where: str) -> str:
        """Return the symbols of a line's target; arguments and errors as for `source_symbols`."""
        return " ".join(_symbols(line.split("\t"), self.target_col, self.target_sep, where))

    def text_symbols(self, text: str, where: str) -> str:
        """Return the symbols of a text that stands for a target; errors as for `read`."""
        return " ".join(_symbols([text], 1, self.target_sep, where))

    def target_text(self, symbols: str) -> str:
        """Return a target as the table writes it, from its symbols."""
        # Symbols separated by spaces contain none, so that "▁" is part of a piece, as SentencePiece writes it.
        spaces = _AS_OTHER_SPACE if self.target_sep == " " else _AS_SPACE
        return self.target_sep.join(symbols.split(" ")).translate(spaces)


def _symbols(cells: Sequence[str], column: int | str, separator: str, where: str) -> list[str]:
    column = int(column)
    if column > len(cells):
        got = quantity(len(cells), "column")
        hint = "Correct this line, or choose another column: they count from 1, with one tab between them."
        raise DataError(where, f"text in column {column}", got, hint)
    text = cells[column - 1]
    if not text.strip():
        raise DataError(where, f"text in column {column}", "an empty one", "Fill it or delete the line.")
    parts = text.split(separator) if separator else list(text)
    if not all(parts):
        expected = f"symbols with one {separator!r} between two of them in column {column}"
        hint = "Remove the separator that has no symbol on one side, or give another one."
        raise DataError(where, expected, repr(text[:80]), hint)
    return [part.translate(_AS_SYMBOL) for part in parts]
