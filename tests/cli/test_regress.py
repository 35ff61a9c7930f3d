"""`qkv train regress` and `qkv regress`, as a user runs them."""

from pathlib import Path

import pytest
from tests.cli.command import refused, run, succeeded

ROWS = "".join(f"{n / 2};{n % 5};{n * n / 4}\n" for n in range(30)).replace(".", ",")


@pytest.fixture(scope="module")
def squares(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("squares")
    (folder / "t.csv").write_text("x;noise;square\n" + ROWS)
    base = ("--data", folder / "t.csv", "--decimal", "comma", "--y", "square", "--bandwidth", "0.6", "--degree", "0")
    done = succeeded(
        run(
            "train",
            "regress",
            *base,
            "--x",
            "x",
            "--kernel",
            "boxcar",
            "--out",
            folder / "run",
            "--picture",
            folder / "p.svg",
        )
    )
    assert "bandwidth x 0.6" in done.stderr
    assert (folder / "p.svg").read_bytes().startswith(b"<?xml")
    return folder


def test_predictions_are_csv_with_the_interval(squares: Path) -> None:
    done = succeeded(run("regress", squares / "run", feed="x\n2\n3\n"))
    header, *rows = done.stdout.splitlines()
    assert header == "x,square,low,high"
    assert [float(row.split(",")[1]) for row in rows] == pytest.approx([(2.25 + 4 + 6.25) / 3, (6.25 + 9 + 12.25) / 3])
    bare = succeeded(
        run("regress", squares / "run", "--interval", "none", "--decimal", "comma", feed='"2,0"\n3\n')
    ).stdout
    assert [row.split(",")[:2] for row in rows] == [row.split(",") for row in bare.splitlines()[1:]]


def test_a_table_like_that_of_training_is_scored(squares: Path) -> None:
    names = [
        line.split("\t")[0]
        for line in run("evaluate", squares / "run", "--data", squares / "t.csv").stdout.splitlines()
    ]
    assert names == ["rmse", "mae", "r2"]


def test_a_curve_needs_no_input(squares: Path, tmp_path: Path) -> None:
    flags = ("--curve", "5", "--interval", "bootstrap", "--level", "0.8", "--picture", tmp_path / "c.png")
    done = succeeded(run("regress", squares / "run", *flags))
    assert len(done.stdout.splitlines()) == 6
    assert (tmp_path / "c.png").stat().st_size > 5000


def test_where_no_point_has_weight_the_interval_is_empty(squares: Path) -> None:
    assert succeeded(run("regress", squares / "run", feed="99\n")).stdout.splitlines()[1] == "99,210.25,,"


def test_several_columns_and_chosen_bandwidths(squares: Path, tmp_path: Path) -> None:
    base = ("--data", squares / "t.csv", "--decimal", "comma", "--y", "square", "--x", "x,noise")
    for way in ("aic", "cross-validation"):
        done = succeeded(run("train", "regress", *base, "--bandwidth", way, "--out", tmp_path / way))
        assert "leave-one-out: rmse" in done.stderr
    done = succeeded(run("regress", tmp_path / "aic", "--show", feed="noise,x\n1,2\n"))
    assert done.stdout.startswith("x,noise,square,low,high\n2,1,")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--x", "squre", "--y", "square"), 'Did you mean "square"?'),
        (("--x", "x", "--y", "squere"), "expected a column of"),
        (("--x", "x"), "--y: expected the name of a column; got none"),
        (("--x", "x", "--y", "square", "--decimal", "point"), "--decimal comma"),
        (("--x", "x", "--y", "square", "--kernel", "gausian"), 'Did you mean "gaussian"?'),
        (
            ("--x", "x", "--y", "square", "--bandwidth", "-1"),
            "--bandwidth: expected a finite number from 0",
        ),
        (("--x", "x", "--y", "square", "--bandwidth", "0"), "expected a finite number above 0; got 0.0"),
        (("--x", "x", "--y", "square", "--bandwidth", "1,2"), "expected 1 numbers, one per column"),
        (("--x", "x", "--y", "square", "--bandwidth", "learned"), 'Or "cross-validation"'),
        (("--x", "x", "--y", "square", "--degree", "3"), "at least 0 and at most 2"),
        (
            ("--x", "x", "--y", "square", "--categorical", "noise"),
            'expected columns of --x; got "noise"',
        ),
        (("--x", "x", "--y", "square", "--weights", "x"), '"x" twice'),
        (("--x", "x", "--y", "square", "--neighbors", "31"), "1 to 30, the number of places; got 31"),
        (("--x", "x", "--y", "square", "--neighbors", "auto", "--bandwidth", "2"), "a number beside a bandwidth"),
        (("--x", "x", "--y", "square", "--picture", "p.pdf"), "--picture"),
    ],
)
def test_bad_input_ends_with_one_message(
    squares: Path, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    given = ("--data", squares / "t.csv", "--decimal", "comma", "--out", tmp_path / "x", *arguments)
    refused(run("train", "regress", *given), message)


@pytest.mark.parametrize(
    ("flags", "feed", "message"),
    [
        ((), "y\n1\n", 'standard input: expected a column "x"; got "y"'),
        ((), "x\none\n", "standard input:2: expected a finite number"),
        ((), "", "standard input: expected lines with columns; got none"),
        (("--level", "1"), "1\n", "level: expected a probability"),
        (("--interval", "normall"), "1\n", 'Did you mean "normal"?'),
        (("--curve", "1"), "", "--curve: expected at least 2 points"),
        (("--decimal", "dot"), "1\n", "--decimal"),
    ],
)
def test_rows_that_cannot_be_predicted_are_named(
    squares: Path, flags: tuple[str, ...], feed: str, message: str
) -> None:
    refused(run("regress", squares / "run", *flags, feed=feed), message)


def test_missing_numbers_are_refused_or_skipped(squares: Path, tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text("x,y\n1,2\n2,\n3,4\n")
    base = ("--data", tmp_path / "m.csv", "--x", "x", "--y", "y", "--bandwidth", "1")
    refused(run("train", "regress", *base, "--out", tmp_path / "a"), 'm.csv:3: expected a number in column "y"')
    done = succeeded(run("train", "regress", *base, "--missing", "skip", "--out", tmp_path / "a"))
    assert "1 of 3 rows lack a number and are skipped" in done.stderr
