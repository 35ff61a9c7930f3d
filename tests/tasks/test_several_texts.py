"""Models that answer several texts refuse a single one, whose characters would be answered, and what is no text."""

from typing import Any

import pytest
from tests.cli.shelf import Shelf

import qkv
from qkv.errors import DataError

TASKS = ("translate", "classify", "tag", "generate", "point")


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    return Shelf(tmp_path_factory.mktemp("shelf"))


@pytest.mark.filterwarnings("ignore::qkv.tasks.length.CutWarning")
@pytest.mark.parametrize("task", TASKS)
def test_one_text_is_not_taken_for_its_characters(task: str, shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shelf.folder)
    model: Any = qkv.load(shelf.run(task))
    texts = {"tag": ["Ada", "wrote"], "generate": "KING", "point": "3 1"}.get(task, "a b")
    answer = getattr(model, task)
    with pytest.raises(DataError) as raised:
        answer("".join(texts))
    assert "one: " in raised.value.got
    for bad in (3, None, b"a", 2.5):
        with pytest.raises(DataError) as raised:
            answer([[bad]] if task == "tag" else [bad])
        assert repr(bad) in raised.value.got
    if task == "tag":
        with pytest.raises(DataError, match=r"^sentence 2: "):
            answer([["Ada"], "Ada wrote"])
    assert answer(()) == []
    assert answer(iter([texts])) == answer([texts])
