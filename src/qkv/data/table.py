"""Columns of numbers from CSV files.

Fields are separated by tabs if the first line has one outside quotation marks, else by semicolons, else by commas, else
by spaces if every line has as many fields as the first; they may be quoted as RFC 4180 says. The first line names the
columns, unless all its fields are numbers or empty: then columns are called 1, 2, 3 and so on. Names are brought to
Unicode's form NFC. Lines before it that begin with "# " are comments, and then all such lines are; the last one
names the columns of rows of numbers if it has as many fields, as numpy.savetxt writes it. Every problem is a
`DataError` that starts with `file:line`.
"""

import csv
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from types import MappingProxyType
from typing import final

from qkv.data.choices import Decimal, Missing, Thousands
from qkv.data.corpus import LONGEST_LINE, Lines, in_parts, read_lines
from qkv.data.hints import ROWS, Section, number_hint, seems
from qkv.data.normal_forms import normalize
from qkv.data.report import collecting, expect_some_left, refuse, refused, say
from qkv.errors import ConfigError, DataError, Place, brief, nearest, quantity, setting

Row = tuple[int, tuple[str, ...]]
"""The line of a row, from 1, and its fields."""
MISSING = frozenset({"", "na", "n/a", "#n/a", "nan", "null", "none", "?", ".", "-", "\u2013", "\u2014"})
"""Fields that count as missing, in lower case."""
_LARGEST = 1e150
"""Squares of larger numbers are beyond float64."""
_DIGIT = re.compile(r"\d")
_NO_GROUPS = {
    mark: re.compile(rf"[-+]?(\d*{shown}(\d{{1,2}}|\d{{4,}})|0\d*{shown}\d+|\d{{4,}}{shown}\d+)")
    for mark, shown in ((",", ","), (".", r"\."))
}
"""Numbers whose comma or point cannot group thousands."""
_LOOKED_AT = 1000
"""Lines that must have as many fields."""
_GROUPS: Mapping[str, re.Pattern[str]] = MappingProxyType(
    {
        name: re.compile(rf"^[-+]?\d{{1,3}}([{marks}]\d{{3}})+(?![\d{marks}])")
        for name, marks in (("comma", ","), ("point", "."), ("space", " \u00a0\u2009\u202f"), ("apostrophe", "'\u2019"))
    }
)
_INFINITE = re.compile("[-+]?inf(inity)?", re.IGNORECASE)
SEPARATOR_NAMES: Mapping[str, str] = MappingProxyType({"\t": "tabs", ";": "semicolons", ",": "commas", " ": "spaces"})
"""What can separate the fields of a table."""
_COMMENT = re.compile(r"#( +|$)")
_SEPARATED = "columns between commas, semicolons or tabs"
QUOTED = re.compile(r'"[^"]*"?')


@final
@dataclass(frozen=True)
class Columns:
    """Some columns of a file.

    Args:
        names: their names.
        rows: one number per column.
        lines: the line of each row in the file, from 1.
        skipped: how many rows were left out because a number is missing.
    """

    names: tuple[str, ...]
    rows: tuple[tuple[float, ...], ...]
    lines: tuple[int, ...]
    skipped: int

    @property
    def without_skipped(self) -> str:
        """Say how many rows were left out; "" for none."""
        return skipped_text(self.skipped, self.skipped + len(self.rows))


