"""Cross-validation: parts of the data, judged by their definition and by scikit-learn."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import qkv
from qkv.errors import ConfigError, DataError
from qkv.tasks.folds import Examples, folds_of

items = st.lists(st.tuples(st.integers(0, 30), st.sampled_from("ab")), min_size=6, max_size=60)


def examples(rows: list[tuple[int, str]]) -> Examples:
    return Examples([row[0] for row in rows], [row[1] for row in rows], lambda indices: "", "", {})


@given(items, st.integers(2, 4))
def test_each_example_is_in_one_part_with_all_of_its_input(rows: list[tuple[int, str]], count: int) -> None:
    inputs = [row[0] for row in rows]
    if len(set(inputs)) < count:
        with pytest.raises(ConfigError, match="folds: expected from 2 to"):
            folds_of(examples(rows), count)
        return
    parts = folds_of(examples(rows), count)
    assert len(parts) == len(rows)
    assert {*parts} == {*range(count)}
    assert len({*zip(inputs, parts, strict=True)}) == len({*inputs})
    assert parts == folds_of(examples(rows), count)


@given(st.lists(st.sampled_from("aabc"), min_size=8, max_size=60), st.integers(2, 4))
def test_parts_have_the_shares_of_stratified_folds(kinds: list[str], count: int) -> None:
    """Of different inputs, each part has as many of every kind as the others, but for one; so have scikit-learn's."""
    from sklearn.model_selection import StratifiedKFold

    kinds = [*kinds, *"abc" * count]
    parts = folds_of(Examples(range(len(kinds)), kinds, lambda indices: "", "", {}), count)
    judge = StratifiedKFold(count, shuffle=True, random_state=0).split(kinds, kinds)
    theirs = [Counter(kinds[index] for index in test) for _, test in judge]
    ours = [Counter(kind for kind, part in zip(kinds, parts, strict=True) if part == number) for number in range(count)]
    for kind in "abc":
        assert sorted(part[kind] for part in ours) == sorted(part[kind] for part in theirs)
    assert max(map(Counter.total, ours)) - min(map(Counter.total, ours)) <= 3


FILMS = "".join(
    f"{label}\ta {word} film {n}\n" for n in range(9) for label, word in (("good", "fine"), ("bad", "dull"))
)
NAMES = "".join(f"{name} B-PER\nsleeps{n} O\n\n" for n in range(9) for name in ("Ada", "Bo"))
PAIRS = "".join(f"{word} {n}\t{n} {word}\n" for n in range(9) for word in ("ja", "no"))
SORTED = "".join(f"{n} {n + more}\t1 2\n" for n in range(9) for more in (3, 5))
RENTS = "area,rent\n" + "".join(f"{area},{3 * area}\n" for area in range(20))
LEARNED = {"steps": 2, "width": 4, "batch_size": 4, "validate_every": 1}


@pytest.mark.parametrize(
    ("task", "text", "settings", "count"),
    [
        ("classify", FILMS, LEARNED | {"model": "none"}, 18),
        ("tag", NAMES, LEARNED, 18),
        ("regress", RENTS, {"x": ["area"], "y": "rent"}, 20),
        ("translate", PAIRS, LEARNED | {"model": "gru", "tokenizer": "word", "minimum": 1}, 18),
        ("point", SORTED, LEARNED, 18),
    ],
)
def test_every_example_is_tested_once(
    task: str, text: str, settings: dict[str, object], count: int, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.write_text(text)
    given = {"data": str(data), "folds": 3, "out": tmp_path / "cv", "quiet": True, **settings}
    comparison = qkv.compare(task, **given)
    (row,) = comparison.rows
    assert list(row.results) == [1, 2, 3]
    assert sum(len(result.credits) for result in row.results.values()) == count
    assert "folds" in comparison.header
    assert set(comparison.to_json_value()["rows"][0]["folds"]) == {"1", "2", "3"}
    # Train and test of a part are all of the data: as lines, whatever their order.
    for number in (1, 2, 3):
        both = "".join(path.read_text() for path in sorted((tmp_path / "cv" / "folds").glob(f"*-{number}.*")))
        words = Counter(word for word in both.split() if word != "area,rent")
        rows = text.replace(" O\n", "\tO\n") if task == "tag" else text
        expected = Counter(word for word in rows.split() if word != "area,rent")
        if task == "regress":
            words, expected = (Counter(map(_numbers, each.elements())) for each in (words, expected))
        assert words == expected
    assert qkv.compare(task, **given).to_csv() == comparison.to_csv(), "nothing is trained again"


def _numbers(row: str) -> tuple[float, ...]:
    return tuple(map(float, row.split(",")))


def test_folds_beside_seeds_or_files_to_test_are_refused(tmp_path: Path) -> None:
    rows = [("good", f"a {n}") for n in range(9)]
    for more, name in (({"seeds": 2}, "seeds"), ({"test_data": rows}, "folds")):
        with pytest.raises(ConfigError) as refused:
            qkv.compare("classify", data=rows, folds=3, out=tmp_path, **more)
        assert refused.value.argument == name
    with pytest.raises(ConfigError, match="a task whose data can be divided: translate, classify, tag, point, regress"):
        qkv.compare("generate", text=["a b"] * 30, folds=3, out=tmp_path)
    (tmp_path / "source").write_text("a\tb\n" * 30)
    with pytest.raises(DataError, match="source:1: expected texts without tabs"):
        qkv.compare("translate", source=tmp_path / "source", target=["c"] * 30, folds=3, out=tmp_path)
