"""Columns of a table of texts: which they are, and what separates them.

Fields are separated by tabs in files that end in .tsv; in others by the one of tab, semicolon and comma that splits the
first 1,000 lines into the same number of fields most often. Only semicolons and commas are CSV, in which fields may be
quoted as RFC 4180 says: between tabs, a quotation mark is part of a text.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from qkv.data.choices import Separator
from qkv.data.corpus import Lines, each_line
from qkv.data.normal_forms import normalize
from qkv.data.report import expect_some_left, refuse, say
from qkv.data.table import QUOTED, SEPARATOR_NAMES, Row, even_rows, rows_of
from qkv.errors import ConfigError, DataError, Place, brief, nearest, quantity, setting

Column = str | int
"""A name in the first line, or a position from 1, also as text: so a flag stays a text, which can be either."""
SEPARATORS: Mapping[Separator, str] = MappingProxyType({"tab": "\t", "semicolon": ";", "comma": ","})
"""What can separate fields; of those that split lines equally evenly, the first does."""
_LOOKED_AT = 2000
"""Lines from which the separator is found; those that are blank tell nothing."""
_SHARE = 0.9
"""Share of the lines that must have the same number of fields."""


class TextColumns(NamedTuple):
    """Two columns of a file.

    Attributes:
        names: what each holds, as in the settings: "label" of `label_col`.
        columns: which they are; None for one that follows from the other or from the header.
        sep: what separates them; None to find out.
    """

    names: tuple[str, str]
    columns: tuple[Column | None, Column | None] = (None, None)
    sep: Separator | None = None

    @property
    def are_given(self) -> bool:
        """Whether a column is given, or what separates them."""
        return self.sep is not None or any(column is not None for column in self.columns)

    def separator(self, path: Path | Lines, lines: Sequence[str]) -> str:
        """Return what separates the fields of a file that starts with these lines."""
        return separator_of(path, lines) if self.sep is None else SEPARATORS[self.sep]

    def applies(self, path: Path | Lines) -> bool:
        """Whether a file is read by columns: they are given, or it is CSV by its name and its lines."""
        if self.are_given:
            return not isinstance(path, Lines)
        return _ending(path) == ".csv" and separator_of(path, list(islice(each_line(path), _LOOKED_AT))) != "\t"

    def read(self, path: Path | Lines, known: Sequence[frozenset[str]]) -> Iterator[tuple[int, str, str]]:
        """Read the two columns.

        Args:
            path: the file.
            known: names of each column in lower case, by which a first line is known to name the columns.

        Returns:
            The line of each row, from 1, and the texts of the two columns.

        Raises:
            ConfigError: a column does not exist.
            DataError: the file cannot be read, or a row lacks a field or text in it.
        """
        lines = each_line(path)
        start = list(islice(lines, _LOOKED_AT))
        separator = self.separator(path, start)
        rows = split_rows(chain(start, lines), str(path), separator)
        first_row = next(rows, None)
        if first_row is None:
            expect_some_left()
            raise DataError(Place(path), "lines with columns", "none", "Check how the file was made.")
        first = [normalize("NFC", cell.strip()) for cell in first_row[1]]
        headed = any(is_name(column, first) for column in self.columns) or _names_columns(first, known)
        chosen = self._chosen(first, headed, str(path), known)
        shown = ", ".join(
            f"{name} from column {index + 1}{f' ({brief(first[index])})' if headed else ''}"
            for name, index in zip(self.names, chosen, strict=True)
        )
        say(f"{path}: columns separated by {SEPARATOR_NAMES[separator]}: {shown}")
        any_left = False
        rows = rows if headed else chain([first_row], rows)
        for line, cells in even_rows(rows, len(first), str(path), _expect_width):
            texts = cells[chosen[0]], cells[chosen[1]]
            if all(text.strip() for text in texts):
                any_left = True
                yield line, *texts
                continue
            name = self.names[texts[0].strip() != ""]
            hint = "Fill it or delete the line."
            refuse("empty", DataError(Place(path, line), f"a {name} in every line", "an empty one", hint))
        if not any_left:
            expect_some_left()

    def _chosen(
        self, first: Sequence[str], headed: bool, path: str, known: Sequence[frozenset[str]]
    ) -> tuple[int, int]:
        """Return the indices of the columns."""
        header, width = first if headed else None, len(first)
        given = [
            None if column is None else index_of(column, header, width, setting(f"{name}_col"), path)
            for name, column in zip(self.names, self.columns, strict=True)
        ]
        if header is not None:
            for position, names in enumerate(known):
                matches = [index for index, cell in enumerate(header) if cell.lower() in names]
                if given[position] is None and len(matches) == 1 and matches[0] not in given:
                    given[position] = matches[0]
        for position in range(2):
            if given[position] is None and width == 2:
                other = given[1 - position]
                given[position] = position if other is None else 1 - other
        for name, index in zip(self.names, given, strict=True):
            if index is None:
                expected = f"one of {width} columns of {path}: {', '.join(map(brief, first[:12]))}"
                hint = "Give its name in the first line, or its position, from 1."
                raise ConfigError(setting(f"{name}_col"), expected, "none", hint)
        if given[0] == given[1]:
            expected = "another column than " + setting(f"{self.names[0]}_col")
            raise ConfigError(setting(f"{self.names[1]}_col"), expected, "the same", "Give each its own.")
        return given[0], given[1]  # type: ignore[return-value]  # none of them is None


def is_name(column: Column | None, first: Sequence[str] = ()) -> bool:
    """Return whether a column is given by its name, so that the first line has the names.

    Args:
        column: the column.
        first: the cells of the first line; a number that is one of them, and no position, is a name.

    Example:
        >>> is_name("label"), is_name("2"), is_name(2), is_name(None), is_name("2019", ["2018", "2019"])
        (True, False, False, False, True)
    """
    if not isinstance(column, str):
        return False
    return not column.isdecimal() or (int(column) > len(first) and column in first)


def index_of(column: Column, header: Sequence[str] | None, width: int, flag: str, path: str) -> int:
    """Return the index of a column: a name wins where one is a number.

    Args:
        column: its name, or its position from 1.
        header: the names; None if the file has none.
        width: how many columns there are.
        flag: what named it, for messages.
        path: the file, for messages.

    Raises:
        ConfigError: there is no such column, or its name occurs twice.

    Example:
        >>> index_of("2019", ["id", "2020", "2019"], 3, "x", "f.csv"), index_of("2", ["id", "2020"], 2, "x", "f.csv")
        (2, 1)
    """
    name = normalize("NFC", str(column))
    names = list(header or ())
    if isinstance(column, str) and names.count(name) > 1:
        raise ConfigError(
            flag, "a column that exists once", f'"{name}", {names.count(name)} times', "Give its position."
        )
    if isinstance(column, str) and name in names:
        return names.index(name)
    if name.isdecimal() and 1 <= int(name) <= width:
        return int(name) - 1
    listed = f": {', '.join(map(brief, names[:12]))}" if names else ""
    hint = f"Positions count from 1 to {width}."
    if not name.isdecimal() and names:
        hint = nearest(name, names)
    raise ConfigError(flag, f"a column of {path}{listed}", f'"{brief(name)}"', hint)


def separator_of(path: Path | Lines, lines: Sequence[str]) -> str:
    """Return what separates the fields of a file.

    Example:
        >>> separator_of(Path("a.csv"), ["good;a film, seen twice", "bad;a film"]), separator_of(Path("a.tsv"), ["a,b"])
        (';', '\\t')
    """
    if _ending(path) in (".tsv", ".tab"):
        return "\t"
    filled = [line for line in lines[:_LOOKED_AT] if line.strip()][: _LOOKED_AT // 2]
    shares = {mark: _evenness(filled, mark) for mark in SEPARATORS.values()}
    best = max(shares, key=lambda mark: shares[mark])  # of equal ones, the first
    # A file that says to be CSV is read as such even if many of its lines are broken.
    return best if shares[best] >= _SHARE or (_ending(path) == ".csv" and shares[best] > 0) else "\t"


def _evenness(lines: Sequence[str], mark: str) -> float:
    """Return the share of the lines that have the most frequent number of fields, if that is at least 2."""
    bare = lines if mark == "\t" else [QUOTED.sub("", line) for line in lines]
    counts = Counter(line.count(mark) for line in bare)
    marks, number = max(counts.items(), key=lambda item: item[1], default=(0, 0))
    return number / len(lines) if marks else 0.0


def _ending(path: Path | Lines) -> str:
    return "" if isinstance(path, Lines) else Path(path.name.removesuffix(".gz")).suffix.lower()


def split_rows(lines: Iterable[str], name: str, separator: str) -> Iterator[Row]:
    """Split lines into fields, those between commas and semicolons as CSV; blank lines are no rows.

    Args:
        lines: the lines.
        name: their name in messages.
        separator: what is between two fields.

    Raises:
        DataError: they are no CSV.
    """
    if separator != "\t":
        yield from rows_of(lines, name, separator)
        return
    yield from ((number, tuple(line.split("\t"))) for number, line in enumerate(lines, start=1) if line.strip())


def _expect_width(row: Row, width: int, name: str) -> Row:
    line, cells = row
    if len(cells) != width:
        expected = f"{quantity(width, 'field')}, as in the first line"
        hint = "Correct this line; a field of CSV that contains the separator must be quoted."
        raise DataError(Place(name, line), expected, f"{len(cells)}", hint)
    return row


def _names_columns(first: Sequence[str], known: Sequence[frozenset[str]]) -> bool:
    return all(any(cell.lower() in names for cell in first) for names in known)