@final
@dataclass(frozen=True)
class FieldTable:
    """The fields of a file.

    Args:
        name: the file's name in messages.
        columns: the names of its columns.
        rows: line (from 1) and fields of each row.
        header: whether the first line named the columns.
    """

    name: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    header: bool

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.rows)

    def numbers(
        self,
        names: Sequence[str],
        *,
        decimal: Decimal = "point",
        missing: Missing = "refuse",
        fixed: Collection[str] = (),
        categories: Mapping[str, Sequence[str]] = MappingProxyType({}),
        na: Collection[str] = (),
        thousands: Thousands | None = None,
        part: bool = False,
    ) -> Columns:
        """Read columns as numbers.

        Args:
            names: the columns; at least one.
            decimal: what separates the decimals, in every field.
            missing: whether to refuse a row with a missing number, or to skip it.
            fixed: which settings the user cannot choose, so that no message proposes them.
            na: what else stands for a missing number, besides `MISSING`.
            thousands: what groups thousands, in every field.
            part: whether rows of other parts of the file are read too, so that none of this one need be left.
            categories: the categories of columns that hold them, which are read as their positions there.

        Returns:
            The columns, in the given order.

        Raises:
            ConfigError: as for `expect`.
            DataError: a field is missing, is not a finite number or none of the categories, or no row is left; the
                message gives its line.

        Example:
            >>> table = parse_table(["city;t", "Bonn;1,5", "Ulm;"], "f.csv")
            >>> table.numbers(["t"], decimal="comma", missing="skip").rows
            ((1.5,),)
        """
        names = [normalize("NFC", name) for name in names]
        self.expect(names)
        indices = [self.columns.index(name) for name in names]
        rows, lines, skipped = [], [], 0
        for line, fields in self.rows:
            cells = [fields[index].strip() for index in indices]
            if any(field.lower() in MISSING or field in na for field in cells):
                skipped += 1
                if missing == "refuse":
                    refuse("empty", self._missing(line, cells, names, fixed, na))
                continue
            try:
                rows.append(
                    tuple(
                        self._category(field, name, line, categories[name])
                        if name in categories
                        else self._number(field, name, line, decimal, fixed, thousands)
                        for field, name in zip(cells, names, strict=True)
                    )
                )
            except DataError as error:
                refuse("invalid", error)
                continue
            lines.append(line)
        if not rows and not (part and skipped):
            expect_some_left()
            got = "a missing number in every row" if skipped else "no rows"
            hint = "Check the columns' names and the file."
            raise DataError(Place(self.name), f"numbers in {_listed(names)}", got, hint)
        return Columns(tuple(names), tuple(rows), tuple(lines), skipped)

    def named(self, columns: Sequence[str]) -> tuple[str, ...]:
        """Return columns by their names; a position from 1 stands for a column if no column has it as a name.

        Example:
            >>> parse_table(["id,2019", "1,5"], "f.csv").named(["1", "2019"])
            ('id', '2019')
        """
        known = set(self.columns)
        positions = {str(number): name for number, name in enumerate(self.columns, start=1)}
        return tuple(
            column if normalize("NFC", column) in known else positions.get(column, column) for column in columns
        )

    def expect(self, names: Sequence[str], flag: str = "columns") -> None:
        """Check that columns exist.

        Args:
            names: the columns.
            flag: what named them, for messages.

        Raises:
            ConfigError: there is no such column (the message suggests the closest one), or it exists twice.
        """
        for name in (normalize("NFC", name) for name in names):
            count = self.columns.count(name)
            if count > 1:
                hint = "Give every column its own name."
                raise ConfigError(flag, "a column that exists once", f'"{name}", {count} times', hint)
            if count == 0:
                hint = nearest(name, self.columns)
                if not self.header:
                    numbered = f"1 to {len(self.columns)}"
                    hint = f"The first line of {self.name} is numbers, so its columns are called {numbered}."
                raise ConfigError(flag, f"a column of {self.name}: {_listed(self.columns[:12])}", f'"{name}"', hint)

    def expect_all(self, names: Sequence[str]) -> None:
        """Check that the table has the columns that something else needs.

        Args:
            names: the columns.

        Raises:
            DataError: it lacks one, or has it twice; the message gives its columns.
        """
        for name in (normalize("NFC", name) for name in names):
            count = self.columns.count(name)
            if count == 0:
                got, hint = _listed(self.columns[:12]), "Name the columns in the first line as in training."
            elif count > 1:
                got, hint = f"{count} columns of that name", "Give every column its own name."
            else:
                continue
            raise DataError(Place(self.name), f'a column "{brief(name)}"', got, hint)

    def _missing(
        self, line: int, cells: Sequence[str], names: Sequence[str], fixed: Collection[str], na: Collection[str]
    ) -> DataError:
        index = next(index for index, field in enumerate(cells) if field.lower() in MISSING or field in na)
        got = f'"{cells[index]}"' if cells[index] else "an empty field"
        hint = "Fill it, delete the line, or leave such lines out with " + setting("missing", "skip") + "."
        if "missing" in fixed or collecting():
            hint = "Fill it, or delete the line."
        return DataError(Place(self.name, line), f'a number in column "{brief(names[index])}"', got, hint)

    def categories(self, name: str, na: Collection[str] = ()) -> tuple[str, ...]:
        """Return the categories of a column, sorted; missing fields, and those of `na`, are none.

        Raises:
            ConfigError: as for `expect`.

        Example:
            >>> parse_table(["city,t", "Ulm,1", "Bonn,2", "Ulm,"], "f.csv").categories("city")
            ('Bonn', 'Ulm')
        """
        self.expect([name])
        index = self.columns.index(normalize("NFC", name))
        fields = {normalize("NFC", row[index].strip()) for _, row in self.rows}
        return tuple(sorted(field for field in fields if field.lower() not in MISSING and field not in na))

    def _category(self, field: str, name: str, line: int, categories: Sequence[str]) -> float:
        field = normalize("NFC", field)
        if field not in categories:
            expected = f'a category of column "{brief(name)}": {_listed(categories[:12])}'
            raise DataError(Place(self.name, line), expected, f'"{brief(field)}"', nearest(field, categories))
        return float(categories.index(field))

    def _number(
        self, field: str, name: str, line: int, decimal: Decimal, fixed: Collection[str], thousands: Thousands | None
    ) -> float:
        text = field if thousands is None else _GROUPS[thousands].sub(_ungrouped, field)
        if decimal == "comma":
            # A point would be a thousands separator: 1.234 is not read as 1 and some.
            text = "" if "." in text or text.count(",") > 1 else text.replace(",", ".")
        try:
            number = float(text) if "_" not in text else math.nan
        except ValueError:
            number = math.nan
        if not abs(number) < _LARGEST:
            expected = f'a finite number in column "{brief(name)}"'
            hint = self._number_advice(field, name, decimal, fixed)
            raise DataError(Place(self.name, line), expected, f'"{brief(field)}"', hint)
        return number

    def _number_advice(self, field: str, name: str, decimal: Decimal, fixed: Collection[str]) -> str:
        """Advise on a field that is no number, in view of its whole column."""
        column = self.columns.index(name)
        fields = [row[column].strip() for _, row in self.rows]
        if normalize("NFC", field) == name:
            return "It is the name of the column: delete the line, which repeats the header."
        if not any(_DIGIT.search(cell) for cell in fields) and not _INFINITE.fullmatch(field):
            categories = "If it is one of categories, say so: " + setting("categorical", name) + "."
            return "The column holds text. " + ("Give numbers." if "categorical" in fixed else categories)
        if (advice := number_hint(field, _LARGEST, "cell")) is not None:
            skip = " Or leave it empty and give " + setting("missing", "skip") + "."
            may_be_empty = field.startswith("#") or _INFINITE.fullmatch(field)
            return advice + (skip if may_be_empty and "missing" not in fixed else "")
        other_mark, mark = (",", "comma") if decimal == "point" else (".", "point")
        if any(map(_NO_GROUPS[other_mark].fullmatch, fields)):
            say = "say so with " + setting("decimal", mark)
            say = f"write a {decimal}, as in training" if "decimal" in fixed else say
            return f"If it has a decimal {mark}, " + say + "."
        grouped = _DIGIT.search(field) and other_mark in field
        usual = f"Write it with a decimal {decimal}, without units or thousands separators."
        if not grouped:
            return usual
        remove = f"Remove what groups thousands: each {mark} of the column is one"
        return remove + ("." if "thousands" in fixed else ", or say so with " + setting("thousands", mark) + ".")


