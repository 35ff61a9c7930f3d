"""`qkv.train` takes numbers where a command reads them from a file."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.tasks.reading import read

import qkv
from qkv.data.corpus import Lines
from qkv.data.labeled import read_labeled
from qkv.errors import ArgumentError, ConfigError, DataError
from qkv.tasks.pairs import PairSources
from qkv.tasks.python_values import as_source, expect_texts, pair_line


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


@pytest.mark.parametrize("path", [3, None, b"runs", ["runs"], True])
def test_what_is_no_path_is_refused_by_its_name(path: Any) -> None:
    calls = {
        "out": lambda: qkv.train("translate", data=[("a", "b")], out=path, quiet=True),
        "run": lambda: qkv.load(path),
    }
    for name, call in calls.items():
        with pytest.raises(ArgumentError) as caught:
            call()
        assert caught.value.argument == name


def test_what_stands_for_a_path_is_one(tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("ein Hund\n", encoding="utf-8")
    (entry,) = os.scandir(tmp_path)
    with pytest.raises(DataError) as caught:
        qkv.train("translate", data=entry, out=tmp_path / "run", quiet=True)  # type: ignore[call-overload]
    assert (caught.value.file, caught.value.line) == (entry.path, 1)


def test_a_text_that_utf8_cannot_encode_is_named() -> None:
    with pytest.raises(DataError) as caught:
        as_source([("a", "b"), ("c", "d\ud800")], "data", pair_line)
    assert (caught.value.file, caught.value.line) == ("data", 2)
    with pytest.raises(DataError) as caught:
        expect_texts(["a", "d\ud800"], "texts")
    assert caught.value.line == 2


@pytest.mark.parametrize("items", [{"a": "b"}, {"a", "b"}, frozenset({"a"}), {"a": "b"}.keys()])
def test_what_has_no_order_is_refused(items: Any) -> None:
    for reader in (expect_texts, as_source):
        with pytest.raises(DataError) as caught:
            reader(items, "texts")
        assert caught.value.argument == "texts"


@pytest.mark.parametrize(
    "pair", [(np.array([3, 1, 2]), np.array([2, 3, 1])), (torch.tensor([3, 1, 2]), torch.tensor([2, 3, 1]))]
)
def test_elements_and_positions_may_be_arrays(pair: Any) -> None:
    kinds = (pair, ("3 1 2", "2 3 1"))
    arrays, texts = (read("point", data={"data": [one] * 3}, model={"once": False}) for one in kinds)
    assert arrays.fingerprints["train"] == texts.fingerprints["train"]


@pytest.mark.parametrize("element", [None, True, b"a", 1j, {}])
def test_elements_are_numbers_or_words(element: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        qkv.train("point", data=[([1], [1]), ([3, element], [2, 1])], out=tmp_path / "run", quiet=True)
    assert caught.value.line == 2


def test_no_rows_have_no_predictions(tmp_path: Path) -> None:
    model = qkv.train("regress", data=[(1, 2), (2, 3), (3, 5)], out=tmp_path / "run", bandwidth=1.0, quiet=True).load()
    assert model.predict([]).shape == (0,)
    with pytest.raises(DataError):
        model.predict([[10**400]])


def test_integers_beyond_all_floats_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        qkv.train("regress", data=[(1, 2), (10**400, 3), (3, 4)], out=tmp_path / "run", quiet=True)
    assert caught.value.line == 2


def test_columns_in_place_of_rows_are_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    qkv.train("regress", data=[[1, 2, 3, 4], [2, 4, 6, 9]], out=tmp_path / "run", bandwidth=1.0)
    assert "zip(*data)" in capsys.readouterr().err


@pytest.mark.parametrize(("pair", "side"), [(("same", "{}"), "sources"), (("{}", "same"), "targets")])
def test_a_side_that_is_always_the_same_is_noticed(
    pair: tuple[str, str], side: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = Lines("data", tuple("\t".join(pair).format(number) for number in range(5)))
    PairSources(data=lines).read()
    assert f'all 5 {side} are "same"' in capsys.readouterr().err


def test_json_that_is_trained_on_as_text_is_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"text": "to be or not to be"}\n' * 40, encoding="utf-8")
    read("generate", data={"text": path}, model={"context": 16})
    assert "qkv prepare" in capsys.readouterr().err


def test_numbers_as_labels_are_compared_as_numbers() -> None:
    said: list[str] = []
    lines = tuple(f"{label}\ttext {number}" for number in range(6) for label in ("1", "1.0", "0"))
    read_labeled(Lines("data", lines), say=said.append)
    assert any("how a number is written" in message and "1, 1.0" in message for message in said)
