"""Messy CSV files: what is read, and what is said of the rest."""

import csv
import re
from pathlib import Path

import numpy as np
import pytest

from qkv.data.choices import Decimal
from qkv.data.table import parse_table, parse_table_in_parts, read_table
from qkv.errors import ConfigError, DataError


def test_names_quotes_and_blank_lines() -> None:
    table = parse_table(["", 'age , "rent, €"', '1,"2"', "   ", ' 3 ,"4e1"', ""], "f.csv")
    assert table.columns == ("age", "rent, €")
    found = table.numbers(["rent, €", "age"])
    assert found.rows == ((2.0, 1.0), (40.0, 3.0))
    assert found.lines == (3, 5)


@pytest.mark.parametrize("between", [",", ";", "\t"])
def test_the_separator_is_that_of_the_first_line(between: str) -> None:
    assert parse_table([f"a{between}b", f"1{between}2"], "f").numbers(["a", "b"]).rows == ((1.0, 2.0),)


def test_without_names_columns_are_numbered() -> None:
    table = parse_table(["1;2,5", "3;NA"], "f")
    assert (table.columns, table.header, len(table.rows)) == (("1", "2"), False, 2)
    assert table.numbers(["2"], decimal="comma", missing="skip").rows == ((2.5,),)


def test_a_quoted_field_goes_over_lines() -> None:
    table = parse_table(["a,b", '"one', 'two",5', "x,6"], "f")
    assert table.numbers(["b"]).lines == (2, 4)


