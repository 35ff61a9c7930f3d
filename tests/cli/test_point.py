"""`qkv train point` and `qkv point`, as a user runs them."""

from pathlib import Path

import pytest
from tests.cli.command import refused, run, succeeded

PAIRS = "".join(f"{a} {b}\t{'1 2' if a <= b else '2 1'}\n" for a in range(9) for b in range(9))
SMALL = ("--model", "gru", "--width", "16", "--learning-rate", "0.02")


@pytest.fixture(scope="module")
def sort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sort")
    (folder / "sort.tsv").write_text(PAIRS)
    done = succeeded(
        run("train", "point", "--data", folder / "sort.tsv", "--out", folder / "run", *SMALL, "--steps", "120")
    )
    assert "numbers" in done.stderr
    return folder


def test_positions_or_elements_are_written_for_each_line(sort: Path) -> None:
    assert succeeded(run("point", sort / "run", feed="8 2\n\n1 7\n")).stdout == "2 1\n\n1 2\n"
    done = succeeded(run("point", sort / "run", "--write", "elements", "--beam", "3", feed="8 2\n1 7\n"))
    assert done.stdout == "2 8\n1 7\n"


def test_a_pointer_is_scored_by_its_own_figures(sort: Path, tmp_path: Path) -> None:
    source, target = tmp_path / "s", tmp_path / "t"
    source.write_text("8 2\n1 7\n")
    target.write_text("2 1\n1 2\n")
    done = succeeded(run("evaluate", sort / "run", "--source", source, "--target", target, "--beam", "2"))
    assert done.stdout == "positions\t100.0000\tin place\t%\nexact\t100.0000\t\t%\n"


def test_names_that_users_know(sort: Path) -> None:
    for given, shown in {
        "mlp": "additive",
        "general": "bilinear",
        "Scaled-Dot": "scaled_dot",
        "gaussian": "squared_distance",
    }.items():
        done = succeeded(run("train", "point", "--score", given, "--print-config"))
        assert f'score = "{shown}"' in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "gur"), 'Did you mean "gru"?'),
        (("--score", "boxcar"), "--score: expected a score whose softmax can point"),
        (("--score", "concat"), "--score: expected additive or nonlocal-concat"),
        (("--elements", "number"), 'Did you mean "numbers"?'),
        (("--order", "ring"), "--order: expected"),
        (("--heads", "3"), "--heads"),
        (("--source", "x"), "--data"),
        (("--valid-source", "x"), "--valid-source"),
    ],
)
def test_bad_input_ends_with_one_message(sort: Path, tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    refused(run("train", "point", "--data", sort / "sort.tsv", "--out", tmp_path / "x", *arguments), message)


def test_a_line_that_cannot_be_read_is_named(sort: Path, tmp_path: Path) -> None:
    refused(run("point", sort / "run", feed="1 2\n1,2 3\n"), "standard input:2: expected a number as element 1")
    refused(run("point", sort / "run", "--write", "words", feed="1 2\n"), "--write")
    (tmp_path / "bad.tsv").write_text(PAIRS + "1 2\t3\n")
    done = run("train", "point", "--data", tmp_path / "bad.tsv", "--out", tmp_path / "x")
    refused(done, "bad.tsv:82: expected positions from 1 to 2")


def test_another_tasks_run_is_refused(sort: Path) -> None:
    refused(run("classify", sort / "run", feed="x\n"), "one trained to point. Use `qkv point`")
