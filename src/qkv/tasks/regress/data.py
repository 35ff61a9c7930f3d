"""Columns of a table, from a file or from rows of numbers."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from numbers import Real
from pathlib import Path
from typing import Any, final

import numpy as np

from qkv.data.columns import SEPARATORS
from qkv.data.normal_forms import normalize
from qkv.data.report import leaves_out, refuse
from qkv.data.table import Columns, FieldTable, read_table
from qkv.errors import ConfigError, DataError, Place, brief, nearest, quantity, setting
from qkv.settings import plain
from qkv.tasks.notes import reporting, state
from qkv.tasks.regress.settings import RegressFiles
from qkv.tasks.settings import SeparatorSettings

Array = np.ndarray[Any, np.dtype[np.float64]]
_MANY = 20
"""Copies are reported if they are more than one row in so many; a few measurements may well agree."""
_CODE = re.compile(r"-?9{2,}")
"""Numbers by which tables often say that one is missing."""


@final
@dataclass(frozen=True)
class RegressTable:
    """The rows of a regression.

    Args:
        x, y: the names of the input columns and of the target.
        categories: the categories of the input columns that hold some, whose positions are their numbers.
        rows: the inputs, the target, and the weight if there is one.
        weighted: whether there is.
    """

    x: tuple[str, ...]
    y: str
    categories: Mapping[str, tuple[str, ...]]
    rows: tuple[tuple[float, ...], ...]
    weighted: bool

    @property
    def inputs(self) -> Array:
        """(n, D)."""
        return np.array(self.rows)[:, : len(self.x)]

    @property
    def targets(self) -> Array:
        """(n,)."""
        return np.array(self.rows)[:, len(self.x)]

    @property
    def weights(self) -> Array | None:
        """(n,)."""
        return np.array(self.rows)[:, -1] if self.weighted else None


def separator_in(table: SeparatorSettings) -> str | None:
    """Return what separates the fields of a table; None to find out."""
    return None if table.sep is None else SEPARATORS[table.sep]


def read_columns(data: RegressFiles) -> RegressTable:
    """Read the input columns, the target and the weights.

    Raises:
        ConfigError: the file or a column is not given, or does not exist.
        DataError: a field is not a number, or a weight is below 0; the message gives file and line.
    """
    with reporting(data.skip):
        return _table(data)


def _table(data: RegressFiles) -> RegressTable:
    if data.data is None:
        raise ConfigError(setting("data"), setting("data", "FILE"), "none", "A CSV file, or one with tabs.")
    if isinstance(data.data, str | Path):
        _expect_given(data)
        table = read_table(Path(data.data), separator_in(data))
        (y_name, *weight), categorical = table.named([str(data.y), *_weights(data)]), table.named(data.categorical)
        data = replace(data, x=table.named(data.x), y=y_name, categorical=categorical, weights=next(iter(weight), None))
    else:
        data, table = _as_table(*_named_rows(data, data.data))
        _expect_given(data)
    _expect_different(data)
    y, weights = (str(data.y),), _weights(data)
    for flag, names in ((setting("x"), data.x), (setting("y"), y), (setting("weights"), weights)):
        table.expect(names, flag)
    categories = {name: table.categories(name, data.na or ()) for name in data.categorical}
    numbers = data.numbers(table, (*data.x, *y, *weights), categories)
    if numbers.skipped and data.missing == "skip":  # a report says of refused ones where they are
        state(f"{table.name}: {numbers.without_skipped}")
    _report_odd_columns(numbers, table.name, categories)
    numbers = _without_copies(numbers, table.name)
    rows = _weighted(numbers, table.name) if weights else numbers.rows
    names = numbers.names[: len(data.x)]  # in Unicode's form NFC
    return RegressTable(names, numbers.names[len(names)], categories, rows, bool(weights))


def _weights(data: RegressFiles) -> tuple[str, ...]:
    """Return the name of the column of weights, if there is one."""
    return () if data.weights is None else (data.weights,)


def _weighted(columns: Columns, name: str) -> tuple[tuple[float, ...], ...]:
    """Return the rows whose weight, the last number, is above 0."""
    for line, row in zip(columns.lines, columns.rows, strict=True):
        if row[-1] < 0:
            expected = f'a weight of at least 0 in column "{brief(columns.names[-1])}"'
            refuse("invalid", DataError(Place(name, line), expected, f"{row[-1]:g}", "A row of weight 0 is left out."))
    rows = tuple(row for row in columns.rows if row[-1] > 0)
    if not rows:
        raise DataError(Place(name), "a weight above 0", "only 0", "Rows of weight 0 are left out.")
    if any(row[-1] == 0 for row in columns.rows):
        count = sum(row[-1] == 0 for row in columns.rows)
        state(f"{name}: {count:,} of {len(columns.rows):,} rows have weight 0: left out.")
    return rows


def _report_odd_columns(columns: Columns, name: str, categories: Mapping[str, Sequence[str]]) -> None:
    """Say which columns are constant, or have numbers that are likely to stand for missing ones."""
    for column, numbers in zip(columns.names, zip(*columns.rows, strict=True), strict=True):
        label = f'{name}: column "{brief(column)}"'
        ordered = sorted(set(numbers))
        if column in categories:
            if len(ordered) == 1 and len(numbers) > 1:
                state(f"{label} has a single category: nothing can be learned from it.")
            continue
        width = ordered[-1] - ordered[0]
        if len(ordered) == 1 and len(numbers) > 1:
            state(f"{label} is {ordered[0]:g} in each of {len(numbers):,} rows: nothing can be learned from it.")
        elif width and not width * width:
            state(f"{label} varies by {width:g} at most, and the square of that is 0: choose another unit.")
        elif all(map(_is_date, ordered)):
            state(
                f"{label} seems to hold dates, year, month and day in one number: the last day of a month would be far "
                "from the first day of the next. Write days since a date."
            )
        for code, other_codes in ((ordered[0], ordered[1:]), (ordered[-1], ordered[:-1])):
            far = (
                len(other_codes) > 1
                and min(abs(code - other) for other in other_codes) > other_codes[-1] - other_codes[0]
            )
            if far and _CODE.fullmatch(f"{code:g}"):
                count = numbers.count(code)
                state(
                    f"{label} is {code:g} in {quantity(count, 'row')}, far from all others: if that stands for a "
                    "missing number, delete it."
                )


def _is_date(number: float) -> bool:
    """Return whether a number is a date written as YYYYMMDD, such as 20240131."""
    if not (number.is_integer() and 1600_01_01 <= number <= 2199_12_31):
        return False
    try:
        date.fromisoformat(f"{number:.0f}")
    except ValueError:
        return False
    return True


def _without_copies(columns: Columns, name: str) -> Columns:
    """Report rows that repeat an earlier one, and leave them out if asked."""
    first: dict[tuple[float, ...], int] = {}
    for row, line in zip(columns.rows, columns.lines, strict=True):
        first.setdefault(row, line)
    own = set(first.values())
    copied = [line for line in columns.lines if line not in own]
    rows, copies = len(columns.rows), len(copied)
    if leaves_out("duplicates", name, copied):
        return replace(columns, rows=tuple(first), lines=tuple(first.values()))
    if copies * _MANY > rows:
        state(
            f"{name}: {copies:,} of {rows:,} rows repeat an earlier one exactly, and leave-one-out predicts a row "
            "from its copies: delete them unless they are measurements of their own, or bandwidth and error come out "
            "too small."
        )
    return columns


def _expect_given(data: RegressFiles) -> None:
    """Refuse settings that name no columns."""
    for flag, names in ((setting("x"), data.x), (setting("y"), data.y)):
        if not names:
            hint = "As in " + setting("x", "age,income") + " " + setting("y", "rent") + "."
            raise ConfigError(flag, "the name of a column", "none", hint)


def _expect_different(data: RegressFiles) -> None:
    """Refuse settings that name a column twice, or a categorical column that is not an input."""
    for name in data.categorical:
        if name not in data.x:
            expected = "columns of " + setting("x")
            raise ConfigError(setting("categorical"), expected, f'"{name}"', nearest(name, data.x))
    columns = (*data.x, str(data.y), *_weights(data))
    for number, name in enumerate(columns):
        if name in columns[:number]:
            expected = "columns that differ from each other, " + setting("y") + " and " + setting("weights")
            raise ConfigError(setting("x"), expected, f'"{name}" twice', "Name each column once.")


def _row(row: object) -> tuple[Any, ...]:
    """Return a row of Python data; anything else becomes a single field, which is refused later."""
    return tuple(row) if isinstance(row, Iterable) and not isinstance(row, str | bytes) else (row,)


def category_name(cell: object) -> str:
    """Return the name of a category, which can be a number.

    Example:
        >>> category_name("Bonn"), category_name(1), category_name(1.0)
        ('Bonn', '1', '1')
    """
    return f"{float(cell):.15g}" if isinstance(cell, Real) else normalize("NFC", str(cell).strip())


def _named_rows(data: RegressFiles, values: Iterable[Any]) -> tuple[RegressFiles, list[tuple[Any, ...]]]:
    """Return rows of numbers; of rows with names, the columns that are given, or all of them, with y as the last."""
    rows = list(map(plain, values))
    if not rows or not all(isinstance(row, Mapping) for row in rows):
        return data, [_row(row) for row in rows]
    names = [str(name) for name in rows[0]]
    y = data.y or names[-1]
    x = tuple(data.x) or tuple(name for name in names if name not in (y, data.weights))
    for flag, columns in (("x", x), ("y", (y,)), ("weights", _weights(data))):
        for name in columns:
            if name not in names:
                expected = f"a column of data: {', '.join(map(brief, names[:12]))}"
                raise ConfigError(setting(flag), expected, f'"{name}"', nearest(name, names))
    taken = (*x, y, *_weights(data))
    return replace(data, x=x, y=y), [tuple(_or_missing(row.get(name)) for name in taken) for row in rows]


def _or_missing(value: Any) -> Any:
    return math.nan if value is None else value


def _digits(number: Real) -> str:
    try:
        return repr(float(number))
    except OverflowError:  # a whole number that no float holds
        return str(number) if isinstance(number, int) else repr(math.inf)


def _as_table(data: RegressFiles, rows: Sequence[tuple[Any, ...]]) -> tuple[RegressFiles, FieldTable]:
    """Return rows of numbers as a table, and the settings with the names of its columns; usually the last is y."""
    if not rows:
        raise DataError("data", "at least one item", "none", "Was an iterator already read?")
    count = len(rows[0]) - 1 - (data.weights is not None)
    x = data.x or (tuple(f"x{n}" for n in range(1, count + 1)) if count > 1 else ("x",))
    names = (*x, data.y or "y", *_weights(data))
    texts = [name in data.categorical for name in names]
    for number, row in enumerate(rows, start=1):
        if len(row) != len(names) or not all(
            isinstance(cell, Real) or (text and isinstance(cell, str)) for cell, text in zip(row, texts, strict=True)
        ):
            expected = f"{len(names)} numbers, for {', '.join(names)}"
            raise DataError(Place("data", number), expected, repr(row)[:80], "For example (1.5, 20.0).")
    fields = tuple(
        (number, tuple(category_name(cell) if text else _digits(cell) for cell, text in zip(row, texts, strict=True)))
        for number, row in enumerate(rows, start=1)
    )
    if len(rows) < len(names):
        state(f"data: {len(rows)} rows of {len(names)} numbers: if these are the columns, give zip(*data).")
    return replace(data, x=x, y=names[len(x)], decimal=None), FieldTable("data", names, fields, header=True)