def skipped_text(skipped: int, total: int) -> str:
    """Say how many rows were left out because a number is missing; "" for none.

    Example:
        >>> skipped_text(1, 3), skipped_text(0, 3)
        ('1 of 3 rows lack a number and are skipped.', '')
    """
    return f"{skipped:,} of {total:,} rows lack a number and are skipped." if skipped else ""


def _ungrouped(match: re.Match[str]) -> str:
    return re.sub(r"[^-+\d]", "", match[0])


def read_table(path: Path | Lines, sep: str | None = None) -> FieldTable:
    """Read the fields of a CSV file.

    Args:
        path: the file; `.gz` is decompressed.
        sep: what separates fields; None to find out.

    Returns:
        Its fields.

    Raises:
        DataError: the file cannot be read or is not UTF-8, a quotation mark is not closed, or a row does not have as
            many fields as the first line.
    """
    return parse_table(read_lines(path, blank=True), str(path), sep)


def parse_table(lines: Sequence[str], name: str, sep: str | None = None) -> FieldTable:
    """Split lines into fields.

    Args:
        lines: the lines, without line ends; those of white space only are skipped.
        name: their name in messages.
        sep: what separates fields; None to find out.

    Returns:
        The fields.

    Raises:
        DataError: as for `read_table`.

    Example:
        >>> parse_table(['"a, b",c', "1,2"], "f.csv").columns
        ('a, b', 'c')
        >>> parse_table(["1.5,2"], "f.csv").columns
        ('1', '2')
    """
    lines = list(_uncommented(lines))
    separator = sep or _separator(lines)
    empty, rows = _read_header(lines, name, separator)
    if len(empty.columns) > 1:
        say(f"{name}: columns separated by {SEPARATOR_NAMES[separator]}")
    return replace(empty, rows=tuple(rows))