@pytest.mark.parametrize("field", ["", "NA", "nan", "?", "null", " N/A "])
def test_a_missing_number_is_refused_or_skipped_and_counted(field: str) -> None:
    table = parse_table(["a,b", "1,2", f"3,{field}"], "f.csv")
    with pytest.raises(DataError, match=r'f.csv:3: expected a number in column "b"; got .*missing="skip"'):
        table.numbers(["a", "b"])
    found = table.numbers(["a", "b"], missing="skip")
    assert (found.rows, found.skipped) == (((1.0, 2.0),), 1)
    assert table.numbers(["a"]).rows == ((1.0,), (3.0,)), "what is missing elsewhere does not matter"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["a,b", "1,2", "1,2,3"], "f:3: expected 2 fields, as in the first line; got 3"),
        (["a,b", '1,"2'], "f:2: expected fields as in RFC 4180"),
        (["a,b", "1,x"], 'f:2: expected a finite number in column "b"; got "x"'),
        (["a,b", "1,inf"], 'got "inf"'),
        (["a,b", "1,1_000"], 'got "1_000"'),
        (["a;b", "1;2,5"], 'decimal="comma"'),
        (["a,b"], 'f: expected numbers in "a", "b"; got no rows'),
        (["", "  "], "f: expected lines with columns; got none"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(lines: list[str], message: str) -> None:
    with pytest.raises(DataError) as raised:
        parse_table(lines, "f").numbers(["a", "b"])
    assert message in str(raised.value)


def test_thousands_are_not_taken_for_decimals() -> None:
    for field in ("1.234,5", "1.234", "1,234,5"):
        with pytest.raises(DataError, match=re.escape(f'got "{field}". ')):
            parse_table(["a;b", f"1;{field}"], "f").numbers(["b"], decimal="comma")


@pytest.mark.parametrize(
    ("fields", "advice"),
    [
        (["10,000"], "Remove what groups thousands"),
        (["1,200.50"], "Remove what groups thousands"),
        (["1,234", "0,5"], 'decimal="comma"'),
        (["1,234", "12,34"], 'decimal="comma"'),
        (["12 m"], "without units"),
        (["m", "f"], 'say so: categorical="a"'),
    ],
)
def test_the_advice_fits_the_column(fields: list[str], advice: str) -> None:
    table = parse_table(["a;b", *(f"{field};1" for field in fields)], "f.csv")
    with pytest.raises(DataError, match=f"^f.csv:2: .*{advice}"):
        table.numbers(["a"])


@pytest.mark.parametrize(("decimal", "other", "mark"), [("point", "comma", ","), ("comma", "point", ".")])
def test_the_advice_about_decimals_fits_what_can_be_chosen(decimal: Decimal, other: str, mark: str) -> None:
    for number, advice in ((f"116{mark}5", f"decimal {other}"), (f"116{mark}500", "groups thousands")):
        table = parse_table(["a;b", f"{number};1"], "f.csv")
        for fixed in ((), ("decimal",)):
            with pytest.raises(DataError) as raised:
                table.numbers(["a"], decimal=decimal, fixed=fixed)
            assert advice in raised.value.hint
            if fixed or advice == "groups thousands":
                assert "decimal=" not in raised.value.hint


@pytest.mark.parametrize("mark", ["\t", ";", ","])
@pytest.mark.parametrize("inside", ["\t", ";", ",", " "])
def test_a_mark_inside_quotation_marks_separates_nothing(mark: str, inside: str) -> None:
    table = parse_table([f'"price{inside} eur"{mark}area', f"1{mark}2"], "f.csv")
    assert table.columns == (f"price{inside} eur", "area")
    assert table.numbers(["area"]).rows == ((2.0,),)


def test_spaces_separate_where_every_line_has_as_many_fields() -> None:
    table = parse_table(["area  price", " 75   900", "80 1000 "], "f.csv")
    assert table.numbers(["area", "price"]).rows == ((75.0, 900.0), (80.0, 1000.0))
    assert parse_table(['"living area" price', "75 900"], "f.csv").columns == ("living area", "price")
    assert parse_table(["living area", "75", "80"], "f.csv").columns == ("living area",)


def test_a_field_can_be_as_long_as_a_line_and_the_limit_of_the_process_stays() -> None:
    limit = csv.field_size_limit()
    table = parse_table(["a,b", f"{'x' * 140_000},1", f'"{"x" * 140_000}",2'], "f.csv")
    assert table.numbers(["b"]).rows == ((1.0,), (2.0,))
    with pytest.raises(DataError, match=r"^f.csv:2: .*Shorten the field"):
        parse_table(["a,b", f'"{"x" * 2**20}"",1'], "f.csv")
    assert csv.field_size_limit() == limit


@pytest.mark.parametrize("delimiter", [" ", ",", ";", "\t"])
@pytest.mark.parametrize("title", ["", "run 7, morning\n", "made by\n\n"])
@pytest.mark.parametrize("names", [["x"], ["x", "y"], ["x1", "y", "z"]])
def test_names_are_read_as_savetxt_writes_them(delimiter: str, title: str, names: list[str], tmp_path: Path) -> None:
    rows = np.arange(3.0 * len(names)).reshape(3, -1)
    header = title + delimiter.join(names)
    np.savetxt(tmp_path / "t", rows, header=header, delimiter=delimiter, footer="the end")
    table = read_table(tmp_path / "t")
    assert table.columns == tuple(names)
    assert table.numbers(names).rows == tuple(map(tuple, rows.tolist()))
    lines = (tmp_path / "t").read_text().split("\n")
    parts = list(parse_table_in_parts(lines, "t"))
    assert parts[0].columns == table.columns
    assert tuple(row for part in parts for row in part.rows) == table.rows


@pytest.mark.parametrize(
    ("lines", "columns"),
    [
        (["#,name,x", "1,a,2"], ("#", "name", "x")),
        (["# x y", "1 2 3"], ("#", "x", "y")),
        (["#x y", "1 2"], ("#x", "y")),
        (["# units: m, s", "t,x", "1,2"], ("t", "x")),
        (["# units", "1,2"], ("1", "2")),
        (["a", "# 1"], ("a",)),
    ],
)
def test_other_marks_are_read_as_they_stand(lines: list[str], columns: tuple[str, ...]) -> None:
    assert parse_table(lines, "f").columns == columns


def test_a_column_that_does_not_exist_is_named_with_the_nearest() -> None:
    with pytest.raises(
        ConfigError, match=r'x: expected a column of f: "area", "rent"; got "aera"\. Did you mean "area"'
    ):
        parse_table(["area,rent", "1,2"], "f").expect(["aera"], "x")
    with pytest.raises(ConfigError, match="are called 1 to 2"):
        parse_table(["1,2"], "f").expect(["area"])
    with pytest.raises(ConfigError, match='got "a", 2 times'):
        parse_table(["a,a", "1,2"], "f").expect(["a"])


def test_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes("\ufeffa\n1\n".encode())
    assert read_table(tmp_path / "t.csv").columns == ("a",)
    with pytest.raises(DataError, match=r"none\.csv"):
        read_table(tmp_path / "none.csv")
