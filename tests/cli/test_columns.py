"""Columns of a TSV file in `qkv train translate`, `qkv evaluate` and `qkv translate`."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from tests.cli.command import refused, run, succeeded
from tests.pairs import fast
from tests.view.saved import answers

VERBS = ("walk", "talk", "look", "bark")
FORMS = {"V;PST": "ed", "V;PTCP;PRS": "ing"}
CONFIG = """
[model]
model = "gru"
embedding = 16
hidden = 16
attention = 8
dropout = 0.0
[training]
steps = 6
learning_rate = 0.01
validate_every = 6
"""
TRANSFORMER = """
[model]
width = 16
heads = 2
feed_forward = 16
encoder_layers = 1
decoder_layers = 2
dropout = 0.0
[training]
steps = 6
validate_every = 6
"""
TWO = ["--source-tokenizer", "none", "--target-tokenizer", "none"]
WAYS = {
    "soft": [],
    "zeroth": ["--alignment", "monotonic-0"],
    "location": ["--score", "location"],
    "location-heads": ["--score", "location", "--heads", "4"],
    "separate": ["--features", "separate"],
    "separate-location": ["--features", "separate", "--score", "location"],
    "separate-heads": ["--features", "separate", "--heads", "2", *TWO],
    "separate-transformer": ["--features", "separate", "--model", "transformer"],
    "two": TWO,
    "two-zeroth": [*TWO, "--alignment", "monotonic-0"],
}
COLUMNS = ["--source-col", "2", "--target-col", "1", "--features-col", "4"]
FEW = ["--max-tokens", "8"]
"""Models that have learned little end no line by themselves."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of inflections with a column too many, and settings."""
    folder = tmp_path_factory.mktemp("table")
    rows = [f"{verb}{ending}\t{verb}\tnote\t{marks}" for verb in VERBS for marks, ending in FORMS.items()]
    (folder / "verbs.tsv").write_text("".join(f"{row}\n" for row in rows))
    (folder / "run.toml").write_text(CONFIG)
    (folder / "transformer.toml").write_text(TRANSFORMER)
    return folder


@pytest.fixture(scope="module")
def trained(folder: Path) -> Callable[[str], Path]:
    """The run of a way to align; trained when a test first asks for it."""

    @cache
    def train(name: str) -> Path:
        config = folder / ("transformer.toml" if "transformer" in name else "run.toml")
        given = ["--data", folder / "verbs.tsv", "--valid-data", folder / "verbs.tsv", "--config", config]
        succeeded(run("train", "translate", *given, *COLUMNS, *WAYS[name], "--out", folder / name))
        return folder / name

    return train


every = pytest.mark.parametrize("name", fast(WAYS, "zeroth", "separate-heads", "separate-transformer"))


@pytest.fixture(scope="module")
def evaluated(folder: Path, trained: Callable[[str], Path]) -> Callable[[str], tuple[str, str]]:
    """The figures of each run on its own table, and what it writes there."""

    @cache
    def evaluate(name: str) -> tuple[str, str]:
        out = folder / f"{name}.out"
        done = succeeded(run("evaluate", trained(name), "--data", folder / "verbs.tsv", *FEW, "--out", out))
        return done.stdout, out.read_text()

    return evaluate


@every
def test_evaluation_reads_the_columns_of_training_and_writes_words(
    folder: Path,
    trained: Callable[[str], Path],
    evaluated: Callable[[str], tuple[str, str]],
    tmp_path: Path,
    name: str,
) -> None:
    figures, written = evaluated(name)
    assert "exact_match" in figures
    lines = written.splitlines()
    assert len(lines) == 8
    assert not any(" " in line for line in lines), "symbols are joined as the table does"
    moved = tmp_path / "moved.tsv"
    rows = [line.split("\t") for line in (folder / "verbs.tsv").read_text().splitlines()]
    moved.write_text("".join(f"{source}\t{marks}\t{target}\n" for target, source, _, marks in rows))
    columns = ["--source-col", "1", "--features-col", "2", "--target-col", "3"]
    assert succeeded(run("evaluate", trained(name), "--data", moved, *columns, *FEW)).stdout == figures


@every
def test_translation_takes_rows_of_the_table_or_columns_of_its_own(
    folder: Path,
    trained: Callable[[str], Path],
    evaluated: Callable[[str], tuple[str, str]],
    tmp_path: Path,
    name: str,
) -> None:
    rows = (folder / "verbs.tsv").read_text()
    whole = succeeded(run("translate", trained(name), *FEW, "--attention", tmp_path / "map.html", feed=rows))
    assert whole.stdout == evaluated(name)[1]
    assert "[PST]" in (tmp_path / "map.html").read_text()
    short = "".join("{1}\t{3}\n".format(*row.split("\t")) for row in rows.splitlines())
    given = ["--source-col", "1", "--features-col", "2"]
    assert succeeded(run("translate", trained(name), *given, *FEW, feed=short)).stdout == whole.stdout