def parse_table_in_parts(
    lines: Iterable[str], name: str, sep: str | None = None, *, line_buffered: bool = False
) -> Iterator[FieldTable]:
    """Split lines that come one by one into fields, as `parse_table` does, in tables of 1, 2, 4, … 1,024 rows.

    A separator that is not given follows from the first line; if that has only spaces, from the first two.

    Args:
        lines: the lines; read only as far as a table needs them.
        name: their name in messages.
        sep: what separates fields; None to find out.
        line_buffered: whether each table has one row.

    Returns:
        An iterator over tables with the same columns; a first one without rows if there are none.

    Raises:
        DataError: as for `read_table`.

    Example:
        >>> [len(table.rows) for table in parse_table_in_parts(["area,rent", *["75,900"] * 6], "f.csv")]
        [1, 2, 3]
    """
    remaining = iter(lines)
    start: list[str] = []
    filled = 0
    for line in remaining:
        start.append(line)
        filled += bool(line.strip()) and not _COMMENT.match(line)
        if filled == 2 or (filled == 1 and (_mark(line) is not None or len(_words(line)) < 2)):
            break
    uncommented = _uncommented(start, remaining)
    start = list(islice(uncommented, len(start)))
    empty, rows = _read_header(chain(start, uncommented), name, sep or _separator(start))
    any_rows = False
    for part in in_parts(rows, line_buffered=line_buffered, size=lambda row: sum(map(len, row[1]))):
        any_rows = True
        yield replace(empty, rows=tuple(part))
    if not any_rows:
        yield empty


def _uncommented(start: Sequence[str], remaining: Iterable[str] = ()) -> Iterator[str]:
    """Empty the comments of lines that begin with some, so that every other line keeps its number.

    Args:
        start: the lines at least up to the first row.
        remaining: those behind it.
    """
    first = next((index for index, line in enumerate(start) if line.strip() and not _COMMENT.match(line)), len(start))
    comments, shape = list(start[:first]), _shape(start[first] if first < len(start) else "")
    marked = [index for index, line in enumerate(comments) if _COMMENT.match(line)]
    numbers = first < len(start) and any(map(_like_number, _fields(start[first])))
    names = [index for index in marked if numbers and _shape(_COMMENT.sub("", comments[index])) == shape]
    if not marked or (not names and shape == _shape(comments[marked[0]]) == (None, shape[1])):
        return chain(start, remaining)  # without comments, or the first column is called "#"
    for index in names[-1:]:
        comments[index] = _COMMENT.sub("", comments[index])
    return ("" if _COMMENT.match(line) else line for line in chain(comments, start[first:], remaining))


def _read_header(lines: Iterable[str], name: str, between: str) -> tuple[FieldTable, Iterator[Row]]:
    """Return a table without rows, and the rows below its header."""
    rows = rows_of(lines, name, between)
    first = next(rows, None)
    if first is None or any(refused(line, name) for line in range(1, first[0])):  # the names of the columns are lost
        expect_some_left()
    if first is None:
        raise DataError(Place(name), "lines with columns", "none", "Check how the file was made.")
    line = "".join(first[1]).strip()
    if (excel := seems(line, "separator line")) is not None:
        raise DataError(Place(name, first[0]), "names of columns", *excel)
    sections: tuple[Section, ...] = ("table", "table of one column") if len(first[1]) == 1 else ("table",)
    if (known := seems(line, *sections)) is not None:
        raise DataError(Place(name, first[0]), _SEPARATED, *known)
    header = not all(_like_number(field) for field in first[1])
    columns = (
        tuple(normalize("NFC", field.strip()) for field in first[1])
        if header
        else tuple(str(n + 1) for n in range(len(first[1])))
    )
    body = rows if header else chain([first], rows)
    return FieldTable(name, columns, (), header), even_rows(body, len(columns), name, _expect_fields)


