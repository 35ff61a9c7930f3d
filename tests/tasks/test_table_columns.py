"""Columns by position or name, of tables with any separator and of rows with names: read as two plain columns are."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cli.command import refused, run, succeeded

import qkv
from qkv.data.choices import Separator
from qkv.data.columns import SEPARATORS
from qkv.errors import ConfigError, DataError
from qkv.tasks.catalog import recipe_of
from qkv.tasks.notes import Verbosity, use_verbosity

ROLES: Mapping[str, tuple[str, str]] = {
    "classify": ("label", "text"),
    "translate": ("source", "target"),
    "tag": ("word", "tag"),
    "point": ("source", "target"),
}
ROWS: Mapping[str, Sequence[tuple[str, str]]] = {
    "classify": [(f"{'good' if n % 2 else 'bad'}", f'a "fine", dull; film {n}') for n in range(40)],
    "translate": [(f'der "Hund", {n};', f"the dog; {n}, {n}") for n in range(40)],
    "tag": [(f"Ada{n}", "B-PER") if n % 3 else ("wrote", "O") for n in range(40)],
    "point": [(f"{n},1 2,{n}", "2 1" if n % 2 else "1 2") for n in range(40)],
}


def read(task: str, data: Any, **more: Any) -> Any:
    """What defines a run that is trained on data."""
    recipe = recipe_of(task)
    used = recipe.load_settings({"data": {"data": data, **more}})
    with use_verbosity(Verbosity("quiet")):
        return recipe.read(used, None).identity()


def plain(task: str, folder: Path) -> Any:
    path = folder / "plain.tsv"
    end = "\n\n" if task == "tag" else "\n"
    path.write_text("".join(f"{first}\t{second}{end}" for first, second in ROWS[task]))
    return read(task, path)


@st.composite
def tables(draw: st.DrawFn) -> tuple[str, Separator, list[str], str | None, bool]:
    """A task, a separator, the order of columns among others, what begins their names, and whether sep is given.

    Columns whose names are the usual ones are given by position, as those of a table without names are.
    """
    task = draw(st.sampled_from(list(ROLES)))
    order = draw(st.permutations([*ROLES[task], "2", *draw(st.sampled_from([[], ["id", "score"]]))]))
    return (
        task,
        draw(st.sampled_from(["tab", "comma", "semicolon"])),
        order,
        draw(st.sampled_from([None, "", "my "])),
        draw(st.booleans()),
    )


@given(table=tables())
@settings(max_examples=60, deadline=None)
def test_any_table_is_read_as_two_plain_columns(
    table: tuple[str, Separator, list[str], str | None, bool], tmp_path_factory: pytest.TempPathFactory
) -> None:
    task, sep, order, begin, given_sep = table
    folder = tmp_path_factory.mktemp("table")
    mark, written = SEPARATORS[sep], io.StringIO()

    def add(cells: Sequence[str]) -> None:
        if sep == "tab":  # in which quotation marks are text
            written.write("\t".join(cells) + "\n")
        else:
            csv.writer(written, delimiter=mark, lineterminator="\n").writerow(cells)

    if begin is not None:
        add([begin + name if name in ROLES[task] else name for name in order])
    for first, second in ROWS[task]:
        values = dict(zip(ROLES[task], (first, second), strict=True))
        add([values.get(name, "7") for name in order])
        if task == "tag":
            written.write("\n")
    path = folder / ("table.tsv" if sep == "tab" else "table.csv" if len(order) % 2 else "table.txt")
    path.write_text(written.getvalue())
    columns: dict[str, Any] = {f"{name}_col": begin + name if begin else 1 + order.index(name) for name in ROLES[task]}
    if given_sep:
        columns["sep"] = sep
    if task == "translate":
        columns["cells"] = "texts"
    assert read(task, path, **columns) == plain(task, folder)


class Frame:
    """What pandas gives: columns, and rows without names."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self.columns, self._rows = list(rows[0]), rows

    def __iter__(self) -> Any:
        return iter(self.columns)

    def itertuples(self, index: bool, name: None) -> Any:
        return (tuple(row.values()) for row in self._rows)


