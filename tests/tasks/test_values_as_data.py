"""`qkv.train` takes numbers where a command reads them from a file."""

from pathlib import Path

import pytest

import qkv
from qkv.errors import ConfigError, DataError


def test_a_regression_of_pairs_is_that_of_the_file(tmp_path: Path) -> None:
    rows = [(n / 4, float(n * n)) for n in range(20)]
    (tmp_path / "f.csv").write_text("x,y\n" + "".join(f"{x},{y}\n" for x, y in rows))
    pytest.importorskip("sklearn")
    runs = [
        qkv.train("regress", out=tmp_path / "a", data=rows, quiet=True),
        qkv.train("regress", out=tmp_path / "b", data=tmp_path / "f.csv", x="x", y="y", quiet=True),
    ]
    first, second = (run.load() for run in runs)
    assert first.model.state_dict().keys() == second.model.state_dict().keys()
    for name, tensor in first.model.state_dict().items():
        assert tensor.equal(second.model.state_dict()[name])


def test_columns_of_rows_are_named(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    rows = [(n % 5, n / 3, n + 0.5) for n in range(20)]
    run = qkv.train("regress", out=tmp_path / "a", data=rows, x=["age", "income"], y="rent", quiet=True)
    assert run.load().x == ("age", "income")


@pytest.mark.parametrize("rows", [[(1.0, "a")], [(1.0, 2.0), (1.0,)], [(1.0, 2.0, 3.0)]])
def test_rows_that_do_not_fit_are_refused(rows: list[tuple[object, ...]], tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data:\d: expected 2 numbers, for x, y"):
        qkv.train("regress", out=tmp_path / "a", data=rows, x="x", y="y", quiet=True)


def test_no_rows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="data: expected at least one item; got none"):
        qkv.train("regress", out=tmp_path / "a", data=[], quiet=True)


def test_lists_of_numbers_and_vectors_are_pointed_at(tmp_path: Path) -> None:
    pairs = [([n, 9 - n, n + 20], [1, 2] if n < 5 else [2, 1]) for n in range(8)]
    qkv.train("point", out=tmp_path / "a", data=pairs, steps=1, quiet=True)
    vectors = [([(n, 1.0), (0.5, n)], [1, 2]) for n in range(8)]
    qkv.train("point", out=tmp_path / "b", data=vectors, steps=1, quiet=True)
    words = [(["b", "a"], [2, 1]), (["a", "b"], [1, 2])] * 4
    qkv.train("point", out=tmp_path / "c", data=words, steps=1, quiet=True)


def test_one_function_is_no_sequence_of_callbacks(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="callbacks: expected a sequence of functions; got one function"):
        qkv.train("translate", out=tmp_path / "a", data=[("a", "b")], callbacks=print)  # type: ignore[call-overload]
