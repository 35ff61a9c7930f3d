"""`qkv train regress` and `qkv regress`, as a user runs them."""

from pathlib import Path

import pytest
from tests.cli.command import refused, run, succeeded

import qkv

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


def test_a_table_is_read_as_that_of_training(tmp_path: Path) -> None:
    rows = [f"{1000 + n:,};{2000 + 3 * n:,}".replace(",", ".") + ",5" for n in range(30)]
    (tmp_path / "t.txt").write_text("\n".join(["x;y", *rows, "k.A.;7", "5;-999"]) + "\n")
    (tmp_path / "plain.csv").write_text("x,y\n" + "".join(f"{1000 + n},{2000.5 + 3 * n}\n" for n in range(30)))
    written = ["--decimal", "comma", "--thousands", "point", "--missing", "skip", "--na", "k.A.,-999"]
    for name, flags in (("t.txt", [*written, "--sep", "semicolon"]), ("plain.csv", [])):
        given = ("--data", tmp_path / name, "--x", "x", "--y", "y", "--bandwidth", "2", *flags)
        succeeded(run("train", "regress", *given, "--out", tmp_path / f"{name}.run"))
    own, plain = tmp_path / "t.txt.run", tmp_path / "plain.csv.run"
    done = succeeded(run("evaluate", own, "--data", tmp_path / "t.txt"))
    assert done.stdout == succeeded(run("evaluate", plain, "--data", tmp_path / "plain.csv")).stdout
    assert f"columns as in training: --sep semicolon {' '.join(written)}\n" in done.stderr
    shown = succeeded(run("runs", own)).stdout
    assert all(f"{flag} {item}" in shown for flag, item in zip(written[::2], written[1::2], strict=True))
    assert "--x x --y y" in shown
    refused(run("evaluate", own, "--data", tmp_path / "t.txt", "--missing", "refuse"), "t.txt:32", '"k.A."')
    predicted = succeeded(run("regress", plain, feed="x\n1000.5\n1001\n")).stdout
    done = succeeded(run("regress", own, feed="x\nk.A.\n1.000,5\n1.001\n"))
    assert done.stdout == predicted
    assert "1 of 3 rows lack a number" in done.stderr
    as_points = ("--decimal", "point", "--thousands", "comma")
    assert succeeded(run("regress", own, *as_points, feed='x\n1000.5\n"1,001"\n')).stdout == predicted
    assert qkv.load(own, task="regress").scene("1.003").sequences["target"] == ("1003",)


