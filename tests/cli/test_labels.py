"""`qkv train classify`, `qkv classify`, `qkv train tag`, `qkv tag` and their `qkv evaluate`, as a user runs them."""

from pathlib import Path

import pytest
from tests.cli.command import refused, run, succeeded

FILMS = "good\ta fine film\nbad\ta dull film\ngood\tfine , great story\nbad\tpoor story\n" * 6
NAMES = "Ada\tB-PER\nLovelace\tI-PER\nwrote\tO\n\nYes\tO\n\n" * 8


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("films")
    (folder / "films.tsv").write_text(FILMS)
    model = ("--model", "none", "--steps", "30", "--learning-rate", "0.05")
    done = succeeded(run("train", "classify", "--data", folder / "films.tsv", "--out", folder / "run", *model))
    assert done.stdout == ""
    return folder


def test_each_line_gets_a_label_and_its_probability(films: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = succeeded(run("classify", films / "run", "--show", "--attention", page, feed="fine film\n\ndull\n"))
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert [row[0] for row in rows][::2] == ["good", "bad"]
    assert all(0.5 <= float(row[1]) <= 1 for row in rows)
    assert "film" in done.stderr
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_all_probabilities_are_named(films: Path) -> None:
    done = run("classify", films / "run", "--probabilities", feed="fine\n")
    first, second = done.stdout.strip().split("\t")
    assert first.startswith("good=")
    assert second.startswith("bad=")


def test_a_classifier_is_scored_by_its_own_figures(films: Path, tmp_path: Path) -> None:
    done = succeeded(run("evaluate", films / "run", "--data", films / "films.tsv", "--out", tmp_path / "out.tsv"))
    assert done.stdout.splitlines()[0] == "accuracy\t100.0000\tunit:label\t%"
    assert (tmp_path / "out.tsv").read_text() == FILMS


def test_a_label_that_training_never_saw_is_told_of(films: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.tsv"
    other.write_text("good\ta fine film\nso so\ta film\n")
    done = succeeded(run("evaluate", films / "run", "--data", other))
    assert done.stdout.splitlines()[0] == "accuracy\t50.0000\tunit:label\t%"
    assert f'{other}:2: training never saw the label "so so"; such labels, 1 of 2, count as wrong.' in done.stderr
    train = ("train", "classify", "--data", films / "films.tsv", "--valid-data", other, "--out", tmp_path / "x")
    refused(run(*train), f'{other}:2: expected one of "bad", "good"; got "so so"', "Training never saw it")


def test_words_are_tagged_in_columns(tmp_path: Path) -> None:
    data = tmp_path / "names.conll"
    data.write_text(NAMES)
    model = ("--model", "none", "--steps", "40", "--learning-rate", "0.05", "--tokenizer", "word")
    succeeded(run("train", "tag", "--data", data, "--out", tmp_path / "run", *model))
    done = run("tag", tmp_path / "run", feed="Yes  Ada\n\nwrote\n")
    assert done.stdout == "Yes\tO\nAda\tB-PER\n\n\nwrote\tO\n\n"
    done = run("evaluate", tmp_path / "run", "--data", data)
    assert done.stdout.splitlines()[0].startswith("span_f1\t100.0000\t")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "grv"), 'Did you mean "gru"?'),
        (("--pool", "max"), '--pool: expected "attention" or "mean"; got "max".'),
        (("--longest", "1"), "expected at most 1 tokens"),
    ],
)
def test_bad_input_ends_with_one_message(films: Path, tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    refused(run("train", "classify", "--data", films / "films.tsv", "--out", tmp_path / "x", *arguments), message)


def test_another_tasks_run_is_refused(films: Path) -> None:
    told = "expected a checkpoint of `qkv train tag`; got one trained to classify. Use `qkv classify`"
    refused(run("tag", films / "run", feed="x\n"), told)