def even_rows(rows: Iterable[Row], count: int, name: str, expect: Callable[[Row, int, str], Row]) -> Iterator[Row]:
    """Yield the rows that have as many fields as the first, and refuse the others, unless they are refused already.

    Args:
        rows: the rows.
        count: how many fields the first has.
        name: their name in messages.
        expect: returns a row, or raises the error about the number of its fields; takes count and name too.

    Raises:
        DataError: a row has another number, and nothing collects such lines.
    """
    for row in rows:
        if not refused(row[0], name):
            try:
                yield expect(row, count, name)
            except DataError as error:
                refuse("columns", error)


def _expect_fields(row: Row, count: int, name: str) -> Row:
    line, fields = row
    if len(fields) != count:
        if len(fields) == 1 and (problem := seems(fields[0], "misplaced line")) is not None:
            raise DataError(Place(name, line), f"{count} fields, as in the first line", *problem)
        hint = "Correct this line; a field that contains the separator must be quoted."
        if count == 1:
            hint += " Delete the first line if it is a title."
        elif len(fields) == count + 1 and line == 2:
            hint += " If rows begin with a name, as R writes them, name that column too, or write row.names = FALSE."
            if not fields[-1].strip():
                hint = "Remove the separator at the end of the line."
        expected = f"{quantity(count, 'field')}, as in the first line"
        raise DataError(Place(name, line), expected, f"{len(fields)}", hint)
    return row


def rows_of(lines: Iterable[str], name: str, between: str) -> Iterator[Row]:
    """Yield the line and the fields of each row of CSV; blank lines are no rows.

    Args:
        lines: the lines, without line ends.
        name: their name in messages.
        between: what separates fields.

    Raises:
        DataError: they are no CSV as in RFC 4180.
    """
    if between == " ":
        lines = (line.strip() for line in lines)
    last = ""

    def ended() -> Iterator[str]:
        nonlocal last
        for last in lines:
            yield f"{last}\n"

    reader = csv.reader(ended(), delimiter=between, skipinitialspace=True, strict=True)
    while True:
        start = reader.line_num + 1
        usual = csv.field_size_limit(LONGEST_LINE)  # which the library has for the whole process
        try:
            fields = next(reader, None)
        except csv.Error as error:
            raise _refused(last, Place(name, start), str(error)) from None
        finally:
            csv.field_size_limit(usual)
        if fields is None:
            return
        if any(field.strip() for field in fields) or len(fields) > 1:
            yield start, tuple(fields)


def _refused(line: str, where: Place, reason: str) -> DataError:
    """Return the error about a line that is no row of CSV."""
    if where.line == 1 and (known := seems(line, "format")) is not None:
        return DataError(where, _SEPARATED, known[0], ROWS)
    hint = "Close the quotation mark, and double those inside a quoted field."
    if "limit" in reason:
        hint = f"Shorten the field; is the quotation mark in line {where.line} closed?"
    return DataError(where, "fields as in RFC 4180", *(seems(line, "misplaced line") or (reason, hint)))


def _separator(lines: Sequence[str]) -> str:
    filled = [line for line in lines if line.strip()]
    mark = _mark(filled[0]) if filled else None
    if mark is not None:  # the first one, unless another alone splits the first lines evenly
        start = [QUOTED.sub("x", line) for line in filled[:_LOOKED_AT]]
        widths = {other: {line.count(other) for line in start} for other in "\t;,"}
        even = [other for other, counts in widths.items() if len(counts) == 1 and counts != {0}]
        mark = even[0] if even else mark
    if mark is None:
        first, *rest = (len(_words(line)) for line in filled or [""])
        # R writes a name in front of each row, and none in front of those of the columns.
        mark = " " if (first > 1 and set(rest) <= {first}) or (first > 1 and set(rest) == {first + 1}) else ","
    return mark


def _mark(line: str) -> str | None:
    """Return the first of tab, semicolon and comma that occurs outside quotation marks; None if none does."""
    bare = QUOTED.sub("", line)
    return next((mark for mark in "\t;," if mark in bare), None)


def _shape(line: str) -> tuple[str | None, int]:
    """Return what separates the fields of a line, and how many there are."""
    return _mark(line), len(_fields(line))


def _fields(line: str) -> list[str]:
    mark = _mark(line)
    return _words(line) if mark is None else QUOTED.sub("x", line).split(mark)


def _words(line: str) -> list[str]:
    return QUOTED.sub("x", line).split()


def _like_number(field: str) -> bool:
    text = field.strip().lower()
    if text in MISSING:
        return True
    for written in (text, *(groups.sub(_ungrouped, text) for groups in _GROUPS.values())):
        with suppress(ValueError):
            float(written.replace(",", "."))
            return True
    return False


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f'"{brief(name)}"' for name in names)
