"""Columns of a TSV file in `qkv train translate`, `qkv evaluate` and `qkv translate`."""

from pathlib import Path

import pytest
from tests.cli.command import refused, run, succeeded

VERBS = ("walk", "talk", "look", "bark")
FORMS = {"V;PST": "ed", "V;PTCP;PRS": "ing"}
CONFIG = """
[model]
kind = "gru"
embedding = 16
hidden = 16
attention = 8
dropout = 0.0
[training]
steps = 6
learning_rate = 0.01
validate_every = 6
"""
COLUMNS = ["--source-col", "2", "--target-col", "1", "--features-col", "4"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of inflections with a column too many, and a run for each way to align."""
    folder = tmp_path_factory.mktemp("table")
    rows = [f"{verb}{ending}\t{verb}\tnote\t{marks}" for verb in VERBS for marks, ending in FORMS.items()]
    (folder / "verbs.tsv").write_text("".join(f"{row}\n" for row in rows))
    (folder / "run.toml").write_text(CONFIG)
    for name, more in (("soft", []), ("zeroth", ["--alignment", "monotonic-0"]), ("location", ["--score", "location"])):
        given = ["--data", folder / "verbs.tsv", "--valid-data", folder / "verbs.tsv", "--config", folder / "run.toml"]
        succeeded(run("train", "translate", *given, *COLUMNS, *more, "--out", folder / name))
    return folder


every = pytest.mark.parametrize("name", ["soft", "zeroth", "location"])


@every
def test_evaluation_reads_the_columns_of_training_and_writes_words(folder: Path, tmp_path: Path, name: str) -> None:
    done = succeeded(run("evaluate", folder / name, "--data", folder / "verbs.tsv", "--out", tmp_path / "out"))
    assert "exact_match" in done.stdout
    lines = (tmp_path / "out").read_text().splitlines()
    assert len(lines) == 8
    assert not any(" " in line for line in lines), "symbols are joined as the table does"
    moved = tmp_path / "moved.tsv"
    rows = [line.split("\t") for line in (folder / "verbs.tsv").read_text().splitlines()]
    moved.write_text("".join(f"{source}\t{marks}\t{target}\n" for target, source, _, marks in rows))
    columns = ["--source-col", "1", "--features-col", "2", "--target-col", "3"]
    assert succeeded(run("evaluate", folder / name, "--data", moved, *columns)).stdout == done.stdout


@every
def test_translation_takes_rows_of_the_table_or_columns_of_its_own(folder: Path, tmp_path: Path, name: str) -> None:
    succeeded(run("evaluate", folder / name, "--data", folder / "verbs.tsv", "--out", tmp_path / "out"))
    rows = (folder / "verbs.tsv").read_text()
    whole = succeeded(run("translate", folder / name, "--attention", tmp_path / "map.html", feed=rows))
    assert whole.stdout == (tmp_path / "out").read_text()
    assert "[PST]" in (tmp_path / "map.html").read_text()
    short = "".join("{1}\t{3}\n".format(*row.split("\t")) for row in rows.splitlines())
    given = ["--source-col", "1", "--features-col", "2"]
    assert succeeded(run("translate", folder / name, *given, feed=short)).stdout == whole.stdout


def test_the_viewer_reads_a_row(folder: Path, tmp_path: Path) -> None:
    row = (folder / "verbs.tsv").read_text().splitlines()[0]
    succeeded(run("view", folder / "zeroth", "--text", row, "--export", tmp_path / "page.html"))
    assert "[PST]" in (tmp_path / "page.html").read_text()


def test_what_is_wrong_is_named(folder: Path, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{a}{b}\t{b}{a}\n" for a in "abcdef" for b in "abcdef"))
    train = ["train", "translate", "--out", tmp_path / "run", "--data", folder / "verbs.tsv"]
    refused(run(*train), "verbs.tsv:1: expected 2 columns", "got 4 columns", "--source-col")
    refused(run(*train, "--features-col", "5"), "verbs.tsv:1: expected text in column 5; got 4 columns")
    refused(run(*train, "--source-col", "0"), "--source-col (data.source_col): expected at least 1; got 0")
    refused(run(*train, "--target-col", "1"), "--target-col (data.target_col): expected another column")
    refused(run(*train, "--alignment", "monotonic-0"), "model.kind: expected gru, lstm or rnn")
    refused(run(*train, "--alignment", "hard"), "--alignment (model.alignment): expected one of its names")
    succeeded(run(*train[:2], "--data", pairs, "--config", folder / "run.toml", "--out", tmp_path / "plain"))
    refused(run("evaluate", tmp_path / "plain", "--data", pairs, "--source-col", "1"), "one of plain text")
    refused(run("translate", tmp_path / "plain", "--source-col", "1", feed="ab\n"), "--source-col", "one of plain text")
    refused(run("translate", folder / "soft", feed="walk\n"), "line 1: expected text in column 4; got 1 column")
    assert not (tmp_path / "run").exists()