def test_missing_numbers_are_refused_or_skipped(squares: Path, tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text("x,y\n1,2\n2,\n3,4\n")
    base = ("--data", tmp_path / "m.csv", "--x", "x", "--y", "y", "--bandwidth", "1")
    done = run("train", "regress", *base, "--out", tmp_path / "a")
    refused(done, 'm.csv:3: expected a number in column "y"')
    assert "skipped" not in done.stderr
    done = succeeded(run("train", "regress", *base, "--missing", "skip", "--out", tmp_path / "a"))
    assert "1 of 3 rows lack a number and are skipped" in done.stderr
    assert "m.csv: columns separated by commas" in done.stderr
    (tmp_path / "t.csv").write_text('x;y\n1;"1,002"\n2;?!\n3;1,004\n')
    how = ("--thousands", "comma", "--na", "?!", "--missing", "skip", "--sep", "semicolon")
    done = succeeded(run("evaluate", tmp_path / "a", "--data", tmp_path / "t.csv", *how))
    assert "1 of 3 rows lack a number and are skipped" in done.stderr
    assert done.stdout.startswith("rmse\t1000.0000")


@pytest.fixture(scope="module")
def rents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rents of two cities over the years, with weights; 60 rows have 30 different inputs."""
    folder = tmp_path_factory.mktemp("rents")
    rows = [(1990 + n % 15, ("Bonn", "Ulm")[n % 2], n % 3, 10 * (n % 15) + 100 * (n % 2) + n % 7) for n in range(60)]
    lines = "".join(f"{year},{city},{weight},{rent}\n" for year, city, weight, rent in rows)
    (folder / "t.csv").write_text(f"year,city,n,rent\n{lines}")
    return folder


def _fit(folder: Path, *flags: object) -> tuple[Path, str]:
    run_folder = folder / f"run{len(list(folder.iterdir()))}"
    base = ("--data", folder / "t.csv", "--x", "year,city", "--y", "rent", "--categorical", "city")
    return run_folder, succeeded(run("train", "regress", *base, *flags, "--out", run_folder)).stderr


def test_categories_are_named_by_position_too(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("area,city,rent\n" + "".join(f"{n},{'ab'[n % 2]},{n}\n" for n in range(20)))
    for x, categorical in (("area,city", "2"), ("1,2", "city"), ("1,2", "2")):
        columns = ("--x", x, "--y", "rent", "--categorical", categorical, "--bandwidth", "3,0.5")
        done = run("train", "regress", "--data", tmp_path / "t.csv", *columns, "--out", tmp_path / "run")
        assert "bandwidth area 3, city λ 0.5" in succeeded(done).stderr
    refused(run("check", "regress", "--data", tmp_path / "t.csv", "--x", "1,2", "--y", "3"), "--categorical city")


def test_categories_are_columns_of_names(rents: Path) -> None:
    trained, told = _fit(rents)
    assert "local line; gaussian kernel; bandwidth year" in told
    assert ", city λ 0" in told
    done = succeeded(run("regress", trained, "--show", feed="city,year\nUlm,1994\nBonn,1994\n"))
    header, ulm, bonn = done.stdout.splitlines()
    assert header == "year,city,rent,low,high"
    assert ulm.startswith("1994,Ulm,")
    assert float(ulm.split(",")[2]) - float(bonn.split(",")[2]) == pytest.approx(100, abs=12)
    assert "95 % intervals for the true curve, at each point by itself" in done.stderr
    refused(
        run("regress", trained, feed="year,city\n1994,Ulm\n1995,Köln\n"), 'a category of column "city": "Bonn", "Ulm"'
    )
    assert run("regress", trained, "--json", feed="year,city\n1994,Ulm\n").stdout.startswith(
        '{"year": 1994.0, "city": "Ulm"'
    )
    assert (
        len(succeeded(run("regress", trained, "--curve", "3", "--picture", rents / "c.svg")).stdout.splitlines()) == 4
    )
    assert "rmse" in succeeded(run("evaluate", trained, "--data", rents / "t.csv")).stdout
    succeeded(run("view", trained, "--text", "year,city\n1994,Ulm", "--export", rents / "v.html"))


def test_rows_of_weight_0_are_left_out_and_negative_ones_refused(rents: Path) -> None:
    trained, told = _fit(rents, "--weights", "n", "--bandwidth", "3,0.5")
    assert "20 of 60 rows have weight 0: left out" in told
    assert "40 points" in told
    succeeded(run("regress", trained, feed="year,city\n1994,Ulm\n"))
    text = (rents / "t.csv").read_text()
    (rents / "bad.csv").write_text(text + "1994,Ulm,-1,3\n")
    base = ("--data", rents / "bad.csv", "--x", "year", "--y", "rent", "--weights", "n", "--out", rents / "bad")
    refused(run("train", "regress", *base), 'bad.csv:62: expected a weight of at least 0 in column "n"; got -1')


def test_neighbors_are_chosen_and_stored(rents: Path) -> None:
    trained, told = _fit(rents, "--neighbors", "auto", "--bandwidth", "aic")
    assert " neighbors, in units of year 1" in told
    first = succeeded(run("regress", trained, "--simultaneous", feed="year,city\n1994,Ulm\n"))
    assert "for the true curve, as a whole" in first.stderr
    _, told = _fit(rents, "--neighbors", "7")
    assert "7 neighbors" in told


def test_rows_out_of_support_are_counted(rents: Path) -> None:
    trained, _ = _fit(rents, "--bandwidth", "2,0.1", "--beyond", "mean")
    done = succeeded(run("regress", trained, feed="year,city\n1994,Ulm\n2050,Ulm\n"))
    assert "1 of 2 rows are out of the support of the training points: their prediction is the mean" in done.stderr
    assert done.stdout.splitlines()[2].endswith(",,")


def test_missing_values_are_named_alike_in_training_and_in_evaluation(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text("x,y\n" + "".join(f"{x},{x * x}\n" for x in range(20)) + "NIX,3\nOCH,4\n", encoding="utf-8")
    na = ("--na", "NIX,OCH", "--missing", "skip")
    succeeded(run("train", "regress", "--data", table, "--x", "x", "--y", "y", *na, "--out", tmp_path / "run"))
    assert "rmse" in succeeded(run("evaluate", tmp_path / "run", "--data", table, *na)).stdout