@every
def test_symbols_are_aligned(folder: Path, trained: Callable[[str], Path], tmp_path: Path, name: str) -> None:
    """Words of an alignment are the symbols of the columns, features included."""
    done = succeeded(run("align", trained(name), "--data", folder / "verbs.tsv", "--json"))
    found = [json.loads(line) for line in done.stdout.splitlines()]
    rows = [line.split("\t") for line in (folder / "verbs.tsv").read_text().splitlines()]
    for one, (target, source, _, marks) in zip(found, rows, strict=True):
        features = [f"[{mark}]" for mark in marks.split(";")]
        separate = [*source, "|", *features]
        assert one["source"] == (separate if name.startswith("separate") else [*features, *source])
        assert one["target"] == list(target)
        assert sorted(place for _, place in one["links"]) == list(range(len(target)))
        if name.startswith("separate"):
            assert all(place < len(source) for place, _ in one["links"]), "of the attention to the source"
    gold = tmp_path / "gold"
    gold.write_text("0-0\n" * len(rows))
    both = ["--valid-data", folder / "verbs.tsv", "--valid-gold", gold]
    done = succeeded(run("align", trained(name), "--data", folder / "verbs.tsv", "--gold", gold, *both))
    assert "alignment_error_rate" in done.stderr


def test_alignments_of_columns_that_are_refused(folder: Path, trained: Callable[[str], Path], tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_text("walk\n")
    align = ["align", trained("soft")]
    refused(run(*align, "--source", lines, "--target", lines), "--data: expected one TSV file, whose columns are given")
    refused(run(*align), "--data: expected one TSV file, whose columns are given; got no file")
    reverse = ["--data", folder / "verbs.tsv", "--reverse", trained("zeroth")]
    refused(run(*align, *reverse), "--reverse: expected a run of the same symbols in the other direction")


def test_two_directions_of_two_columns_agree(folder: Path, tmp_path: Path) -> None:
    given = ["--data", folder / "verbs.tsv", "--config", folder / "run.toml"]
    for name, source, target in (("there", "2", "1"), ("back", "1", "2")):
        columns = ["--source-col", source, "--target-col", target]
        succeeded(run("train", "translate", *given, *columns, "--out", tmp_path / name))
    both = [tmp_path / "there", "--reverse", tmp_path / "back"]
    done = succeeded(run("align", *both, "--data", folder / "verbs.tsv"))
    assert len(done.stdout.splitlines()) == 8


def test_unknown_symbols_are_replaced_by_default_weights_alone(folder: Path, trained: Callable[[str], Path]) -> None:
    row = "x\tqalk\tnote\tV;PST\n"
    succeeded(run("translate", trained("soft"), "--replace-unknown", feed=row))
    files = ["--valid-source", folder / "verbs.tsv", "--valid-target", folder / "verbs.tsv"]
    refused(
        run("translate", trained("soft"), "--replace-unknown", *files, feed=row), "--valid-source: expected no files"
    )


def test_the_viewer_reads_a_row(folder: Path, trained: Callable[[str], Path], tmp_path: Path) -> None:
    row = (folder / "verbs.tsv").read_text().splitlines()[0]
    succeeded(run("view", trained("zeroth"), "--text", row, "--export", tmp_path / "page.html"))
    assert "[PST]" in json.dumps(answers((tmp_path / "page.html").read_text()))


def test_what_is_wrong_is_named(folder: Path, trained: Callable[[str], Path], tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{a}{b}\t{b}{a}\n" for a in "abcdef" for b in "abcdef"))
    train = ["train", "translate", "--out", tmp_path / "run", "--data", folder / "verbs.tsv"]
    refused(run(*train), "verbs.tsv:1: expected 2 columns", "got 4 columns", "--source-col")
    refused(run(*train, "--features-col", "5"), "verbs.tsv:1: expected text in column 5; got 4 columns")
    refused(run(*train, "--source-col", "0"), "--source-col: expected at least 1; got 0")
    refused(run(*train, "--target-col", "1"), "--target-col: expected another column")
    refused(run(*train, "--alignment", "monotonic-0"), "model: expected gru, lstm or rnn")
    refused(run(*train, "--alignment", "hard"), '--alignment: expected "soft" or "monotonic-0"')
    succeeded(run(*train[:2], "--data", pairs, "--config", folder / "run.toml", "--out", tmp_path / "plain"))
    refused(run("evaluate", tmp_path / "plain", "--data", pairs, "--source-col", "1"), "one of plain text")
    refused(run("translate", tmp_path / "plain", "--source-col", "1", feed="ab\n"), "--source-col", "one of plain text")
    refused(run("translate", trained("soft"), feed="walk\n"), "standard input:1: expected text in column 4; got 1")
    assert not (tmp_path / "run").exists()