class ArrowTable:
    """What Arrow gives."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self.column_names, self._rows = list(rows[0]), rows

    def to_pylist(self) -> Any:
        return list(self._rows)


FORMS: list[Any] = [list, iter, Frame, ArrowTable]


@pytest.mark.parametrize("form", FORMS)
def test_rows_with_names_are_read_as_pairs(form: Any, tmp_path: Path) -> None:
    pairs, texts, names = ROWS["translate"], ROWS["classify"], ROWS["tag"]
    assert read("translate", form([{"de": de, "en": en} for de, en in pairs])) == plain("translate", tmp_path)
    rows = [{"id": n, "text": text, "label": label} for n, (label, text) in enumerate(texts)]
    assert read("classify", form(rows)) == plain("classify", tmp_path)
    other = [{"what": text, "n": n, "how": label} for n, (label, text) in enumerate(texts)]
    assert read("classify", form(other), label_col="how", text_col="what") == plain("classify", tmp_path)
    sentences = [{"tokens": [word], "ner_tags": [tag], "id": n} for n, (word, tag) in enumerate(names)]
    assert read("tag", form(sentences)) == plain("tag", tmp_path)
    numbers = [{"year": 1990 + n, "rent": 2.0 * n, "area": float(n)} for n in range(9)]
    expected = read("regress", [(n, 2.0 * n) for n in range(9)], x=["area"], y="rent")
    assert read("regress", form(numbers), x=["area"], y="rent") == expected


def test_rows_of_datasets_and_labels_that_are_numbers(tmp_path: Path) -> None:
    pairs = ROWS["translate"]
    rows = [{"id": n, "translation": {"de": de, "en": en}} for n, (de, en) in enumerate(pairs)]
    assert read("translate", rows) == plain("translate", tmp_path)
    numbered = [{"sentence": f"film {n}", "label": n % 2} for n in range(30)]
    expected = read("classify", [(str(n % 2), f"film {n}") for n in range(30)])
    assert read("classify", numbered) == expected
    assert read("classify", [(np.int64(n % 2), np.str_(f"film {n}")) for n in range(30)]) == expected
    true = read("classify", [("True" if n % 2 else "False", f"film {n}") for n in range(30)])
    assert read("classify", [(n % 2 == 1, f"film {n}") for n in range(30)]) == true
    sources, targets = (np.array(side) for side in zip(*pairs, strict=True))
    recipe = recipe_of("translate")
    used = recipe.load_settings({"data": {"source": sources, "target": targets}})
    with use_verbosity(Verbosity("quiet")):
        assert recipe.read(used, None).identity() == plain("translate", tmp_path)


def test_pandas_itself(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(ROWS["classify"], columns=["label", "text"])
    assert read("classify", frame) == plain("classify", tmp_path)
    assert read("translate", pandas.DataFrame(ROWS["translate"])) == plain("translate", tmp_path)


def test_what_is_unclear_is_refused_with_what_to_name(tmp_path: Path) -> None:
    rows = [{"a": "x", "b": "y", "c": "z"}] * 30
    with pytest.raises(DataError) as error:
        read("classify", rows)
    assert "label_col" in error.value.hint
    path = tmp_path / "films.csv"
    path.write_text("id,kind,review\n" + "".join(f"{n},good,a film {n}\n{n},bad,a dull one {n}\n" for n in range(20)))
    refused(run("check", "classify", "--data", path), "--label-col: expected one of 3 columns", "its position")
    refused(run("check", "classify", "--data", path, "--label-col", "knd", "--text-col", "3"), 'Did you mean "kind"?')
    refused(run("check", "classify", "--data", path, "--label-col", "9", "--text-col", "3"), "from 1 to 3")
    done = succeeded(run("check", "classify", "--data", path, "--label-col", "kind", "--text-col", "review"))
    assert (
        "columns separated by commas: label from column 2 (kind), text from column 3 (review)"
        in done.stdout.splitlines()[0]
    )
    with pytest.raises(ConfigError) as config:
        read("translate", path, source_col="kind", target_col="review", target_sep=" ", sep="comma")
    assert config.value.argument == "sep"


def test_symbols_are_read_by_position_as_ever_and_by_name(tmp_path: Path) -> None:
    words = [(f"w{n}o", f"V;{n}", f"{n}ow") for n in range(30)]
    by_position, by_name = tmp_path / "words.tsv", tmp_path / "named.tsv"
    by_position.write_text("".join("\t".join(row) + "\n" for row in words))
    by_name.write_text("lemma\tfeatures\tpast\n" + by_position.read_text())
    positions = read("translate", by_position, source_col=1, target_col=3, features_col=2)
    names = read("translate", by_name, source_col="lemma", target_col="past", features_col="features")
    assert positions["table"]["target_col"] == 3
    assert {**names, "text": positions["text"]} == positions
    as_text = read("translate", by_position, source_col="1", target_col="3")
    assert as_text["table"] == read("translate", by_position, source_col=1, target_col=3)["table"]


@pytest.mark.parametrize(
    ("number", "more"),
    [
        ("1,234.5", {"thousands": "comma"}),
        ("1.234,5", {"thousands": "point", "decimal": "comma"}),
        ("1 234.5", {"thousands": "space"}),
        ("1\u202f234,5", {"thousands": "space", "decimal": "comma"}),
        ("1'234.5", {"thousands": "apostrophe"}),
    ],
)
def test_thousands_and_missing_values_are_read_as_they_are_named(
    number: str, more: dict[str, Any], tmp_path: Path
) -> None:
    lines = [f"{n};{number}" for n in range(5)]
    path, simple = tmp_path / "t.csv", tmp_path / "simple.csv"
    path.write_text("\n".join(["2019;rent", *lines, "7;#MISS", "8;-999"]) + "\n")
    simple.write_text("\n".join(["2019;rent", *(f"{n};1234.5" for n in range(5))]) + "\n")
    expected = read("regress", simple, x=["2019"], y="rent")
    more |= {"na": ["#MISS", "-999"]}
    assert read("regress", path, x=["2019"], y="2", missing="skip", **more) == expected
    assert read("regress", path, x=["1"], y="rent", skip=["empty"], sep="semicolon", **more) == expected
    with pytest.raises(DataError) as error:
        read("regress", path, x=["2019"], y="rent", **more)
    assert (error.value.line, error.value.got) == (7, '"#MISS"')


@pytest.mark.parametrize("number", ["12,34", "1,2345", "1,,234", "1,234,5"])
def test_what_groups_no_thousands_is_refused(number: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"x;y\n1;2\n2;{number}\n")
    with pytest.raises(DataError):
        read("regress", path, x=["x"], y="y", thousands="comma")


def test_python_and_command_name_the_same_columns(tmp_path: Path) -> None:
    path = tmp_path / "films.csv"
    path.write_text("text,label\n" + "".join(f'"a fine, film {n}",{"good" if n % 2 else "bad"}\n' for n in range(30)))
    report = qkv.check("classify", data=path)
    assert report.facts[0].endswith("label from column 2 (label), text from column 1 (text)")
    assert succeeded(run("check", "classify", "--data", path)).stdout == f"{report}\n"


def test_what_is_wrong_with_a_file_is_said_before_what_is_wrong_with_its_columns(tmp_path: Path) -> None:
    path, columns = tmp_path / "memory.csv", ["--source-col", "2", "--target-col", "3"]
    text = "ID,German,English\n" + "".join(f'{n},"ein Hund, {n}","a dog, {n}"\n' for n in range(30))
    path.write_text(text)
    refused(run("check", "translate", "--data", path), "--source-col: expected one of 3 columns", "ID, German, English")
    refused(run("check", "translate", "--data", path, *columns), "expected text in column 2", "--cells texts")
    done = succeeded(run("check", "translate", "--data", path, *columns, "--cells", "texts"))
    assert "source from column 2" in done.stdout
    path.write_text(text, encoding="utf-16")
    for more in ([], ["--source-col", "German", "--target-col", "English"]):
        refused(run("check", "translate", "--data", path, *more), "expected valid UTF-8", "iconv -f UTF-16")


def test_a_report_says_what_separates_columns_of_tags(tmp_path: Path) -> None:
    path = tmp_path / "tags.csv"
    path.write_text("id,token,ner\n" + "".join(f'{n},"Ada, {n}",B-PER\n{n},wrote,O\n\n' for n in range(30)))
    report = qkv.check("tag", data=path, word_col="token", tag_col="ner")
    assert report.facts[0] == f"{path}: columns separated by commas"


TABLES: Mapping[str, tuple[str, dict[str, str], list[str]]] = {
    "classify": (
        "id,kind,review\n" + "".join(f'{n},{"good" if n % 2 else "bad"},"a fine, film {n}"\n' for n in range(30)),
        {"label_col": "kind", "text_col": "3"},
        ["--model", "none"],
    ),
    "tag": (
        "place;form;name\n" + "".join(f"{n};Ada{n};B-PER\n{n};wrote;O\n\n" for n in range(30)),
        {"word_col": "form", "tag_col": "name", "sep": "semicolon"},
        ["--model", "none"],
    ),
    "translate": (
        "id,de,en\n" + "".join(f"{n},Hund {n},dog {n}\n" for n in range(30)),
        {"source_col": "de", "target_col": "en"},
        ["--model", "gru", "--embedding", "8", "--hidden", "8"],
    ),
    "point": (
        "n,list,first\n" + "".join(f"{n},{n} 0,{2 if n else 1}\n" for n in range(30)),
        {"source_col": "list", "target_col": "first"},
        ["--width", "8"],
    ),
}


@pytest.mark.parametrize("task", TABLES)
def test_a_run_is_scored_on_the_columns_of_its_training(task: str, tmp_path: Path) -> None:
    text, columns, more = TABLES[task]
    path, out = tmp_path / "table.csv", tmp_path / "run"
    path.write_text(text)
    flags = [part for name, item in columns.items() for part in (f"--{name.replace('_', '-')}", item)]
    steps = ["--steps", "2", "--batch-tokens", "64"]
    succeeded(run("train", task, "--data", path, *flags, *more, *steps, "--out", out))
    done = succeeded(run("evaluate", out, "--data", path))
    assert done.stdout
    assert "as in training: --" in done.stderr
    assert done.stdout == succeeded(run("evaluate", out, "--data", path, *flags)).stdout
    shown = succeeded(run("runs", out)).stdout
    assert all(f"{flag} {item}" in shown for flag, item in zip(flags[::2], flags[1::2], strict=True))
